"""The shapes of `rights.opendsr` and `rights.drp` in tidings.yaml: who may pass requests of people on to us, and how they are answered."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tidings.contract import DistinctTexts, Model, Name, SecretRef, Text

Host = Annotated[
    str,
    Field(pattern=r"^[a-z0-9][a-z0-9.:-]{0,252}$", description="a host as it stands in an address, in small letters"),
]
Sureness = Annotated[
    Literal["claimed", "verified", "strong"],
    Field(description="how sure we are of the person when they are: claimed, verified or strong"),
]
AgentId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="letters, digits, _ . - (at most 64)")]


class Controller(Model):
    """Who passes requests on by OpenDSR, with HTTP Basic."""

    credentials: Annotated[SecretRef, Field(description="user:password")]
    callback_hosts: Annotated[tuple[Host, ...], Field(description="the hosts that callbacks may go to")] = ()
    types: Annotated[DistinctTexts, Field(description="what it may ask for; none: everything that discovery says")] = ()
    assurance: Sureness = "verified"


class OpenDsr(Model):
    """We as a processor of OpenDSR 1, 2 and mParticle's 3."""

    domain: Annotated[Host, Field(description="the domain that the certificate is issued to")]
    certificate: Annotated[Text, Field(description="a PEM file in the folder: the certificate, then its issuers")]
    signing_key: Annotated[SecretRef, Field(description="the RSA key of the certificate, in PEM")]
    controllers: dict[Name, Controller]
    identities: Annotated[
        dict[Name, Name], Field(description="a type of identity → email, phone or the entity whose key it is")
    ] = Field(default_factory=dict)


class Agent(Model):
    """An authorised agent of the Data Rights Protocol."""

    verify_key: Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]{43}=$", description="its Ed25519 public key, in Base64")]
    callback_hosts: Annotated[tuple[Host, ...], Field(description="the hosts that callbacks may go to")] = ()
    assurance: Annotated[Sureness, Field(description="what its word that it verified somebody is worth")] = "claimed"


class Drp(Model):
    """We as a covered business of the Data Rights Protocol."""

    business_id: AgentId
    agents: dict[AgentId, Agent]
