"""`tidings gate`: how far the anchors count, and whose rules are in force."""

from __future__ import annotations

import typer

from tidings.verbs import gate_bundles, gate_expire, gate_rollout, gate_rules


def register(app: typer.Typer) -> None:
    gate = typer.Typer(
        no_args_is_help=True, help="What the gate decides, and how far it counts.", rich_markup_mode=None
    )
    gate.callback()(_gate)
    gate_rollout.register(gate)
    gate_bundles.register(gate)
    gate_rules.register(gate)
    gate.command("expire")(gate_expire.expire)
    app.add_typer(gate, name="gate")


def _gate() -> None:
    """What the gate decides, and how far it counts."""
