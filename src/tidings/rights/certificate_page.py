"""A certificate for people: the claims as headings, sentences and tables, once for the page and once for print. No script, nothing from outside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

CERTIFICATE = "certificate"
# Counted up with every change of what a page or a paper shows: who checks one made by another layout says that it was not compared.
LAYOUT = "Tidings certificate layout 1"
_STYLE = """
:root { color-scheme: light }
body { font: 1rem/1.55 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 62rem; margin: 0 auto; padding: 1.5rem }
h1 { font-size: 1.7rem; line-height: 1.2 } h2 { font-size: 1.25rem; margin-top: 2rem }
.standing { border: .2rem solid #1a1a1a; padding: .75rem 1rem; font-weight: 600 }
.wide { overflow-x: auto } .wide:focus-visible { outline: .2rem solid #0b4f9e; outline-offset: .2rem }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 }
caption { text-align: left; font-weight: 600; padding: .25rem 0 }
th, td { border: 1px solid #595959; padding: .35rem .5rem; text-align: left; vertical-align: top; overflow-wrap: anywhere }
th { background: #f0f0f0 } li { margin: .2rem 0 }
@media print { body { font-size: 10pt; padding: 0; max-width: none } h2 { break-after: avoid } tr { break-inside: avoid } .wide { overflow: visible } }
"""
_STANDING = {
    "certificate": "This request is fulfilled. Every recipient acknowledged, was outranked by something newer, or is excepted.",
    "interim statement": "This is not a certificate. The request is still open; below is how far it is and what is missing.",
    "closing statement": "This is not a certificate. The request was closed without being carried out.",
}


@dataclass(frozen=True)
class Table:
    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    title: str
    lines: tuple[str, ...] = ()
    items: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()


def title(said: Mapping[str, Any]) -> str:
    return f"{said['document'].capitalize()}: {said['asked']['kind'].replace('_', ' ')} request {said['request']}"


def standing(said: Mapping[str, Any]) -> str:
    return f"{_STANDING[said['document']]} As of {moment(said['standing']['as_of'])}."


def sections(said: Mapping[str, Any]) -> Iterator[Section]:
    """The whole document in reading order."""
    if said["standing"]["missing"]:
        yield Section("What is missing", items=tuple(said["standing"]["missing"]))
    yield _asked(said)
    yield from _time(said)
    yield _recipients(said)
    if said["erasure"]:
        yield _erasure(said["erasure"])
    letters = tuple((one["letter"], moment(one["at"]), one["digest"], f"{one['entry']:04d}") for one in said["letters"])
    table = Table("Letters that were sent", ("Letter", "Sent", "Digest of its text", "Ledger entry"), letters)
    yield Section("Letters to the person", tables=(table,)) if letters else Section("Letters to the person", ("None.",))
    steps = tuple(
        (
            str(one["step"]),
            moment(one["at"]),
            one["what"],
            one["state"],
            one["by"],
            one["reason"],
            f"{one['entry']:04d}",
        )
        for one in said["steps"]
    )
    head = ("Step", "When", "What", "State after it", "By", "Reason", "Ledger entry")
    yield Section("Every step", tables=(Table("Steps of the request", head, steps),))
    yield Section("How to check this", tuple(checking(said)))


def checking(said: Mapping[str, Any]) -> Iterator[str]:
    yield "Everything above is read off entries of an append-only ledger; they are in this archive with proofs that they are in it."
    yield "Run `tidings verify FILE.zip --key KEYFILE` with the key you have from the operator. It needs no network and no data of the operator."
    yield f"The ledger is {said['ledger']}. Checkpoints and proofs are in the public C2SP formats, so other tools can check them too."
    yield "The ledger is unwitnessed: nobody outside the operator has co-signed its heads. Laws are data with a source, not legal advice."


def _asked(said: Mapping[str, Any]) -> Section:
    asked = said["asked"]
    named = {"kind": "Kind", "meaning": "What it means", "scope": "Scope", "received": "Received", "way": "Way in"}
    named |= {"jurisdiction": "Jurisdiction", "regulation": "Regulation named", "assurance": "Identity"}
    rows = tuple((label, moment(asked[name])) for name, label in named.items() if asked.get(name))
    return Section("What was asked", tables=(Table("The request", ("What", "Value"), rows),))


def _time(said: Mapping[str, Any]) -> Iterator[Section]:
    deadline = moment(said["deadline"]["attested"]) or "none"
    lines = [f"The deadline in the ledger: {deadline}."]
    lines += [f"The clock stood still: {moment(one.replace('..', ' to '))}." for one in said["pauses"]]
    if extension := said["extension"]:
        noticed = (
            f"told in a letter on {moment(extension['noticed'])}" if extension["noticed"] else "no letter told of it"
        )
        by = f" by {extension['by']}" if extension["by"] else ""
        lines.append(
            f"Extended on {moment(extension['at'])}{by}, {noticed}. Reason: {extension['reason'] or 'none given'}."
        )
    yield Section("Time", tuple(lines if said["clocks"] else [*lines, "No law row was used."]))
    for clock in said["clocks"]:
        version = f"text in force from {clock['version']['from'] or 'the beginning'}"
        version += f" to {clock['version']['to']}" if clock["version"]["to"] else ""
        about = f"{clock['law']}, {clock['citation']} ({clock['place']}; {version}): {clock['met']}."
        source = f"Source: {clock['source']}. Confidence in the number: {clock['confidence']}."
        name = f"Clock: {clock['law']}, {clock['citation']}"
        yield Section(name, (about, clock["summary"], source), tuple(clock["steps"]))


def _recipients(said: Mapping[str, Any]) -> Section:
    head = ("Recipient", "Told by", "Notice", "Attempts", "How it ended", "When", "Ledger entries")
    rows = tuple(_recipient(one) for one in said["recipients"])
    if not rows:
        return Section("Recipients", ("No recipient is named in the steps of this request.",))
    return Section("Recipients", tables=(Table("Who was told, and how it ended", head, rows),))


def _recipient(one: Mapping[str, Any]) -> tuple[str, ...]:
    end = one["end"]
    notice = moment(one["notice"].get("at", "")) or ("by hand" if one["way"] == "task" else "not yet")
    tries = "; ".join(f"{moment(each['at'])} {each['outcome']} ({each['strength']})" for each in one["attempts"])
    told = "open"
    if end:
        told = f"{end['outcome']} ({end['strength']})"
    if end.get("approvers"):
        told = f"excepted by {' and '.join(end['approvers'])}: {end['reason'] or 'no reason given'}"
    if end.get("evidence"):
        told = f"done by {end['by']}, evidence {end['evidence']}"
    entries = ", ".join(f"{number:04d}" for number in end.get("entries", ()))
    return one["recipient"], one["way"], notice, tries or "none", told, moment(end.get("at", "")), entries


def _erasure(erasure: Mapping[str, Any]) -> Section:
    entries = ", ".join(f"{number:04d}" for number in erasure["entries"])
    said = f"{erasure['keys_destroyed']} key rows of the person were destroyed on {moment(erasure['at'])}."
    stone = f"Tombstone generation {erasure['generation']}; basis: {erasure['basis']}. Ledger entries: {entries}."
    return Section("Our own keys", (said, stone))


def moment(text: str) -> str:
    """A time of the ledger without its fractions."""
    return text.replace(".000000Z", "Z").replace("T", " ").replace("Z", " UTC") if text[:2] == "20" else text


def page(said: Mapping[str, Any]) -> str:
    """The page for people."""
    name = escape(title(said))
    body = "\n".join(_section(number, one) for number, one in enumerate(sections(said), 1))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="generator" content="{LAYOUT}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{name}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{name}</h1>\n"
        f'<p class="standing">{escape(standing(said))}</p>\n{body}\n</main>\n</body>\n</html>\n'
    )


def _section(number: int, one: Section) -> str:
    lines = "".join(f"<p>{escape(line)}</p>\n" for line in one.lines if line)
    items = "".join(f"<li>{escape(item)}</li>\n" for item in one.items)
    tables = "".join(_table(f"t{number}", table) for table in one.tables)
    inner = lines + (f"<ol>\n{items}</ol>\n" if items else "") + tables
    return f'<section aria-labelledby="s{number}">\n<h2 id="s{number}">{escape(one.title)}</h2>\n{inner}</section>'


def _table(name: str, table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.head)
    rows = "".join(f"<tr>{_cells(row)}</tr>\n" for row in table.rows)
    opening = f'<div class="wide" role="region" aria-labelledby="{name}" tabindex="0">\n<table>\n'
    caption = f'<caption id="{name}">{escape(table.caption)}</caption>\n'
    return f"{opening}{caption}<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n</div>\n"


def _cells(row: Iterable[str]) -> str:
    first, *rest = row
    return f'<th scope="row">{escape(first)}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in rest)


def readme(said: Mapping[str, Any]) -> str:
    """What lies in the archive, for whoever opens it."""
    return "\n".join([title(said), "", standing(said), "", *checking(said), "", *_FILES, ""])


_FILES = (
    "certificate.html, certificate.pdf   the same for people",
    "certificate.json                    the same for machines",
    "entries/NNNN.json                   the ledger's entries, byte for byte",
    "entries/NNNN.tlog                   a proof (c2sp.org/tlog-proof) that the entry is in the log whose head it carries",
    "entries/NNNN.member.json            for a call that carried several events: the place of this one among them",
    "heads/NNNN.json, heads/NNNN.tlog    those heads, each an entry of the root log, with its proof",
    "checkpoint                          the root log's signed head (c2sp.org/tlog-checkpoint)",
    "vkey                                the public key; compare it with one you have from elsewhere",
    "laws.json                           the law rows that were counted by, with citation, source and confidence",
    "parts.json                          the recipients that each step named; the step attests their root",
    "manifest.note                       the digest of every file, signed by the operator (c2sp.org/signed-note)",
)
