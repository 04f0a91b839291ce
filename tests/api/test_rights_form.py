"""The public form as a browser without scripts sends it: what it asks, what it never tells, and how much it takes."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from api_stage import serving, shop
from rights_stage import Desk, answering

from tidings.api.doors import Doors
from tidings.api.rates import Rates
from tidings.rights import proof
from tidings.rights.proof import Proofs

PUBLIC = "https://api.shop.example"


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with answering(tmp_path_factory.mktemp("shop"), public_url=PUBLIC) as found:
        yield found


def mark(desk: Desk, kind: str) -> str:
    page = desk.served.ask("GET", f"/rights/ask/{kind}")
    found = re.search(r'name="form" value="([^"]+)"', page.text)
    assert found is not None, page.text
    return found[1]


def send(desk: Desk, kind: str, typed: dict[str, Any], **headers: str) -> httpx.Response:
    given = {"form": mark(desk, kind), **typed}
    return desk.served.ask("POST", f"/rights/ask/{kind}", data=given, headers=headers)


def receipt(found: httpx.Response) -> str:
    assert found.status_code == 303, found.text
    return str(found.headers["location"]).rpartition("/")[2]


def request(desk: Desk, found: httpx.Response) -> str:
    return receipt(found).replace("-", "")[:32]


def test_a_person_asks_and_is_told_nothing_but_a_number(desk: Desk) -> None:
    found = send(desk, "erasure", {"email": "eve.canary@example.com", "place": "US-CA", "child": "yes"})
    ask = desk.of(request(desk, found))
    assert (ask.kind, ask.way, ask.assurance, ask.jurisdiction, ask.child) == (
        "erasure",
        "form",
        "claimed",
        "US-CA",
        True,
    )
    assert [(one.kind, one.value) for one in ask.identifiers] == [("email", "eve.canary@example.com")]
    page = desk.served.ask("GET", found.headers["location"])
    assert page.status_code == 200
    assert receipt(found) in page.text
    assert "canary" not in page.text
    for name in ("content-security-policy", "referrer-policy", "x-content-type-options", "x-frame-options"):
        assert name in page.headers
    assert "set-cookie" not in page.headers
    assert not re.search(r"<script|\son\w+=|src=|url\(", page.text)


def test_the_same_form_sent_twice_asks_once_and_other_answers_ask_again(desk: Desk) -> None:
    typed = {"form": mark(desk, "know"), "email": "kim@example.com"}
    twice = [desk.served.ask("POST", "/rights/ask/know", data=typed) for _ in range(2)]
    assert receipt(twice[0]) == receipt(twice[1])
    other = desk.served.ask("POST", "/rights/ask/know", data=typed | {"email": "kim2@example.com"})
    assert receipt(other) != receipt(twice[0])


def test_what_needs_proof_names_the_proven_address_alone(desk: Desk) -> None:
    """Somebody proves their own address and names another's telephone: the telephone is not asked for."""
    found = send(desk, "access", {"email": "mallory@example.com", "phone": "+15550101234", "customer": "C1"})
    assert [one.kind for one in desk.of(request(desk, found)).identifiers] == ["email"]
    out = send(desk, "opt_out", {"phone": "+1 555 010 1234", "scope": ["sms", "phone"]})
    ask = desk.of(request(desk, out))
    assert ([one.kind for one in ask.identifiers], ask.scope) == (["phone"], ("sms", "phone"))


WRONG: list[tuple[str, dict[str, Any], list[str]]] = [
    ("erasure", {}, ["email"]),
    ("erasure", {"email": "no address"}, ["email"]),
    ("erasure", {"email": "a@b.example\r\nBcc: x@y.example"}, ["email"]),
    ("opt_out", {"phone": "call me"}, ["phone", "scope"]),
    ("opt_out", {"email": "a@b.example", "scope": ["smoke"]}, ["scope"]),
    ("opt_out_sale", {}, ["email"]),
    ("rectification", {"email": "a@b.example", "field": "shoe"}, ["field", "value"]),
    ("appeal", {"email": "a@b.example", "about": "1234"}, ["about"]),
    ("know", {"email": "a@b.example", "place": "Atlantis"}, ["place"]),
]


@pytest.mark.parametrize(("kind", "typed", "fields"), WRONG)
def test_every_problem_is_told_at_its_field_and_what_was_typed_stays(
    desk: Desk, kind: str, typed: dict[str, Any], fields: list[str]
) -> None:
    before = len(desk.asks())
    found = send(desk, kind, typed)
    assert (found.status_code, len(desk.asks())) == (422, before)
    assert re.findall(r'<li><a href="#(\w+)">', found.text) == fields
    assert all(f'id="{name}-wrong"' in found.text for name in fields)
    assert "autofocus" in found.text
    assert "<title>Error: " in found.text


