"""The archive of a certificate: a zip in one spelling only, so that the same files are the same bytes and a changed byte is another archive.

Members are stored, not compressed: there is nothing to inflate. The reader walks the members in front, within bounds, packs them again and
compares; whatever else an archive can hide (a second directory, links, comments, gaps, names that climb) makes another archive.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Mapping

from tidings.errors import Damaged

MAX_ARCHIVE = 32 * 1024 * 1024
MAX_FILES = 8_192
# The last part of a name is what limits it; folders are one deep.
LIMITS = {"json": 4 * 1024 * 1024, "tlog": 8 * 1024, "html": 4 * 1024 * 1024, "pdf": 8 * 1024 * 1024}
_OTHERWISE = 256 * 1024
_NAME = re.compile(r"([a-z]{1,16}/)?[a-zA-Z0-9][a-zA-Z0-9-]{0,63}(\.[a-z]{1,10}){0,2}")
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_END = struct.Struct("<4sHHHHIIH")
_VERSION, _EPOCH, _FILE = 20, 0x21, 0o100644 << 16  # 1980-01-01; a plain file that everybody may read


def pack(files: Mapping[str, bytes]) -> bytes:
    """The one archive of these files."""
    front, directory = bytearray(), bytearray()
    for name, data in sorted(files.items()):
        crc, size, at = zlib.crc32(data), len(data), len(front)
        spelled = name.encode("ascii")
        front += _LOCAL.pack(b"PK\3\4", _VERSION, 0, 0, 0, _EPOCH, crc, size, size, len(spelled), 0) + spelled + data
        made = _VERSION | 3 << 8  # by a Unix system, so that the permissions count
        directory += _CENTRAL.pack(
            b"PK\1\2", made, _VERSION, 0, 0, 0, _EPOCH, crc, size, size, len(spelled), 0, 0, 0, 0, _FILE, at
        )
        directory += spelled
    end = _END.pack(b"PK\5\6", 0, 0, len(files), len(files), len(directory), len(front), 0)
    return bytes(front + directory + end)


def unpack(data: bytes) -> dict[str, bytes]:
    """The files, if this is their one archive; Damaged otherwise."""
    if len(data) > MAX_ARCHIVE:
        raise _refused(f"an archive of {len(data)} bytes", f"at most {MAX_ARCHIVE}")
    files: dict[str, bytes] = {}
    at = 0
    while data[at : at + 4] == b"PK\3\4":
        name, at, end = _member(data, at)
        if name in files or len(files) >= MAX_FILES:
            raise _refused("a name that comes twice, or too many files", f"each name once, at most {MAX_FILES}")
        files[name] = data[at:end]
        at = end
    if pack(files) != data:
        raise _refused("an archive that was packed by another hand", "the archive as it was issued, byte for byte")
    return files


def _member(data: bytes, at: int) -> tuple[str, int, int]:
    """Name, first byte and end of the member whose header is here."""
    if len(data) < at + _LOCAL.size:
        raise _refused("a header that breaks off", "a whole archive")
    _, _, flags, method, _, _, _, packed, size, length, extra = _LOCAL.unpack_from(data, at)
    if flags or method or extra or packed != size:
        raise _refused("a member that is compressed, encrypted or has extra fields", "plain stored files")
    begin = at + _LOCAL.size + length
    spelled = data[begin - length : begin]
    name = spelled.decode("ascii", errors="replace")
    if not _NAME.fullmatch(name):
        raise _refused("a name with other characters or folders", "the names that docs/certificates.md lists")
    if size > LIMITS.get(name.rpartition(".")[2], _OTHERWISE) or begin + size > len(data):
        raise _refused(f"{name} with {size} bytes", "less, and as many as are there")
    return name, begin, begin + size


def _refused(found: str, expected: str) -> Damaged:
    return Damaged("certificate_archive", found, expected, "Ask for it again; do not open it.")
