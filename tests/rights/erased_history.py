"""An operator's past with people in every table, and a person to erase: no JVM."""

from __future__ import annotations

import hashlib
import hmac
import json
import shutil
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from history import BATCH, FEED, NOW, SECRET, History

from tidings.seal.keyfiles import KeyFiles
from tidings.seal.keyring import associated, bucket, kid, seal_payload, subject_key
from tidings.settings import Settings
from tidings.store import Store

BATCHES, PEOPLE = 3, 12


@dataclass
class Past:
    """Everybody is in every batch; `email` is what a person is known by."""

    history: History

    def copied(self, folder: Path) -> Past:
        """The same past in another folder, as a backup holds it."""
        shutil.copytree(self.history.folder, folder)
        again = copy(self.history)
        again.folder = folder
        return Past(again)

    @property
    def settings(self) -> Settings:
        return self.history.settings

    @property
    def store(self) -> Store:
        return self.history.store

    @property
    def data(self) -> Path:
        return self.settings.data_path

    @property
    def keys(self) -> KeyFiles:
        return KeyFiles(self.data / "keys", self.settings.keyring.derive("kek"))

    def tag(self, person: int) -> bytes:
        return self.history.tag(person)

    def change(self, person: int, number: int) -> bytes:
        """As a batch makes it: keyed, by the tag among others."""
        said = f"crm\x1f{number}\x1f{self.tag(person).hex()}".encode()
        return hmac.new(self.settings.keyring.derive("id"), said, hashlib.sha256).digest()[:16]


def email(person: int) -> str:
    return f"Person.{person}@planted-{person}.example"


def hashed(past: Past, person: int) -> bytes:
    return past.settings.keyring.identifier_hash("email", email(person).lower())


def past(folder: Path) -> Past:
    one = Past(History(folder))
    for number in range(BATCHES):
        one.history.batch(10 - number, PEOPLE)
    _remember(one)
    _quarantine(one)
    one.history.attest()
    return one


def _remember(one: Past) -> None:
    keyring, secret = one.settings.keyring, SECRET[:-1] + bytes([BATCHES - 1])
    last, subjects, identities = [], [], []
    for person in range(PEOPLE):
        tag = one.tag(person)
        place = {"offset": BATCHES * BATCH + person, **FEED._asdict(), "batch": BATCHES - 1, "tag": tag}
        image = json.dumps({"fields": {"email": email(person)}, "image": "{}"}).encode()
        aad = associated("last_seen", tag.hex().upper(), "image")
        sealed = seal_payload(image, subject_key(secret, tag), keyring.derive("iv"), aad)
        here = place | {"bucket": bucket(tag, 16)}
        last.append(here | {"version": "1", "kid": kid(secret, tag), "image": sealed, "time": NOW})
        subjects.append(here | {"version": "1", "consents": [("email", "granted")], "flags": []})
        own = hashed(one, person)
        identities.append(here | {"hash": own, "bucket": bucket(own, 16), "kind": "email", "entity": "customer"})
    for table, rows in {"last_seen": last, "subjects": subjects, "identities": identities}.items():
        one.history._commit(table, rows, f"{FEED}", 1)


def _quarantine(one: Past) -> None:
    """One broken message of each person."""
    rows: list[dict[str, Any]] = []
    keyring = one.settings.keyring
    for person in range(PEOPLE):
        place, day = f"place/{person}", NOW.date()
        key = hmac.new(keyring.derive("quarantine"), day.isoformat().encode(), hashlib.sha256).digest()
        body = f'{{"email": "{email(person)}'.encode()
        sealed = seal_payload(body, key, keyring.derive("iv"), associated("quarantine", place, "body"))
        row = {"source": "crm", "generation": "g1", "batch": 1, "place": place, "code": "not_json", "day": day}
        rows.append(row | {"arrived": NOW, "sealed": sealed})
    one.history._commit("quarantine", rows, f"{FEED}", 1)
