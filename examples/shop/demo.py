"""`make demo`: a round of changes from message to proof, told on one screen. A second run continues where this one ends.

Everything it tells comes from two sides that do not know each other: Tidings' own verbs, and the vendors' books.
It ends with 0 only when the books of both sides balance and agree.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, cast

from rich.console import Console

from . import changes, screen
from .prepare import HERE, prepare
from .vendors import books

SEED = 7
PORT = 18731  # the one the subscribers' files name
ROOT = HERE.parents[1]


class Pair(TypedDict):
    """One event and one subscriber. `seen_after_s` runs from the change's commit to the acknowledgement."""

    subscriber: str
    outcome: (
        str  # acknowledged | refused | superseded | erased | expired | in_doubt | dead_lettered | waiting | deferred
    )
    reason: str  # why it is not acknowledged: a rule's words or a code
    seen_after_s: float | None
    attempts: int
    ack: str  # A0 … A4
    semantics: str


class TimelineEvent(TypedDict):
    event_id: str
    change_type: str
    entity: str
    source: str
    time: str
    flags: list[str]
    pairs: list[Pair]


class Timeline(TypedDict):
    """tidings timeline WHO --json, oldest first"""

    events: list[TimelineEvent]


class Source(TypedDict):
    name: str
    messages: int
    events: int
    snapshots: int
    duplicates: int
    stale: int
    skipped: int
    quarantined: int
    masked: int
    clock_ahead: int


class Lane(TypedDict):
    subscriber: str
    acknowledged: int
    refused: int
    waiting: int
    dead_lettered: int
    in_doubt: int
    attempts: int


class Books(TypedDict):
    """With --reconcile: every (event, subscriber) pair has exactly one end, or is open and accounted for."""

    balanced: bool
    pairs: int
    outcomes: dict[str, int]
    problems: list[str]


class Status(TypedDict):
    """tidings status --reconcile --json"""

    sources: list[Source]
    lanes: list[Lane]
    refusals: dict[str, int]  # reason → pairs
    books: Books


class Quarantined(TypedDict):
    code: str
    count: int
    about: str


class Quarantine(TypedDict):
    """tidings quarantine --json"""

    codes: list[Quarantined]


class Verified(TypedDict):
    """tidings verify [RECEIPT] --json"""

    verified: bool
    entries: int
    checkpoints: int
    logs: list[dict[str, Any]]
    caveats: list[str]


@dataclass
class Told:
    """Everything the screen shows, and what is wrong with it."""

    truth: changes.Truth
    timeline: Timeline
    status: Status
    quarantine: Quarantine
    ledger: Verified
    receipt: Verified
    vendors: dict[str, screen.Vendor]
    requests: list[dict[str, Any]]
    seconds: float
    wrong: list[str] = field(default_factory=list)

    @property
    def heroine(self) -> list[TimelineEvent]:
        """This round's e-mail change, once per source that reported it."""
        latest = {event["source"]: event for event in self.timeline["events"] if event["change_type"] == "email"}
        return [latest[name] for name in sorted(latest)]


class Failed(Exception):
    """A child said no; its own words are already on the screen."""


def tidings(*arguments: str, ends: tuple[int, ...] = (0,), quiet: bool = False) -> str:
    """The seam: one verb, its stdout; its progress draws itself on stderr. `ends` are the exit codes that are an answer."""
    command = [sys.executable, "-m", "tidings.cli", *arguments]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE if quiet else None, text=True, check=False
    )
    if done.returncode not in ends:
        sys.stderr.write(done.stderr or "")
        raise Failed(f"`tidings {' '.join(arguments)}` ended with {done.returncode}")
    return done.stdout


def asked(verb: str, *arguments: str, folder: Path) -> Any:
    # `status --reconcile` ends with 1 when the books do not balance, `verify` with 6 when something is wrong: both still answer.
    ends = {"status": (0, 1), "verify": (0, 6)}.get(verb, (0,))
    return json.loads(tidings(verb, *arguments, "-C", str(folder), "--json", ends=ends, quiet=True))


