"""A certificate on paper: the same sections as the page, with tagged headings, an outline, a title and a language.

The built-in fonts know Latin letters only; a name in another script is shown with question marks here and exactly in the page and the JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from tidings.errors import Refused
from tidings.rights.certificate_page import LAYOUT, Section, Table, sections, standing, title

if TYPE_CHECKING:
    from fpdf import FPDF

_LIKE = str.maketrans({"…": "...", "—": "-", "–": "-", "’": "'", "“": '"', "”": '"', "→": "->"})


def made_by() -> str:
    """Which layout, drawn by which library: papers of the same two are compared byte for byte."""
    return f"{LAYOUT}, fpdf2 {version('fpdf2')}"


def pdf(said: Mapping[str, Any]) -> bytes:
    """The same bytes for the same claims."""
    paper = _paper(title(said), datetime.fromisoformat(said["standing"]["as_of"]))
    _heading(paper, title(said), 0)
    paper.set_font("helvetica", "B", 11)
    _line(paper, standing(said))
    for one in sections(said):
        _section(paper, one)
    return bytes(paper.output())


def _paper(name: str, moment: datetime) -> FPDF:
    try:
        from fpdf import FPDF, TextStyle
    except ImportError:
        now = "Install it: pip install 'tidings[certificates]'."
        raise Refused("extra_missing", "no package fpdf2", "the extra `certificates`", now) from None
    paper = FPDF(format="A4")
    paper.set_creation_date(moment)
    paper.set_title(_latin(name))
    paper.set_lang("en")
    paper.set_producer("Tidings")
    paper.set_creator(made_by())
    # The same words are the same bytes, whichever library compresses where it is checked.
    paper.set_compression(False)
    paper.set_margin(18)
    paper.set_auto_page_break(True, 18)
    sizes = ((16, 4), (12, 4))
    paper.set_section_title_styles(
        *(TextStyle("helvetica", "B", size, t_margin=above, b_margin=2) for size, above in sizes)
    )
    paper.add_page()
    paper.set_font("helvetica", "", 9)
    return paper


def _section(paper: FPDF, one: Section) -> None:
    _heading(paper, one.title, 1)
    paper.set_font("helvetica", "", 9)
    for line in one.lines:
        _line(paper, line)
    for number, item in enumerate(one.items, 1):
        _line(paper, f"{number}. {item}")
    for table in one.tables:
        _table(paper, table)


def _heading(paper: FPDF, text: str, level: int) -> None:
    paper.start_section(_latin(text), level=level)


def _line(paper: FPDF, text: str) -> None:
    paper.multi_cell(0, 4.6, _latin(text), new_x="LMARGIN", new_y="NEXT")
    paper.ln(1)


def _table(paper: FPDF, table: Table) -> None:
    paper.set_font("helvetica", "", 7)
    with paper.table(line_height=3.6, text_align="LEFT") as drawn:
        for cells in (table.head, *table.rows):
            row = drawn.row()
            for cell in cells:
                row.cell(_latin(cell))
    paper.ln(2)


def _latin(text: str) -> str:
    return text.translate(_LIKE).encode("latin-1", errors="replace").decode("latin-1")
