"""The front door: `tidings VERB`. Only the verb that is asked for is imported, so the door opens at once."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Sequence

import typer

from tidings.errors import TidingsError

# In the order a person meets them. Each is tidings.verbs.<module> with `register(app)`.
VERBS = {
    "init": "init",
    "check": "check",
    "source": "source",
    "run": "run",
    "status": "status",
    "timeline": "timeline",
    "explain": "explain",
    "lanes": "lanes",
    "serve": "serve",
    "replay": "replay",
    "dead-letters": "dead_letters",
    "conflicts": "conflicts",
    "saga": "saga",
    "quarantine": "quarantine",
    "gate": "gate",
    "report": "report",
    "restore": "restore",
    "rights": "rights",
    "keys": "keys",
    "prove": "prove",
    "verify": "verify",
    "bench": "bench",
    "schemas": "schemas",
}
# The modules behind `tidings try`, which runs one step on what it is given.
STEPS = ("try_decode", "try_detect", "try_gate", "try_deadline", "try_filter", "try_render", "try_signal")

UNEXPECTED = 70  # EX_SOFTWARE of sysexits.h


def application(wanted: str = "") -> typer.Typer:
    """The whole application, or only the verb that is wanted."""
    app = typer.Typer(
        name="tidings",
        help="When a customer changes, every system that must know is told, in order, in time, under policy, provably.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback(help=app.info.help)(_options)
    for verb, module in VERBS.items():
        if not wanted or wanted == verb:
            importlib.import_module(f"tidings.verbs.{module}").register(app)
    if wanted in ("", "try"):
        steps = typer.Typer(no_args_is_help=True, help="Run one step on what you give it.", rich_markup_mode=None)
        for module in STEPS:
            importlib.import_module(f"tidings.verbs.{module}").register(steps)
        app.add_typer(steps, name="try")
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"tidings {version('tidings')}")
        raise typer.Exit


def _options(
    version: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True, callback=_show_version),
) -> None:
    """Options before the verb."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one verb; every way it can end is an exit code and at most a few lines on stderr."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    wanted = given[0] if given and given[0] in (*VERBS, "try") else ""
    as_json = "--json" in given
    try:
        application(wanted)(args=given, prog_name="tidings")
    except TidingsError as error:
        _report(error, as_json)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:  # the last line of defence: a person gets a sentence, not a trace
        if os.environ.get("TIDINGS_DEBUG") == "1":
            raise
        _report(_unexpected(error), as_json)
        sys.exit(UNEXPECTED)


def _unexpected(error: Exception) -> TidingsError:
    # The text of a foreign exception may hold a row, so only its kind is shown.
    what_now = "This is our fault, not yours; run it again with TIDINGS_DEBUG=1 for the trace and report it."
    return TidingsError("unexpected", f"an unexpected {type(error).__qualname__}", "", what_now)


def _report(error: TidingsError, as_json: bool) -> None:
    print(str(error), file=sys.stderr)
    if as_json:
        print(json.dumps({"error": error.as_dict()}, ensure_ascii=False, indent=2))


if __name__ == "__main__":
    main()
