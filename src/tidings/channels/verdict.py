"""From an answer to an outcome: what statuses, headers and bodies mean. Pure; no clock but the one handed in."""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

from tidings.channels.call import Outcome, Result, Strength
from tidings.channels.client import Answer, Fault, FaultKind
from tidings.channels.mapping import dig
from tidings.channels.normalise import ABSENT
from tidings.channels.verbs import Check, Rule, Success

MAX_RETRY_AFTER_S = 86_400.0
_CODE = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
UNAUTHORISED = 401  # a shut door: nobody is at fault, and the lane waits
_SECONDS = re.compile(r"[0-9]+(\.[0-9]{1,9})?")


def retry_after(text: str | None, now: float, form: str = "seconds") -> float | None:
    """Seconds to wait: a number (of seconds, or the moment as `epoch`) or an HTTP date; the past is 0, more than a day is
    a day, nonsense is None.
    """
    if text is None:
        return None
    text = text.strip()
    if _SECONDS.fullmatch(text):
        # However many digits: a server that says more than we can count asks for the longest wait there is.
        seconds = min(float(text), 1e18) - (now if form == "epoch" else 0.0)
    else:
        try:
            moment = parsedate_to_datetime(text)
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            seconds = moment.timestamp() - now
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_S) if math.isfinite(seconds) else None


def status_in(status: int, wanted: Iterable[int | str]) -> bool:
    """`wanted` holds numbers and classes such as "2xx"."""
    return any(status == one if isinstance(one, int) else one == f"{status // 100}xx" for one in wanted)


def holds(check: Check, body: Any) -> bool:
    """Whether a condition is true of a decoded body."""
    if not check.path and check.empty is None:
        return True
    value = dig(body, check.path)
    if check.empty is not None:
        # What is not there is neither: an answer that does not speak of it proves nothing.
        return value is not ABSENT and (value in (None, "", [], {})) == check.empty
    given = check.model_fields_set
    if "equals" in given:
        return _same(value, check.equals)
    if check.among:
        return any(_same(value, one) for one in check.among)
    if check.not_among:
        return not any(_same(None if value is ABSENT else value, one) for one in check.not_among)
    return value is not ABSENT


def _same(value: Any, wanted: Any) -> bool:
    # True is 1 in Python and is not in JSON.
    return isinstance(value, bool) == isinstance(wanted, bool) and value is not ABSENT and bool(value == wanted)


def decode(answer: Answer) -> Any:
    """The body as JSON, or ABSENT; no NaN, no deep recursion, no exception."""
    if answer.cut or not answer.body:
        return ABSENT

    def no_constant(name: str) -> Any:
        raise ValueError(name)

    try:
        return json.loads(answer.body, parse_constant=no_constant)
    except (ValueError, RecursionError):
        return ABSENT


def short_code(value: Any) -> str:
    """A subscriber's own code when it looks like one; free text may hold personal data and is not kept."""
    text = str(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else ""
    return text if _CODE.fullmatch(text) and "@" not in text else ""


_OF_FAULT: dict[FaultKind, Result] = {
    "refused": "refused",
    "not_sent": "transient",
    "in_doubt": "in_doubt",
    "shut": "terminal",
    "paced": "throttled",
}


@dataclass(frozen=True)
class Judge:
    """How one subscriber's answers are read."""

    rules: Sequence[Rule] = ()
    retry_after_header: str = "Retry-After"
    digest_key: bytes = b""
    retry_after_form: str = "seconds"

    def of_fault(self, fault: Fault) -> Outcome:
        status = UNAUTHORISED if fault.kind == "shut" else 0
        return Outcome("", _OF_FAULT[fault.kind], fault.code, "A0", status, fault.wait, fault.detail)

    def of_answer(self, answer: Answer, success: Success, strength: Strength, now: float) -> Outcome:
        """The outcome of the request as a whole."""
        digest = self.digest(answer)
        body = decode(answer)
        if status_in(answer.status, success.status):
            if success.body and answer.cut:
                return Outcome("", "in_doubt", "answer_too_large", status=answer.status, digest=digest)
            if all(holds(check, body) for check in success.body):
                return Outcome("", "acknowledged", "ok", strength, answer.status, digest=digest)
        return replace(self._failure(answer, success, strength, now), digest=digest)

    def _failure(self, answer: Answer, success: Success, strength: Strength, now: float) -> Outcome:
        body = decode(answer)
        if body is ABSENT and status_in(answer.status, ("2xx",)) and status_in(answer.status, success.status):
            return Outcome("", "in_doubt", "answer_unreadable", status=answer.status)
        wait = self._wait(answer, now)
        for rule in self.rules:
            if (not rule.status or status_in(answer.status, rule.status)) and holds(rule, body):
                code = rule.code or f"status_{answer.status}"
                grade: Strength = strength if rule.result == "acknowledged" else "A0"
                later = wait if rule.result in ("throttled", "transient") else None
                return Outcome("", rule.result, code, grade, UNAUTHORISED if rule.shut else answer.status, later)
        result, code = by_status(answer.status, wait is not None)
        later = wait if result == "throttled" or answer.status >= 500 else None
        return Outcome("", result, code, status=answer.status, retry_after=later)

    def _wait(self, answer: Answer, now: float) -> float | None:
        """What the vendor's own header says; a proxy before it may know only the standard one."""
        own = retry_after(answer.headers.get(self.retry_after_header.lower()), now, self.retry_after_form)
        return own if own is not None else retry_after(answer.headers.get("retry-after"), now)

    def digest(self, answer: Answer) -> str:
        """A keyed digest, since an answer may repeat personal data and a plain hash of that can be guessed."""
        if not self.digest_key:
            return ""
        return hmac.new(self.digest_key, b"%d\n" % answer.status + answer.body, hashlib.sha256).hexdigest()


def by_status(status: int, told_to_wait: bool) -> tuple[Result, str]:
    """What a status means when no rule of the manifest says otherwise."""
    if status == 429 or (status == 503 and told_to_wait):
        return "throttled", f"status_{status}"
    if status == 410:
        return "terminal", "gone"
    if 300 <= status < 400:
        return "transient", "redirect"
    if 200 <= status < 300:
        return "transient", "error_inside"
    if status in (408, 425) or status >= 500 or status < 200:
        return "transient", f"status_{status}"
    return "terminal", f"status_{status}"