def test_what_was_typed_is_never_markup(desk: Desk) -> None:
    found = send(desk, "rectification", {"email": '"><script>alert(1)</script>', "field": "email", "value": "x"})
    assert found.status_code == 422
    assert "<script" not in found.text
    assert "&quot;&gt;&lt;script&gt;" in found.text


def test_a_form_of_another_page_kind_or_day_is_refused(desk: Desk) -> None:
    typed = {"email": "oli@example.com"}
    before = len(desk.asks())
    assert send(desk, "know", typed, Origin="https://evil.example").status_code == 404
    assert send(desk, "know", typed, **{"Sec-Fetch-Site": "cross-site"}).status_code == 404
    assert send(desk, "know", typed | {"form": mark(desk, "erasure")}).status_code == 422
    assert send(desk, "know", typed | {"form": "1.2.3"}).status_code == 422
    old = mark(desk, "know")
    clock = desk.served.api.clock
    desk.served.api.clock = lambda: time.time() + 24 * 3600 + 60
    try:
        late = desk.served.ask("POST", "/rights/ask/know", data=typed | {"form": old})
    finally:
        desk.served.api.clock = clock
    assert (late.status_code, "oli@example.com" in late.text, len(desk.asks())) == (422, True, before)
    assert send(desk, "know", typed, Origin=PUBLIC).status_code == 303
    assert desk.served.ask("POST", "/rights/ask/know", content=b"a=" + b"x" * 20_000).status_code == 413


def test_a_browser_that_says_do_not_sell_is_heard(desk: Desk) -> None:
    found = send(desk, "access", {"email": "gpc@example.com"}, **{"Sec-GPC": "1"})
    kinds = {(one.kind, one.way, one.assurance) for one in desk.asks().values() if one.contact == "gpc@example.com"}
    assert kinds == {("access", "form", "claimed"), ("opt_out_sale", "signal", "none")}
    assert desk.of(request(desk, found)).kind == "access"
    send(desk, "access", {"email": "no-gpc@example.com"}, **{"Sec-GPC": "0"})
    assert len([one for one in desk.asks().values() if one.contact == "no-gpc@example.com"]) == 1


def test_the_code_proves_the_address_and_a_link_that_is_only_opened_proves_nothing(desk: Desk) -> None:
    found = send(desk, "erasure", {"email": "pat@example.com"})
    code = desk.letters.code("pat@example.com")
    [mail] = desk.letters.to("pat@example.com")
    name, text = request(desk, found), mail.get_content()
    link = urlsplit(re.search(rf"{PUBLIC}(/\S+)", text)[1])  # type: ignore[index]
    assert parse_qs(link.query)["code"] == [code]
    assert "pat@example.com" not in text + str(mail["Subject"])
    opened = desk.served.ask("GET", f"{link.path}?{link.query}")
    assert code in opened.text
    assert not [one for one in desk.words() if one.request == name]
    assert desk.served.ask("POST", link.path, data={"code": "AAAAAAAAAA"}).status_code == 422
    assert desk.served.ask("POST", link.path, data={"code": code}).status_code == 200
    assert desk.served.ask("POST", link.path, data={"code": code}).status_code == 422
    [word] = [one for one in desk.words() if one.request == name]
    assert (word.action, word.says) == ("verify", {"assurance": "verified"})


def test_a_code_ends_after_five_tries_and_after_a_day(tmp_path: Path) -> None:
    settings, now = shop(tmp_path).settings, [1_000_000.0]
    proofs = Proofs(settings, lambda: now[0])
    for name in ("a" * 32, "b" * 32, "c" * 32):
        proofs.begin(name, "x@example.com")
    codes = {due.request: due.code for due in proofs.due()}
    assert [proofs.give("a" * 32, "WRONGCODE2") for _ in range(proof.TRIES)] == [False] * proof.TRIES
    assert not proofs.give("a" * 32, codes["a" * 32])
    assert not proofs.give("b" * 32, codes["c" * 32])
    now[0] += proof.GOOD_S - 1
    assert proofs.waits("c" * 32)
    assert Proofs(settings, lambda: now[0]).give("c" * 32, codes["c" * 32])
    now[0] += 2
    assert not proofs.give("b" * 32, codes["b" * 32])
    assert not proofs.give("d" * 32, "")


def test_a_mail_that_cannot_leave_waits_and_one_address_gets_three_a_day(desk: Desk, tmp_path: Path) -> None:
    pages = []
    for _ in range(5):
        found = send(desk, "erasure", {"email": "Busy@example.com"})
        page = desk.served.ask("GET", found.headers["location"]).text
        pages.append(page.replace(receipt(found), ""))
    assert len(set(pages)) == 1  # the page does not tell that no mail went
    time.sleep(1.5)  # three looks of the one who sends
    assert len(desk.letters.to("Busy@example.com")) == 3
    settings = shop(tmp_path).settings
    proofs = Proofs(settings, lambda: 1000.0)
    proofs.begin("e" * 32, "x@example.com")
    proofs.sent("e" * 32, again=True)
    assert proofs.due() == []
    assert [due.to for due in Proofs(settings, lambda: 1031.0).due()] == ["x@example.com"]
    proofs.sent("e" * 32)
    assert Proofs(settings, lambda: 2000.0).due() == []


