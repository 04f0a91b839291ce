"""Signed notes and checkpoints: one spelling, one signer, nothing read into them."""

from __future__ import annotations

import pytest

from tidings.errors import Damaged
from tidings.ledger.note import Checkpoint, Signer, Verifier, join, split

SIGNER = Signer("example.com/log", bytes(range(32)))
OTHER = Signer("example.com/other", bytes(32))
TEXT = Checkpoint("example.com/log", 7, bytes(32)).text
NOTE = SIGNER.sign(TEXT)


def test_signing_is_deterministic_and_opens() -> None:
    assert SIGNER.sign(TEXT) == NOTE
    assert SIGNER.verifier.open(NOTE) == TEXT
    assert Checkpoint.open(NOTE, SIGNER.verifier) == Checkpoint("example.com/log", 7, bytes(32))


def test_signatures_of_strangers_are_passed_over() -> None:
    text, ours = split(NOTE)
    _, theirs = split(OTHER.sign(TEXT))
    assert SIGNER.verifier.open(join(text, [*theirs * 20, *ours])) == TEXT


MALFORMED = {
    "no signature": TEXT.encode(),
    "no newline at the end": NOTE[:-1],
    "text changed": NOTE.replace(b"\n7\n", b"\n8\n"),
    "signature of another": OTHER.sign(TEXT),
    "control character": NOTE.replace(b"example.com/log\n", b"example.com/log\r\n", 1),
    "not utf-8": b"\xff" + NOTE,
    "hyphen for dash": NOTE.replace("—".encode(), b"-"),
    "stray bits": NOTE[:-3] + bytes([NOTE[-3] + 1]) + NOTE[-2:],
    "name only": NOTE.replace(b"\xe2\x80\x94 example.com/log ", b"\xe2\x80\x94 example.com/log2 "),
    "empty": b"",
    "two blank lines": TEXT.encode() + b"\n\n" + NOTE[len(TEXT) + 1 :],
}


@pytest.mark.parametrize("note", MALFORMED.values(), ids=MALFORMED.keys())
def test_other_notes_are_refused(note: bytes) -> None:
    with pytest.raises(Damaged):
        Checkpoint.open(note, SIGNER.verifier)


CHECKPOINTS = [
    "",
    "a\n",
    "a\n1\n",
    "a\n01\nX\n",
    "a\n-1\n" + "A" * 43 + "=\n",
    "a\n1\nAA==\n",
    "a\n1\n" + "A" * 43 + "=",
    "\n1\n",
]


@pytest.mark.parametrize("text", CHECKPOINTS)
def test_other_checkpoints_are_refused(text: str) -> None:
    with pytest.raises(Damaged):
        Checkpoint.parse(text)


def test_a_checkpoint_of_another_log_is_refused() -> None:
    with pytest.raises(Damaged, match="one of example"):
        Checkpoint.open(SIGNER.sign(Checkpoint("example.com/elsewhere", 7, bytes(32)).text), SIGNER.verifier)


def test_keys_are_read_back_and_bad_ones_refused() -> None:
    vkey = SIGNER.verifier.vkey
    assert Verifier.parse(vkey + "\n") == SIGNER.verifier
    name, key_id, key = vkey.split("+", 2)
    for bad in (
        f"other+{key_id}+{key}",
        f"{name}+00000000+{key}",
        f"{name}+{key_id}",
        f"{name}+{key_id}+Ag==",
        "",
        "++",
    ):
        with pytest.raises(Damaged):
            Verifier.parse(bad)
