// Verifies a tile log with Go's own note and tlog packages and no code of ours.
//
//	verifier LOG_FOLDER VKEY
//	verifier certificate UNPACKED_FOLDER VKEY
package main

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

const width = 256

var strict = base64.StdEncoding.Strict()

// folder serves tiles of height 8 and keeps those the hash reader has already checked.
type folder struct {
	path    string
	checked map[tlog.Tile][]byte
}

func (f *folder) Height() int { return 8 }

func (f *folder) SaveTiles(tiles []tlog.Tile, data [][]byte) {
	for i, tile := range tiles {
		f.checked[tile] = data[i]
	}
}

func (f *folder) ReadTiles(tiles []tlog.Tile) ([][]byte, error) {
	found := make([][]byte, len(tiles))
	for i, tile := range tiles {
		if data, ok := f.checked[tile]; ok {
			found[i] = data
			continue
		}
		name := "tile/" + strings.TrimPrefix(tile.Path(), "tile/8/")
		data, err := f.read(name)
		if err != nil {
			return nil, err
		}
		found[i] = data
	}
	return found, nil
}

// read fetches exactly the file that the checkpoint's size names.
func (f *folder) read(name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(f.path, filepath.FromSlash(name)))
}

func must(err error, what string) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
		os.Exit(1)
	}
}

func refuse(what string) { must(fmt.Errorf("refused"), what) }

// open checks a signed checkpoint and returns its tree. Stray bits in base64 would make two spellings of one note.
func open(text []byte, key note.Verifier) tlog.Tree {
	signed, err := note.Open(text, note.VerifierList(key))
	must(err, "checkpoint")
	for _, signature := range signed.Sigs {
		_, err := strict.DecodeString(signature.Base64)
		must(err, "signature")
	}
	lines := strings.Split(signed.Text, "\n")
	if len(lines) != 4 || lines[0] != key.Name() {
		refuse("checkpoint form")
	}
	size, err := strconv.ParseInt(lines[1], 10, 64)
	must(err, "size")
	hash, err := tlog.ParseHash(lines[2])
	must(err, "root")
	return tlog.Tree{N: size, Hash: hash}
}

// entries checks one bundle against the authenticated leaf hashes.
func (f *folder) entries(reader tlog.HashReader, number, size int64) {
	count := min(width, size-number*width)
	tile := tlog.Tile{H: 8, L: 0, N: number, W: int(count)}
	name := "tile/entries/" + strings.TrimPrefix(tile.Path(), "tile/8/0/")
	bundle, err := f.read(name)
	must(err, "bundle")
	indexes := make([]int64, count)
	for i := range indexes {
		indexes[i] = tlog.StoredHashIndex(0, number*width+int64(i))
	}
	hashes, err := reader.ReadHashes(indexes)
	must(err, "tile")
	for _, hash := range hashes {
		if len(bundle) < 2 || len(bundle) < 2+int(binary.BigEndian.Uint16(bundle)) {
			refuse("bundle too short")
		}
		end := 2 + int(binary.BigEndian.Uint16(bundle))
		if tlog.RecordHash(bundle[2:end]) != hash {
			refuse("entry")
		}
		bundle = bundle[end:]
	}
	if len(bundle) != 0 {
		refuse("bundle too long")
	}
}

func main() {
	if os.Args[1] == "certificate" {
		certificate(os.Args[2], os.Args[3])
		return
	}
	key, err := note.NewVerifier(os.Args[2])
	must(err, "key")
	f := &folder{os.Args[1], map[tlog.Tile][]byte{}}
	text, err := f.read("checkpoint")
	must(err, "checkpoint")
	tree := open(text, key)
	reader := tlog.TileHashReader(tree, f)
	for number := int64(0); number*width < tree.N; number++ {
		f.entries(reader, number, tree.N)
	}
	archive, err := f.read("checkpoints")
	must(err, "archive")
	last := ""
	for _, line := range strings.SplitAfter(string(archive), "\n") {
		if line == "" {
			continue
		}
		decoded, err := strict.DecodeString(strings.TrimSuffix(line, "\n"))
		must(err, "archive line")
		old := open(decoded, key)
		last = string(decoded)
		if old.N == 0 {
			continue
		}
		proof, err := tlog.ProveTree(tree.N, old.N, reader)
		must(err, "consistency proof")
		must(tlog.CheckTree(proof, tree.N, tree.Hash, old.N, old.Hash), "consistency")
	}
	if last != string(text) {
		refuse("the archive does not end with the published head")
	}
	fmt.Printf("%d entries\n", tree.N)
}
