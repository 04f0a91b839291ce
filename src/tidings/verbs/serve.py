"""`tidings serve`: the API that subscribers read, stream and answer through; `token`, `tokens` and `revoke` say who may. No Spark."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidings.errors import Refused
from tidings.verbs.options import AsJson, Here, answer, note

if TYPE_CHECKING:
    from tidings.settings import Settings

Whose = Annotated[str, typer.Option("--subscriber", help="The subscriber.")]
Scope = Annotated[str, typer.Option("--scope", help="Instead of a subscriber: ask, vouch or desk (people's requests).")]
Named = Annotated[str, typer.Option("--name", help="With --scope: who holds it and answers for what is done with it.")]


def register(app: typer.Typer) -> None:
    serve = typer.Typer(help="The API for subscribers; its tokens.", rich_markup_mode=None)
    serve.callback(invoke_without_command=True)(start)
    serve.command("token")(token)
    serve.command("tokens")(tokens)
    serve.command("revoke")(revoke)
    app.add_typer(serve, name="serve")


def start(
    context: typer.Context,
    directory: Here = Path("."),
    host: Annotated[str, typer.Option("--host", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="0 takes a free one.")] = 8085,
    certificate: Annotated[Path | None, typer.Option("--tls-cert", help="A PEM file.")] = None,
    key: Annotated[Path | None, typer.Option("--tls-key", help="A PEM file.")] = None,
    behind: Annotated[str, typer.Option("--behind", help="The address of the proxy that ends TLS.")] = "",
    public_url: Annotated[str, typer.Option("--public-url", help="Our address as subscribers write it.")] = "",
    as_json: AsJson = False,
) -> None:
    """Serve until stopped, beside `tidings run`."""
    if context.invoked_subcommand is not None:
        return
    _installed()
    import asyncio

    from tidings.api.app import Api
    from tidings.api.server import Place, Server
    from tidings.settings import load

    place = Place(host, port, certificate, key, behind)
    place.check()
    server = Server(Api(load(directory), public_url), place)

    async def serving() -> None:
        working = asyncio.create_task(server.serve())
        while not server.started and not working.done():
            await asyncio.sleep(0.02)
        for each in [sock for one in getattr(server, "servers", []) for sock in one.sockets]:
            name = each.getsockname()
            told = {"listening": f"{'https' if certificate else 'http'}://{name[0]}:{name[1]}"}
            answer(told) if as_json else note(f"listening on {told['listening']}")
        await working

    asyncio.run(serving())


def token(
    subscriber: Whose = "", scope: Scope = "", name: Named = "", directory: Here = Path("."), as_json: AsJson = False
) -> None:
    """Make a token. It is printed once; only its SHA-256 is kept."""
    from tidings.api.access import Tokens

    settings, subscriber = _known(directory, subscriber, scope, name)
    text, made = Tokens(settings.data_path).make(subscriber)
    if as_json:
        answer({"subscriber": subscriber, "token": text, "id": made.id, "made": made.made})
        return
    note(f"Token {made.id} of {subscriber}. It is not shown again:")
    print(text)


def tokens(directory: Here = Path("."), as_json: AsJson = False) -> None:
    """List the tokens by their ids."""
    from tidings.api.access import Tokens
    from tidings.settings import load

    known = Tokens(load(directory, secrets=False).data_path).known()
    rows = [{"subscriber": name, "id": one.id, "made": one.made} for name, all_of in known.items() for one in all_of]
    if as_json:
        answer(rows)
        return
    for row in rows:
        print(f"{row['subscriber']}  {row['id']}  {row['made']}")


def revoke(
    subscriber: Whose = "",
    scope: Scope = "",
    holder: Named = "",
    name: Annotated[str, typer.Option("--id", help="One token; all of the subscriber's when it is left out.")] = "",
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Take tokens back; they are refused from the next request on."""
    from tidings.api.access import Tokens

    settings, subscriber = _known(directory, subscriber, scope, holder)
    gone = Tokens(settings.data_path).revoke(subscriber, name)
    if not gone:
        raise Refused("unknown_token", name or "no token", f"a token of {subscriber}", "Nothing was changed.")
    if as_json:
        answer([{"subscriber": subscriber, **{k: v for k, v in asdict(one).items() if k != "digest"}} for one in gone])
        return
    print(f"{len(gone)} token(s) of {subscriber} taken back")


def _known(directory: Path, subscriber: str, scope: str, name: str) -> tuple[Settings, str]:
    """The settings and the holder of a token: a subscriber, or SCOPE:NAME."""
    from tidings.api.access import SCOPES
    from tidings.settings import load

    settings = load(directory, secrets=False)
    if scope and not subscriber:
        if scope not in SCOPES or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,62}", name):
            expected = f"--scope one of {', '.join(SCOPES)}, and --name in letters, digits, _ . @ -"
            raise Refused("unknown_scope", "another scope, or no name", expected, "Nothing was changed.")
        return settings, f"{scope}:{name}"
    if subscriber not in settings.subscribers:
        expected = f"one of {', '.join(settings.subscribers)}"
        raise Refused("unknown_lane", subscriber or "no name", expected, "Nothing was changed.")
    return settings, subscriber


def _installed() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise Refused("api_package", f"no package {', '.join(missing)}", "a server", "pip install 'tidings[api]'")
