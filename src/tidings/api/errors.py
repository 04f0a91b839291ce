"""What the API says when it says no: a status and a code of ours. Nothing of the request is repeated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# Code → status and words. docs/api.md lists them; a test compares.
REFUSALS: Mapping[str, tuple[int, str]] = {
    "no_token": (401, "a bearer token is needed"),
    "wrong_token": (401, "this token is not known"),
    "wrong_signature": (401, "no signature fits"),
    "stale": (401, "the timestamp is further off than the tolerance"),
    "not_yours": (403, "this token is for another subscriber"),
    "not_found": (404, "there is nothing here"),
    "unknown_id": (404, "none of these events is open for this subscriber"),
    "method_not_allowed": (405, "not with this method"),
    "too_slow": (408, "the body took too long"),
    "replayed": (409, "this message was taken before"),
    "too_large": (413, "the body is larger than is taken"),
    "not_json": (400, "the body is not JSON"),
    "no_acks": (400, "the body holds no acks"),
    "too_many": (400, "more answers than are taken at once"),
    "bad_cursor": (400, "not a cursor of this subscriber"),
    "bad_parameter": (400, "a parameter is out of range"),
    "bad_signal": (400, "this signal has a field that is not known or a value that is none"),
    "bad_order": (400, "this replay cannot be read"),
    "unknown_replay": (404, "no replay of this name was ordered for this subscriber"),
    "no_scope": (403, "this token is for something else"),
    "bad_request": (400, "this request lacks something or holds what it cannot; problems says what"),
    "bad_word": (400, "this cannot be said of a request; problems says why"),
    "unknown_request": (404, "no request has this id"),
    "unknown_task": (404, "this request has no open task of this name"),
    "wrong_code": (403, "this code does not fit, was used, or is too old"),
    "too_late": (409, "this request can no longer be taken back"),
    "bad_webhook": (400, "topic and body do not fit each other, or name nobody"),
    "wrong_shop": (403, "this shop is not one of yours"),
    "too_often": (429, "too many requests"),
    "unexpected": (500, "this is our fault, not yours; nothing was promised"),
    "busy": (503, "try again in a moment"),
}


class ApiError(Exception):
    def __init__(
        self, code: str, retry_after: float | None = None, problems: Sequence[Mapping[str, object]] = ()
    ) -> None:
        self.code, self.retry_after, self.problems = code, retry_after, tuple(problems)
        self.status, self.words = REFUSALS[code]
        super().__init__(code)