def test_a_status_says_nothing_until_the_person_is_proven(desk: Desk) -> None:
    """Somebody who asks in another's name must not see from the page whether that person is known."""
    pages = {}
    for state, assurance in (
        ("working", "claimed"),
        ("fulfilled", "claimed"),
        ("refused", "none"),
        ("working", "verified"),
    ):
        name = f"{len(pages):032x}"
        desk.happened(name, state=state, assurance=assurance)
        text = desk.written(name)
        pages[state, assurance] = desk.served.ask("GET", f"/rights/request/{text}").text.replace(text, "")
    never = "f" * 32  # handed in, or merged into another: nothing of it is in the table
    text = desk.written(never)
    nothing = desk.served.ask("GET", f"/rights/request/{text}").text.replace(text, "")
    unproven = {page for (_, assurance), page in pages.items() if assurance != "verified"}
    assert unproven == {nothing}
    assert pages["working", "verified"] != nothing
    typo = text[:-1] + ("0" if text[-1] != "0" else "1")
    assert desk.served.ask("GET", f"/rights/request/{typo}").status_code == 404


def test_known_and_unknown_people_get_the_same_answer_in_the_same_time(desk: Desk) -> None:
    """Nobody is looked up, so there is nothing to measure; a look-up that crept in would need a table that is not open here."""
    import ast

    from tidings.api import form

    names = {node.id for node in ast.walk(ast.parse(Path(form.__file__).read_text())) if isinstance(node, ast.Name)}
    assert not names & {"Store", "Book", "identifier_hash", "KeyFiles"}
    took: dict[str, list[float]] = {"a": [], "b": []}
    answers = set()
    for number in range(12):
        who = "ab"[number % 2]
        typed = {"form": mark(desk, "know"), "email": f"{who}@example.com"}
        begun = time.perf_counter()
        found = desk.served.ask("POST", "/rights/ask/know", data=typed)
        took[who].append(time.perf_counter() - begun)
        answers.add((found.status_code, found.content, tuple(sorted(set(found.headers) - {"location"}))))
    assert len(answers) == 1
    assert median(took["a"]) < 20 * median(took["b"])


def test_a_flood_is_told_to_wait_and_nothing_that_was_taken_is_lost(tmp_path: Path) -> None:
    def narrow() -> Doors:
        return Doors(Rates(0.01, 15), Rates(100, 100), Rates(1e6, 1e6))

    with answering(tmp_path, make=narrow) as desk:
        typed = {"form": mark(desk, "know")}

        def one(number: int) -> httpx.Response:
            return desk.served.ask("POST", "/rights/ask/know", data=typed | {"email": f"p{number}@example.com"})

        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(one, range(60)))
        taken = {request(desk, each) for each in found if each.status_code == 303}
        told = [each for each in found if each.status_code == 429]
        assert (len(taken), len(told)) == (15, 45)
        assert all(int(each.headers["retry-after"]) > 0 for each in told)
        assert taken == set(desk.asks())


@pytest.mark.parametrize(
    "addresses", [["2001:db8::a:1:1:1", "2001:db8::b:2:2:2"], ["2001:db8:1:2::1", "2001:db8:1:2:ffff::"]]
)
def test_all_addresses_of_one_household_are_one_asker_and_everybody_together_is_bounded(addresses: list[str]) -> None:
    doors = Doors(Rates(0.001, 3), Rates(0.001, 6))
    assert [doors.send(addresses[n % 2]) > 0 for n in range(4)] == [False, False, False, True]
    others = [doors.send(f"::ffff:198.51.100.{n}") > 0 for n in range(4)]
    assert others == [False, False, False, True], "each is its own, and all together are over"
    failed = Rates(0.001, 3, networks=True)
    assert [failed.wait(addresses[n % 2]) > 0 for n in range(4)] == [False, False, False, True]


def test_without_a_mail_server_a_human_proves(tmp_path: Path) -> None:
    with answering(tmp_path, mail=False) as desk:
        assert "We will write to you" in desk.served.ask("GET", "/rights/ask/erasure").text
        found = send(desk, "erasure", {"email": "x@example.com"})
        assert "code" not in desk.served.ask("GET", found.headers["location"]).text


def test_where_rights_are_not_declared_there_is_no_door(tmp_path: Path) -> None:
    with serving(shop(tmp_path).settings) as served:
        for path in ("/rights", "/rights/ask/erasure", "/v1/rights/requests/" + "0" * 32):
            assert served.ask("GET", path).json()["error"]["code"] == "not_found"
