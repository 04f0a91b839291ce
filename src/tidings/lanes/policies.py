"""A policy that comes into force is attested before anything is decided with it: its version, digest, modes, who answered
for them, and the bundles that were taken in.

The row goes to the attempts under the name `_policy`, which no subscriber can have; from there the ledger takes it. What was attested
last is read back from the table itself, so a stop between the two changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import pyarrow.dataset as ds

from tidings.bundles import Provenance
from tidings.gate.policy import Policy
from tidings.gate.rollout import Step
from tidings.lanes.attempts import policy_row, stamp, write
from tidings.ledger.attestation import PolicyChanged
from tidings.store import Store

LANE = "_policy"


def attest_policy(
    store: Store,
    policy: Policy,
    steps: Mapping[str, Sequence[Step]],
    bundles: Iterable[Provenance],
    attestor: str,
    now: float,
) -> bool:
    """True when the policy was not in force before and its coming is on record now."""
    previous = in_force(store)
    if previous == policy.version:
        return False
    modes = {anchor: _said(entries[-1]) for anchor, entries in sorted(steps.items()) if entries}
    entry = PolicyChanged(
        attestor=attestor,
        timestamp=stamp(now),
        policy_version=policy.version,
        previous_version=previous or "none",
        policy_digest=policy.fingerprint,
        bundles=[f"{one.name} sha256:{one.digest} {one.signed_by or 'unsigned'}" for one in bundles] or None,
        reason="; ".join(f"{anchor}: {said}" for anchor, said in modes.items()) or "every anchor is enforced",
    )
    number = (store.transaction_version("attempts", LANE) or 0) + 1
    folder = store.fresh("attempts")
    write([policy_row(LANE, number, now, entry.encode())], folder)
    return store.commit("attempts", folder, app=LANE, version=number)


def in_force(store: Store) -> str:
    """The version that was attested last; empty when none was."""
    return str(_last(store).get("policy_version", ""))


def in_force_since(store: Store) -> float:
    """When the policy that was attested last came into force."""
    said = _last(store).get("timestamp")
    return datetime.fromisoformat(said).timestamp() if said else 0.0


def _last(store: Store) -> dict[str, str]:
    if store.version("attempts") is None:
        return {}
    rows = store.arrow("attempts", ["cycle", "entry"], filter=ds.field("lane") == LANE).sort_by("cycle")
    found: dict[str, str] = json.loads(rows["entry"][-1].as_py()) if rows.num_rows else {}
    return found


def _said(step: Step) -> str:
    share = f" {step.share:.2%}" if step.mode == "canary" else ""
    counsel = f", counsel {step.counsel}" if step.counsel else ""
    return f"{step.mode}{share} since {step.since}{counsel}"[:200]
