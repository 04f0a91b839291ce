package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// named is the same public key under another name, which gives it another id.
func named(vkey, name string) note.Verifier {
	parts := strings.SplitN(strings.TrimSpace(vkey), "+", 3)
	typed, err := strict.DecodeString(parts[2])
	must(err, "key")
	id := sha256.Sum256(append([]byte(name+"\n"), typed...))
	key, err := note.NewVerifier(name + "+" + hex.EncodeToString(id[:4]) + "+" + parts[2])
	must(err, "key")
	return key
}

// proven checks that an entry is in the head that its tlog-proof carries, and returns that head.
func proven(folder, stem string, key func(origin string) note.Verifier) (string, []byte) {
	entry, err := os.ReadFile(filepath.Join(folder, stem+".json"))
	must(err, "entry")
	text, err := os.ReadFile(filepath.Join(folder, stem+".tlog"))
	must(err, "proof")
	head, checkpoint, found := strings.Cut(string(text), "\n\n")
	lines := strings.Split(head, "\n")
	if !found || lines[0] != "c2sp.org/tlog-proof@v1" {
		refuse("proof form")
	}
	index, err := strconv.ParseInt(strings.TrimPrefix(lines[1], "index "), 10, 64)
	must(err, "index")
	proof := tlog.RecordProof{}
	for _, line := range lines[2:] {
		hash, err := tlog.ParseHash(line)
		must(err, "hash")
		proof = append(proof, hash)
	}
	origin, _, _ := strings.Cut(checkpoint, "\n")
	tree := open([]byte(checkpoint), key(origin))
	must(tlog.CheckRecord(proof, tree.N, tree.Hash, index, tlog.RecordHash(entry)), stem)
	return checkpoint, entry
}

func stems(folder, kind string) []string {
	found, err := filepath.Glob(filepath.Join(folder, kind, "*.tlog"))
	must(err, kind)
	for i, path := range found {
		found[i] = kind + "/" + strings.TrimSuffix(filepath.Base(path), ".tlog")
	}
	return found
}

// certificate checks an unpacked certificate: who signed which files, every head in the root log, every entry in such a head.
func certificate(folder, vkey string) {
	root, err := note.NewVerifier(strings.TrimSpace(vkey))
	must(err, "key")
	ledger := strings.TrimSuffix(root.Name(), "/root")
	text, err := os.ReadFile(filepath.Join(folder, "manifest.note"))
	must(err, "manifest")
	manifest, err := note.Open(text, note.VerifierList(named(vkey, ledger+"/certificates")))
	must(err, "manifest")
	for _, line := range strings.Split(strings.TrimSpace(manifest.Text), "\n")[1:] {
		digest, name, _ := strings.Cut(line, " ")
		data, err := os.ReadFile(filepath.Join(folder, filepath.FromSlash(name)))
		must(err, name)
		if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != digest {
			refuse(name)
		}
	}
	checkpoint, err := os.ReadFile(filepath.Join(folder, "checkpoint"))
	must(err, "checkpoint")
	recorded := map[string]bool{}
	for _, stem := range stems(folder, "heads") {
		under, entry := proven(folder, stem, func(string) note.Verifier { return root })
		if under != string(checkpoint) {
			refuse("another root head")
		}
		var head struct{ Origin, Root string; Size int64 }
		must(json.Unmarshal(entry, &head), stem)
		recorded[fmt.Sprintf("%s %d %s", head.Origin, head.Size, head.Root)] = true
	}
	count := 0
	for _, stem := range stems(folder, "entries") {
		under, _ := proven(folder, stem, func(origin string) note.Verifier { return named(vkey, origin) })
		lines := strings.Split(under, "\n")
		tree := open([]byte(under), named(vkey, lines[0]))
		if !recorded[fmt.Sprintf("%s %d %s", lines[0], tree.N, hex.EncodeToString(tree.Hash[:]))] {
			refuse("a head that the root log did not record")
		}
		count++
	}
	fmt.Printf("%d entries\n", count)
}
