"""The pages of the form as HTML: written on the server, one style, no script, nothing from elsewhere, no cookie.

Every value that came from outside goes through `escape`. A page that holds errors puts the focus on their summary, which links to each
field. What breaks it: text that is put into a page by another way than `_text`.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape as _text
from typing import Any

STYLE = """
*{box-sizing:border-box}
body{margin:0;font:1.125rem/1.5 system-ui,sans-serif;color:#1a1a1a;background:#fff}
header,main,footer{max-width:42rem;margin:0 auto;padding:1rem}
header{border-bottom:4px solid #1d4f91;font-weight:bold}
h1{font-size:1.75rem;line-height:1.25;margin:.5rem 0 1rem}h2{font-size:1.25rem;margin:1.5rem 0 .5rem}
a{color:#1d4f91}a:focus-visible,button:focus-visible,input:focus-visible,select:focus-visible,[tabindex]:focus{outline:3px solid #b35900;outline-offset:3px}
.skip{position:absolute;left:-999rem}.skip:focus{position:static;display:inline-block;padding:.75rem}
ul.kinds{list-style:none;padding:0}ul.kinds li{margin:0 0 1rem}ul.kinds a{display:inline-block;padding:.375rem 0;font-weight:bold}
ul.kinds p{margin:0}
main>p>a,footer a,.summary a{display:inline-block;padding:.375rem 0}
.field{margin:0 0 1.5rem}label,legend{font-weight:bold;display:block}fieldset{border:0;padding:0;margin:0 0 1.5rem}
.hint{color:#4a4a4a;margin:0}.wrong{color:#a4161a;font-weight:bold;margin:0}
input[type=text],input[type=email],input[type=tel],select{width:100%;max-width:28rem;min-height:2.75rem;padding:.5rem;border:2px solid #4a4a4a;border-radius:0;background:#fff;color:#1a1a1a;font:inherit}
.bad input,.bad select{border-color:#a4161a}
.pick{display:flex;gap:.75rem;align-items:center;min-height:2.75rem}.pick input{width:1.5rem;height:1.5rem;flex:none}.pick label{font-weight:normal;padding:.5rem 0}
button{min-height:2.75rem;padding:.625rem 1.25rem;border:0;background:#1d4f91;color:#fff;font:inherit;font-weight:bold;cursor:pointer}
.summary{border:4px solid #a4161a;padding:1rem;margin:0 0 1.5rem}.summary h2{margin-top:0}.summary ul{list-style:none;padding:0;margin:0}.summary a{color:#a4161a;font-weight:bold}
.number{font:1.25rem/1.6 ui-monospace,monospace;overflow-wrap:anywhere;background:#f2f2f2;padding:.75rem}
@media (forced-colors:active){button,.summary,.number{border:2px solid}}
"""
_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_HASH}'; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not no-referrer: with that a browser sends `Origin: null` with our own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
    "X-Robots-Tag": "noindex",
}


@dataclass(frozen=True)
class Look:
    """Whose pages they are and in which words."""

    words: Mapping[str, Any]
    name: str
    notice: str | None = None

    def page(self, title: str, inside: str, wrong: bool = False) -> str:
        site = _text(self.words["site"].format(name=self.name))
        shown = self.words["error_title"].format(title=title) if wrong else title
        notice = self.words["pages"]["start"]["notice"]
        foot = f'<footer><a href="{_text(self.notice)}">{_text(notice)}</a></footer>' if self.notice else ""
        return (
            f'<!doctype html>\n<html lang="{_text(self.words["language"])}">\n<head><meta charset="utf-8">'
            f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{_text(shown)} - {site}</title>'
            f"<style>{STYLE}</style></head>\n<body><header>{site}</header>\n"
            f"<main><h1>{_text(title)}</h1>\n{inside}</main>\n{foot}</body></html>\n"
        )


@dataclass
class Form:
    """One form: fields are added in order; what was typed and what was wrong with it stand at their field."""

    words: Mapping[str, Any]
    typed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    wrong: Mapping[str, str] = field(default_factory=dict)  # field → which error
    parts: list[str] = field(default_factory=list)

    def text(self, name: str, kind: str, hint: str = "", *, fill: str = "off", needed: bool = True) -> None:
        """A field to type in. One that is not needed is one of several of which one is."""
        value = _text((self.typed.get(name) or [""])[0])
        more = f' autocomplete="{fill}"' + (' aria-required="true"' if needed else "")
        box = f'<input type="{kind}" id="{name}" name="{name}" value="{value}"{more}{self._about(name, hint)}>'
        self._field(name, hint, box)

    def choice(
        self, name: str, none: str, groups: Mapping[str, Mapping[str, str]], hint: str = "", *, needed: bool
    ) -> None:
        typed = (self.typed.get(name) or [""])[0]

        def option(value: str, text: str) -> str:
            return f'<option value="{_text(value)}"{" selected" if value == typed else ""}>{_text(text)}</option>'

        inside = option("", none)
        for group, entries in groups.items():
            options = "".join(option(value, text) for value, text in entries.items())
            inside += f'<optgroup label="{_text(group)}">{options}</optgroup>' if group else options
        more = ' aria-required="true"' if needed else ""
        self._field(
            name, hint, f'<select id="{name}" name="{name}"{more}{self._about(name, hint)}>{inside}</select>', needed
        )

    def picks(self, name: str, label: str, hint: str, entries: Mapping[str, str]) -> None:
        """Boxes of which any number can be ticked; the first one has the id that an error links to."""
        typed, boxes = self.typed.get(name) or (), ""
        for at, (value, text) in enumerate(entries.items()):
            spot = name if at == 0 else f"{name}-{at}"
            boxes += self._box(spot, name, value, text, value in typed)
        bad = " bad" if name in self.wrong else ""
        said = f'<p class="hint" id="{name}-hint">{_text(hint)}</p>{self._wrong(name)}'
        self.parts.append(
            f'<fieldset class="field{bad}"{self._about(name, hint)}><legend>{_text(label)}</legend>{said}{boxes}</fieldset>'
        )

    def tick(self, name: str, label: str) -> None:
        self.parts.append(f'<div class="field">{self._box(name, name, "yes", label, bool(self.typed.get(name)))}</div>')

    def hidden(self, name: str, value: str) -> None:
        self.parts.append(f'<input type="hidden" name="{name}" value="{_text(value)}">')

    def summary(self, where: Mapping[str, str] | None = None) -> str:
        """What is wrong, with the focus on it; `where` says to which field an error leads when it is not its own."""
        if not self.wrong:
            return ""
        lines = "".join(
            f'<li><a href="#{(where or {}).get(name, name)}">{_text(self.words["errors"][error])}</a></li>'
            for name, error in self.wrong.items()
        )
        title = _text(self.words["errors"]["title"])
        return (
            f'<div class="summary" role="alert" tabindex="-1" autofocus aria-labelledby="summary"><h2 id="summary">{title}</h2>'
            f"<ul>{lines}</ul></div>"
        )

    def written(self, action: str, button: str, method: str = "post") -> str:
        inside = "".join(self.parts)
        return (
            f'<form method="{method}" action="{_text(action)}" novalidate>{inside}'
            f'<button type="submit">{_text(button)}</button></form>'
        )

    def _field(self, name: str, hint: str, box: str, needed: bool = True) -> None:
        label = _text(self.words["fields"][name]) + ("" if needed else " " + _text(self.words["fields"]["optional"]))
        said = f'<p class="hint" id="{name}-hint">{_text(hint)}</p>' if hint else ""
        bad = " bad" if name in self.wrong else ""
        head = f'<label for="{name}">{label}</label>'
        self.parts.append(f'<div class="field{bad}">{head}{said}{self._wrong(name)}{box}</div>')

    def _wrong(self, name: str) -> str:
        error = self.wrong.get(name)
        return f'<p class="wrong" id="{name}-wrong">{_text(self.words["errors"][error])}</p>' if error else ""

    def _about(self, name: str, hint: str) -> str:
        told = [f"{name}-hint"] if hint else []
        told += [f"{name}-wrong"] if name in self.wrong else []
        said = f' aria-describedby="{" ".join(told)}"' if told else ""
        return said + (' aria-invalid="true"' if name in self.wrong and name != "scope" else "")

    @staticmethod
    def _box(spot: str, name: str, value: str, label: str, ticked: bool) -> str:
        on = " checked" if ticked else ""
        return (
            f'<div class="pick"><input type="checkbox" id="{spot}" name="{name}" value="{_text(value)}"{on}>'
            f'<label for="{spot}">{_text(label)}</label></div>'
        )
