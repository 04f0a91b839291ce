"""An archive from a stranger: bounded work, a coded reason, never a crash and never a yes."""

from __future__ import annotations

import io
import json
import random
import stat
import struct
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from certificate_story import Story, whole_once
from test_certificate import signed_again

from tidings.rights.certificate_archive import MAX_ARCHIVE, MAX_FILES, pack, unpack
from tidings.rights.certificate_check import verify_certificate

FUZZED = 2_000


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return whole_once(tmp_path_factory)


@pytest.fixture(scope="module")
def archive(story: Story) -> bytes:
    return story.issue().archive


def zipped(*members: tuple[str, bytes], method: int = zipfile.ZIP_STORED, comment: bytes = b"") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as made:
        for name, data in members:
            made.writestr(name, data)
        made.comment = comment
    return out.getvalue()


def linked() -> bytes:
    out, link = io.BytesIO(), zipfile.ZipInfo("certificate.json")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(out, "w") as made:
        made.writestr(link, "/etc/passwd")
    return out.getvalue()


@pytest.mark.filterwarnings("ignore:Duplicate name")
def hostile() -> dict[str, bytes]:
    member = struct.Struct("<4sHHHHHIIIHH")
    huge = member.pack(b"PK\3\4", 20, 0, 0, 0, 33, 0, 2**32 - 1, 2**32 - 1, 1, 0) + b"a"
    return {
        "nothing": b"",
        "no archive": b"PK" + bytes(100),
        "a bomb": zipped(("certificate.json", bytes(50_000_000)), method=zipfile.ZIP_DEFLATED),
        "a climbing name": zipped(("../../etc/cron.d/x", b"x")),
        "a rooted name": zipped(("/etc/passwd", b"x")),
        "a name with a drive": zipped(("C:\\x", b"x")),
        "a name twice": pack({"vkey": b"a"})[:35] * 2,
        "a link": linked(),
        "another size": huge,
        "too many files": pack({f"a{number}": b"" for number in range(MAX_FILES + 1)}),
        "too long": bytes(MAX_ARCHIVE + 1),
        "cut off": member.pack(b"PK\3\4", 20, 0, 0, 0, 33, 0, 5, 5, 1, 0)[:20],
        "a comment": zipped(("vkey", b"x"), comment=b"hello"),
    }


@pytest.mark.parametrize("name", hostile())
def test_a_hostile_archive_is_refused_at_once(name: str) -> None:
    data, begun = hostile()[name], time.monotonic()
    verdict = verify_certificate(data)
    assert not verdict.good
    assert "certificate_" in verdict.problems[0]
    assert time.monotonic() - begun < 5  # reading it is milliseconds; this only catches work that grows without end


def refuses(story: Story, files: dict[str, bytes]) -> bool:
    """Even with every signature in order."""
    verdict = verify_certificate(signed_again(story, files), story.key)
    return not verdict.good and "[" in verdict.problems[0]


ODD = [b"", b"null", b"[]", b"{}", b'"x"', b"\xff\xfe", b"[" * 100_000, b"1" * 10_000, b"NaN", b'{"a":1e999}']


@pytest.mark.parametrize("name", ["certificate.json", "laws.json", "parts.json", "vkey", "checkpoint"])
def test_a_file_of_another_form_is_refused(story: Story, archive: bytes, name: str) -> None:
    files = unpack(archive)
    assert [odd[:20] for odd in ODD if not refuses(story, files | {name: odd})] == []
    assert refuses(story, {other: data for other, data in files.items() if other != name})


def test_law_rows_of_another_form_are_refused(story: Story, archive: bytes) -> None:
    files = unpack(archive)
    whole_laws = json.loads(files["laws.json"])
    believed = []
    for name in whole_laws:
        for odd in (None, 3, "x", [], [[]], {"x": 3}, {"us-ca-ccpa-delete": {"versions": [{"window": 10**30}]}}):
            if odd == whole_laws[name] or (not odd and not whole_laws[name]):
                continue
            if not refuses(story, files | {"laws.json": json.dumps(whole_laws | {name: odd}).encode()}):
                believed.append((name, odd))
    # A calendar or a promise that no law here counts by changes nothing.
    assert [one for one in believed if one[0] in ("used", "statutes")] == []


Damage = Callable[[bytearray, random.Random], None]


def flip(data: bytearray, dice: random.Random) -> None:
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)


def cut(data: bytearray, dice: random.Random) -> None:
    del data[dice.randrange(len(data)) :]


def lose(data: bytearray, dice: random.Random) -> None:
    at = dice.randrange(len(data))
    del data[at : at + 1 + dice.randrange(64)]


def grow(data: bytearray, dice: random.Random) -> None:
    at = dice.randrange(len(data) + 1)
    data[at:at] = dice.randbytes(1 + dice.randrange(32))


def twice(data: bytearray, dice: random.Random) -> None:
    at = dice.randrange(len(data))
    data[at:at] = data[at : at + 1 + dice.randrange(2_000)]


def test_a_mutation_never_crashes_and_never_verifies(story: Story, archive: bytes) -> None:
    dice, believed = random.Random(20261116), []
    damages: list[Damage] = [flip, flip, flip, cut, lose, grow, twice]
    for number in range(FUZZED):
        data = bytearray(archive)
        damages[number % len(damages)](data, dice)
        if bytes(data) != archive and verify_certificate(bytes(data)).good:
            believed.append(number)
    assert believed == []


def test_a_mutated_file_is_refused_though_it_is_signed_again(story: Story, archive: bytes) -> None:
    """Past the archive and the signature: what is inside must hold by itself. Pages and the readme are words, not evidence."""
    files = unpack(archive)
    evidence = sorted(
        name for name in files if name.startswith(("entries/", "heads/")) or name in ("checkpoint", "vkey")
    )
    dice, believed = random.Random(7), []
    for _ in range(100):
        name = dice.choice(evidence)
        data = bytearray(files[name])
        flip(data, dice)
        if not refuses(story, files | {name: bytes(data)}):
            believed.append(name)
    assert believed == []


def test_what_is_left_of_an_unpacked_copy_is_not_taken_for_it(archive: bytes, tmp_path: Path) -> None:
    files = unpack(archive)
    repacked = zipped(*files.items(), method=zipfile.ZIP_DEFLATED)
    assert "certificate_archive" in verify_certificate(repacked).problems[0]
