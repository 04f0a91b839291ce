"""Every law we carry is spoken of by a rule: a clock, a refusal, or a tag in the attestation."""

from __future__ import annotations

import csv
import os
from functools import cache
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tidings.gate.loading import catalogue_statutes, compile_rules
from tidings.policy import read

FACTS = Path(os.environ.get("TIDINGS_FACTS") or Path(__file__).parents[2].parent / "shared" / "facts")

# Laws that set no clock for passing anything on, and the statute that stands for each.
WITHOUT_CLOCK = {
    "GDPR Art. 6": "eu-gdpr-6",
    "GDPR Art. 28": "eu-gdpr-28",
    "GDPR Art. 32": "eu-gdpr-32",
    "GDPR Art. 35": "eu-gdpr-35",
    "GDPR Arts 44-49": "eu-gdpr-44-49",
    "standard contractual clauses": "eu-scc",
    "IDTA": "gb-idta",
    "DSA": "eu-dsa",
    "DMA": "eu-dma",
    "AI Act Art. 6": "eu-aia-6",
    "AI Act Art. 13": "eu-aia-13",
    "AI Act Art. 14": "eu-aia-14",
    "AI Act Art. 15": "eu-aia-15",
    "AI Act Art. 26": "eu-aia-26",
    "AI Act Art. 27": "eu-aia-27",
    "ADA": "us-ada",
    "WCAG 2.2": "gl-wcag22",
    "EAA": "eu-eaa",
    "s. 508": "us-508",
    "Lanham Act": "us-lanham",
    "Robinson-Patman Act": "us-robinson-patman",
    "UDAP": "us-udap",
    "CFPB UDAAP": "us-cfpb-udaap",
    "COSO": "gl-coso",
    "ASC 606": "us-asc-606",
    "ASC 810": "us-asc-810",
    "ASC 280": "us-asc-280",
    "Regulation S-K": "us-sec-regsk",
    "s. 13(b)(2)": "us-sec-13b2",
    "CFAA": "us-cfaa",
    "DMCA": "us-dmca",
    "NIST AI RMF": "gl-nist-ai-rmf",
    "SP 800-218A": "gl-nist-800-218a",
    "ISO 42001": "gl-iso42001",
    "FINRA 2210": "us-finra-2210",
}


@cache
def cited() -> frozenset[str]:
    """What the rules of all bundles cite."""
    shelf = files("tidings").joinpath("catalog/anchors")
    names = sorted(entry.name.removesuffix(".yaml") for entry in shelf.iterdir() if entry.name.endswith(".yaml"))
    with TemporaryDirectory() as folder:
        Path(folder, "all.yaml").write_text(f"include: [{', '.join(names)}]\n", encoding="utf-8")
        policies, problems = read(Path(folder), "policy")
    rules, wrong = compile_rules(policies.rules, catalogue_statutes()[0])
    assert [str(problem) for problem in (*problems, *wrong)] == []
    return frozenset(name for rule in rules for name in rule.statutes)


def test_every_statute_of_the_catalogue_is_cited() -> None:
    assert sorted(set(catalogue_statutes()[0]) - cited()) == []


def test_every_law_of_the_list_is_cited() -> None:
    path = FACTS / "statutes.csv"
    if not path.is_file():
        pytest.skip(f"no list of laws at {path}; set TIDINGS_FACTS")
    with path.open(encoding="utf-8", newline="") as lines:
        listed = {row["id"] for row in csv.DictReader(lines)}
    assert len(listed) > 200
    assert sorted(listed - cited()) == []


@pytest.mark.parametrize(("law", "statute"), WITHOUT_CLOCK.items(), ids=WITHOUT_CLOCK)
def test_a_law_without_a_clock_is_cited_too(law: str, statute: str) -> None:
    carried = catalogue_statutes()[0]
    assert statute in carried, law
    assert all(version.unit == "none" for version in carried[statute].versions)
    assert statute in cited(), law
