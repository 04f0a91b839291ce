"""What a measurement used: processor time and memory of this process and all it started, as Linux counts them.

On a machine that does other things a rate says little; the processor time of a delivery says more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def _tree() -> Iterator[Path]:
    """The folder under /proc of this process and of everything below it."""
    below: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        if fields := _stat(place):
            below.setdefault(int(fields[1]), []).append(int(place.name))
    found = [os.getpid()]
    for number in found:
        found += below.get(number, [])
        yield Path(f"/proc/{number}")


def _stat(place: Path) -> list[str]:
    """From the state on; empty when the process is gone."""
    try:
        return (place / "stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return []


def processor_s() -> float:
    """Of all that live, and of the children they waited for."""
    return sum(sum(map(int, fields[11:15])) for place in _tree() if (fields := _stat(place))) / _TICKS


def memory_mb() -> int:
    """The most that each of them ever held, together."""
    found = 0
    for place in _tree():
        try:
            lines = (place / "status").read_text().splitlines()
        except OSError:
            continue
        found += sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return found // 1024
