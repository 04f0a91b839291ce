"""May we send here at all? The validation handshake of CloudEvents' "HTTP 1.1 Web Hooks", for those who switched it on.

    OPTIONS /hook                                →  WebHook-Allowed-Origin: events.shop.example   (or *)
    WebHook-Request-Origin: events.shop.example     WebHook-Allowed-Rate: 120                     (a minute, or *)
    WebHook-Request-Rate: 3000

The endpoint is asked before the first event and by `check --connect`; the answer is remembered for as long as the process lives.
While it does not allow us nothing is sent: every member is transient (`handshake_denied`), and the lane's breaker keeps the door
shut. An endpoint that has changed its mind is asked again after a minute.

What breaks it: an allowed rate is kept by each sending process for itself.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tidings.channels.auth import Asks
from tidings.channels.call import Outcome, Result
from tidings.channels.client import Answer, Fault, Request

ORIGIN = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")
ASK_AGAIN_S = 60.0
_DENIED = Outcome("", "transient", "handshake_denied", detail="the endpoint does not allow our origin")


@dataclass
class Door:
    """One endpoint's leave to send."""

    client: Asks
    url: str
    origin: str
    per_second: float
    clock: Callable[[], float] = time.monotonic
    asked: float | None = None
    shut: Outcome | None = None  # why we may not send, as it was found last
    gap_s: float = 0.0  # the least time between two requests
    free: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def pass_through(self, timeout_s: float) -> Outcome | None:
        """None when a request may leave now; else what became of its members. Threads ask once, together."""
        with self._lock:
            now = self.clock()
            if self.asked is None or (self.shut and now - self.asked >= ASK_AGAIN_S):
                self.shut = self._ask(timeout_s)
                # A door that could not be asked is asked at the next call: the schedule of retries is wait enough.
                self.asked = None if self.shut and self.shut.code != _DENIED.code else now
            if self.shut is not None:
                return self.shut
            if now < self.free:
                wait = self.free - now
                return Outcome(
                    "", "throttled", "handshake_rate", retry_after=wait, detail="the allowed rate is used up"
                )
            self.free = max(now, self.free) + self.gap_s
            return None

    def ask(self, timeout_s: float) -> Outcome:
        """For `check --connect`: ask now, whatever is remembered."""
        with self._lock:
            self.shut, self.asked = self._ask(timeout_s), self.clock()
            return self.shut or Outcome("", "acknowledged", "ok")

    def _ask(self, timeout_s: float) -> Outcome | None:
        headers = {
            "WebHook-Request-Origin": self.origin,
            "WebHook-Request-Rate": str(max(1, int(self.per_second * 60))),
        }
        found = self.client.request(Request("OPTIONS", self.url, headers), timeout_s)
        if isinstance(found, Fault):
            # The question is no event: whatever became of it, nothing that counts has left.
            result: Result = "refused" if found.kind == "refused" else "transient"
            return Outcome("", result, found.code, detail=found.detail)
        return self._granted(found)

    def _granted(self, answer: Answer) -> Outcome | None:
        allowed = answer.headers.get("webhook-allowed-origin", "").strip().lower()
        if not 200 <= answer.status < 300 or allowed not in ("*", self.origin):
            return replace(_DENIED, detail=f"{_DENIED.detail} (it answered {answer.status})")
        rate = answer.headers.get("webhook-allowed-rate", "*").strip()
        if not rate.isascii() or not rate.isdigit() or len(rate) > 9:
            self.gap_s = 0.0
        elif int(rate) == 0:
            return replace(_DENIED, detail="the endpoint allows a rate of 0")
        else:
            self.gap_s = 60.0 / int(rate)
        return None
