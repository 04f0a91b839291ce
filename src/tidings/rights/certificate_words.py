"""Do page, paper and readme of a certificate say what its claims say? They are written again from the claims and compared.

A page of another layout, or a paper that another library drew, cannot be compared byte for byte: that is said, and what was checked
is the JSON. One that says it is of our own layout and differs was changed, by whoever signed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError
from typing import Any

from tidings.errors import Damaged
from tidings.ledger.verification import Verdict
from tidings.rights.certificate_page import LAYOUT, page, readme

PAGE, PAPER, README = "certificate.html", "certificate.pdf", "README.txt"
MOST_DRAWN = 512 * 1024  # bytes of claims; a paper of more takes too long to draw for a stranger
OTHERWISE = "the sentences of its arithmetic are not those of this version of Tidings; the numbers in certificate.json were checked"
NOT_COMPARED = "{} was not compared: {}; certificate.json is what was checked"


def compared(files: Mapping[str, bytes], said: Mapping[str, Any], again: Mapping[str, Any], verdict: Verdict) -> None:
    """`said` stands in the archive and `again` was computed; they differ in sentences at most."""
    if said != again:
        verdict.caveats.append(OTHERWISE)
    found = files.get(PAGE, b"")
    if f'content="{LAYOUT}"'.encode() not in found[:1024]:
        verdict.caveats.append(NOT_COMPARED.format(f"{PAGE} and {PAPER}", "another version of Tidings made them"))
        return
    _held(PAGE, found == page(said).encode(), verdict)
    _held(README, files.get(README) == readme(said).encode(), verdict)
    _paper(files, said, verdict)


def _paper(files: Mapping[str, bytes], said: Mapping[str, Any], verdict: Verdict) -> None:
    from tidings.rights.certificate_pdf import made_by, pdf

    found = files.get(PAPER, b"")
    try:
        ours = made_by()
    except PackageNotFoundError:
        ours = ""
    if f"({LAYOUT}, ".encode() not in found:
        _held(PAPER, False, verdict)
    elif not ours or f"({ours})".encode() not in found:
        verdict.caveats.append(NOT_COMPARED.format(PAPER, "it was drawn by another fpdf2 than is installed here"))
    elif len(files["certificate.json"]) > MOST_DRAWN:
        verdict.caveats.append(NOT_COMPARED.format(PAPER, "it is too long"))
    else:
        _held(PAPER, found == pdf(said), verdict)


def _held(name: str, fits: bool, verdict: Verdict) -> None:
    if not fits:
        told = (f"{name}, which does not say what certificate.json says", "the same words", "Do not rely on it.")
        verdict.wrong(str(Damaged("certificate_words", *told)))
