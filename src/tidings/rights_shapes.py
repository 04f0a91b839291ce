"""The shape of `rights:` in tidings.yaml: whose rights, who must be told by hand, and how people are answered."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tidings.contract import DistinctTexts, Model, Name, SecretRef, Text, Whole
from tidings.opendsr_shapes import Drp, OpenDsr


class Hand(Model):
    """A recipient that no lane reaches: a clean room, a tool that a person exports to, somebody a subscriber passes data on to."""

    name: Name
    about: Annotated[Text, Field(description="what it is and how it is told")] = ""
    via: Annotated[
        tuple[Name, ...], Field(description="the subscribers it gets the data from; none: from everybody")
    ] = ()


class Form(Model):
    """The public form of `tidings serve`; without it there is none."""

    name: Annotated[Text, Field(max_length=100, description="who you are, as people know you")]
    notice: Annotated[Text, Field(pattern=r"^https://", description="the address of your privacy notice")] | None = None


class Identity(Model):
    """Somebody who proves for you who a person is, and says so in a signed callback."""

    signing_secret: Annotated[SecretRef, Field(description="whsec_… or their public key whpk_…")]
    assurance: Annotated[Literal["verified", "strong"], Field(description="what their word is worth")] = "verified"


class Shopify(Model):
    """Shopify's privacy webhooks."""

    secret: Annotated[SecretRef, Field(description="the client secret of your app, which signs its webhooks")]
    shops: Annotated[DistinctTexts, Field(min_length=1, description="the shops they may come from: NAME.myshopify.com")]
    entity: Annotated[Name, Field(description="the contract whose key is Shopify's customer id")] | None = None


class Holds(Model):
    """Records that a law or counsel wants kept although their person is erased: sealed for counsel, in data/holds (docs/holds.md)."""

    counsel_key: Annotated[
        SecretRef, Field(description="counsel's public key, X25519 in PEM; the private one stays away")
    ]
    days: Annotated[
        Whole | None,
        Field(ge=1, le=36_600, description="after which a hold that names no end is over; none: two people say so"),
    ] = None
    recipients: Annotated[
        DistinctTexts, Field(description="recipients under the same holds: they are told when the hold is over")
    ] = ()


class ConsentHook(Model):
    """A consent platform that calls `/v1/consent/PLATFORM`, and how its calls are proved (docs/signals.md)."""

    platform: Literal["onetrust", "trustarc", "ketch", "securiti", "bigid"]
    source: Annotated[Name, Field(description="the inbox source that changes of consent go to")]
    secret: Annotated[Text, Field(pattern=r"^(env|file):", description="env:NAME or file:NAME")]
    proof: Literal["secret", "hmac"] = "secret"
    header: Annotated[Text, Field(description="where the proof stands; Authorization when empty")] = ""
    prefix: Annotated[Text, Field(description="what stands before the proof, such as sha256=")] = ""
    encoding: Literal["hex", "base64"] = "hex"
    networks: Annotated[tuple[Text, ...], Field(description="the networks it calls from, such as 192.0.2.0/24")] = ()


class Rights(Model):
    """How requests of people are handled."""

    entity: Annotated[Name, Field(description="the contract of people, when more than one has identifiers")] | None = (
        None
    )
    waiting_days: Annotated[Whole, Field(ge=0, le=30, description="days in which an erasure can be taken back")] = 0
    by_hand: tuple[Hand, ...] = ()
    promise_days: Annotated[
        Whole, Field(ge=1, le=90, description="days in which a request is answered where no law gives a number")
    ] = 30
    letters_by: Annotated[
        Name | None, Field(description="the subscriber of the channel email by which people get letters; none: by hand")
    ] = None
    language: Annotated[
        Text, Field(description="the language of letters, a file of the catalogue or policy/letters/")
    ] = "en"
    contact: Annotated[Text, Field(description="where people reach those who answer for their data")] = ""
    capsule_days: Annotated[Whole, Field(ge=1, le=90, description="days after which an open capsule is a breach")] = 30
    holds: Holds | None = None
    form: Form | None = None
    identity: Identity | None = None
    shopify: Shopify | None = None
    gpc_since: (
        Annotated[
            Text, Field(pattern=r"^\d{4}-\d{2}-\d{2}$", description="since when Global Privacy Control is honoured")
        ]
        | None
    ) = None
    consent: tuple[ConsentHook, ...] = ()
    opendsr: OpenDsr | None = None
    drp: Drp | None = None