def run_through(folder: Path, master: str, kills: int) -> int:
    """`tidings run` until nothing is left; before that, killed this many times at moments nobody chose. Returns how often it was."""
    command = [sys.executable, "-m", "tidings.cli", "run", "-C", str(folder), "--until-idle"]
    command += ["--master", master] if master else []
    done = 0
    for number in range(kills):
        child = subprocess.Popen(command)
        try:
            child.wait(random.uniform(5, 25 + 10 * number))
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            done += 1
        if child.wait() not in (0, -signal.SIGKILL):
            raise Failed(f"the run ended with {child.returncode}")
    if subprocess.run(command, check=False).returncode != 0:
        raise Failed("the run did not come to its end")
    return done


@contextmanager
def vendors(folder: Path, port: int = PORT) -> Iterator[Path]:
    """The twelve vendors as a child process of ours, ended by us and only by us; gives the path of their books."""
    home = folder / "data" / "vendors"
    home.mkdir(parents=True, exist_ok=True)
    held, announced = home / "books.sqlite", home / "vendors.json"
    announced.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "examples.shop.vendors",
        "--books",
        str(held),
        "--secrets",
        str(folder / "secrets"),
    ]
    command += [
        "--announce",
        str(announced),
        "--port",
        str(port),
        "--script",
        str(HERE / "vendors" / "demo.json"),
        "--with-parent",
    ]
    child = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        limit = time.monotonic() + 20
        while not announced.exists():
            if child.poll() is not None or time.monotonic() > limit:
                raise Failed(f"the vendors could not listen on 127.0.0.1:{port}; is another demo running?")
            time.sleep(0.02)
        yield held
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def next_round(folder: Path) -> int:
    """Counted before anything is written, so that an interrupted round is never written twice with other times."""
    path = folder / "data" / "vendors" / "round"
    number = int(path.read_text()) + 1 if path.exists() else 1
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(str(number))
    return number


def acknowledged(folder: Path) -> dict[str, set[str]]:
    """Which events each subscriber acknowledged, from the attempts table; no JVM."""
    from tidings.store import Store

    found: dict[str, set[str]] = {}
    for call in Store(folder / "data" / "tables").arrow("attempts", ["subscriber", "members"]).to_pylist():
        for member in call["members"]:
            if member["final"] == "acknowledged":
                found.setdefault(call["subscriber"], set()).add(member["event_id"])
    return found


def compared(folder: Path, held: Path, since: float) -> tuple[dict[str, screen.Vendor], list[str]]:
    """What the vendors' own books say of what we call acknowledged."""
    ours, wrong = acknowledged(folder), []
    seen = {name: screen.vendor(held, name, len(events), since) for name, events in ours.items()}
    wrong += [
        f"{row['vendor']} did {row['verb']} {row['times']} times for one key" for row in books.twice_applied(held)
    ]
    wrong += [f"{row['vendor']} saw a subject's events out of order" for row in books.out_of_order(held)]
    wrong += [f"{name} lost {vendor.lost} of what it acknowledged" for name, vendor in seen.items() if vendor.lost]
    rows = books.read(held, "SELECT DISTINCT key FROM effects WHERE vendor='warehouse' AND outcome='applied'")
    loaded, told = {row["key"] for row in rows}, ours.get("warehouse", set())
    if told - loaded:
        wrong.append(f"the warehouse does not hold {len(told - loaded)} events it acknowledged")
    return seen, wrong


def arrived(status: Status, round: int) -> list[str]:
    """What every round so far held against what Tidings says it read."""
    truths = [changes.compose(SEED, number, 0)[0] for number in range(1, round + 1)]
    wrong = []
    for source in status["sources"]:
        if (name := source["name"]) == "rights":  # what people asked, which is no part of the round
            continue
        events = sum(1 for truth in truths for event in truth.events if event.source == name)
        messages = sum(truth.messages[name] for truth in truths)
        if (source["messages"], source["events"]) != (messages, events):
            found = f"{source['messages']} messages and {source['events']} events"
            wrong.append(f"{name}: {found} where {messages} and {events} were written")
    return wrong


