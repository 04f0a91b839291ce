"""`tidings gate`: what is asked of the gate itself. Each question is a module of its own, named here."""

from __future__ import annotations

import importlib

import typer

# Modules of tidings.verbs, each with `register(app)`.
QUESTIONS = ("gate_may", "gate_review", "gate_rollout")


def register(app: typer.Typer) -> None:
    gate = typer.Typer(no_args_is_help=True, help="Ask the gate, and say how far it counts.", rich_markup_mode=None)
    gate.callback()(_questions)
    for module in QUESTIONS:
        importlib.import_module(f"tidings.verbs.{module}").register(gate)
    app.add_typer(gate, name="gate")


def _questions() -> None:
    """Ask the gate, and say how far it counts."""
