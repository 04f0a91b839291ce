"""Receipt numbers: a request's id and eight digits that only we can make, so that a mistyped number is seen at once.

A receipt tells nothing about a person, and holding one is no proof of who somebody is.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass, field

_WRITTEN = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Receipts:
    key: bytes = field(repr=False)

    def written(self, name: str) -> str:
        text = name + self._check(name)
        return "-".join(text[at : at + 4] for at in range(0, len(text), 4))

    def read(self, text: str) -> str | None:
        """The request of a receipt, however it was typed."""
        plain = re.sub(r"[\s-]", "", text.lower())
        if not _WRITTEN.fullmatch(plain):
            return None
        return plain[:32] if hmac.compare_digest(plain[32:], self._check(plain[:32])) else None

    def _check(self, name: str) -> str:
        return hmac.new(self.key, name.encode(), hashlib.sha256).hexdigest()[:8]