def tell(folder: Path, truth: changes.Truth, held: Path, started: float) -> Told:
    status = cast(Status, asked("status", "--reconcile", folder=folder))
    timeline = cast(Timeline, asked("timeline", truth.email, folder=folder))
    quarantine = cast(Quarantine, asked("quarantine", folder=folder))
    seen, wrong = compared(folder, held, time.time() - (time.monotonic() - started))
    requests = asked("rights", "list", "--all", folder=folder)["requests"]
    proofs = proved(folder, timeline)
    told = Told(truth, timeline, status, quarantine, *proofs, seen, requests, time.monotonic() - started)
    wrong += arrived(status, truth.round)
    if not status["books"]["balanced"]:
        wrong += status["books"]["problems"] or ["the books do not balance"]
    for what, verdict in (("the ledger", told.ledger), ("the receipt of her change", told.receipt)):
        if not verdict["verified"]:
            wrong.append(f"{what} does not verify")
    for one in told.requests:
        if one["kind"] == "opt_out" and one["state"] != "fulfilled":
            wrong.append(f"her request is {one['state']}")
    if len(told.heroine) != 2:
        wrong.append(f"her change was found in {len(told.heroine)} of 2 sources")
    told.wrong = wrong
    return told


def ask(folder: Path, truth: changes.Truth) -> None:
    """She wants no more text messages; Shopify has passed on somebody's wish to be forgotten in the round itself."""
    said = ["rights", "ask", "opt_out", "--who", f"email:{truth.email}", "--scope", "sms", "--jurisdiction", "US-CA"]
    tidings(*said, "--reference", f"round-{truth.round}", "-C", str(folder), quiet=True)
    for one in asked("rights", "list", folder=folder)["requests"]:
        if (
            one["state"] == "review"
        ):  # two shoppers share a phone number: a human looks, and that number is told to nobody
            why = ["--by", "demo", "--reason", "two people share a phone number"]
            tidings("rights", "say", one["request"], "approve", *why, "-C", str(folder), quiet=True)


def proved(folder: Path, timeline: Timeline) -> tuple[Verified, Verified]:
    """The whole ledger, and a receipt of her change that a stranger can check."""
    event = [event for event in timeline["events"] if event["change_type"] == "email"][-1]
    receipt = folder / "data" / "vendors" / "receipt.json"
    tidings("prove", event["event_id"], "-C", str(folder), "-o", str(receipt), quiet=True)
    ledger = cast(Verified, asked("verify", folder=folder))
    key = json.loads(receipt.read_text())["vkey"]
    return ledger, cast(
        Verified, json.loads(tidings("verify", str(receipt), "--vkey", key, "--json", ends=(0, 6), quiet=True))
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="demo", description="one round of the example shop, from message to proof")
    parser.add_argument("--folder", type=Path, default=HERE, help="the operator's folder (default: the example's own)")
    parser.add_argument(
        "--port", type=int, default=PORT, help="where the vendors listen; the subscribers must say the same"
    )
    parser.add_argument("--master", default="", help="a Spark master (default: this machine)")
    parser.add_argument("--kills", type=int, default=0, help="kill the run this many times at random moments first")
    given = parser.parse_args()
    folder = prepare(given.folder.absolute())
    console = Console()
    started = time.monotonic()
    try:
        with vendors(folder, given.port) as held:
            truth = changes.write(folder / "drop", SEED, next_round(folder))
            screen.opening(console, truth)
            killed = run_through(folder, given.master, given.kills)
            if given.kills:
                console.print(f"The run was killed {killed} times with SIGKILL and started again.")
            ask(folder, truth)
            run_through(folder, given.master, 0)
        told = tell(folder, truth, held, started)
    except Failed as error:
        console.print(f"[bold red]{error}[/]")
        return 1
    except KeyboardInterrupt:
        return 130
    screen.show(console, told)
    return 1 if told.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
