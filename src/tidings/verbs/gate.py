"""`tidings gate`: what may be done, what waits for a person, how far the anchors count, and whose rules are in force."""

from __future__ import annotations

import typer

from tidings.verbs import gate_bundles, gate_expire, gate_may, gate_review, gate_rollout, gate_rules

PARTS = (gate_may, gate_review, gate_rollout, gate_bundles, gate_rules, gate_expire)


def register(app: typer.Typer) -> None:
    gate = typer.Typer(
        no_args_is_help=True, help="What the gate decides, and how far it counts.", rich_markup_mode=None
    )
    gate.callback()(_gate)
    for part in PARTS:
        part.register(gate)
    app.add_typer(gate, name="gate")


def _gate() -> None:
    """What the gate decides, and how far it counts."""
