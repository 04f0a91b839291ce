"""The *decided* ledger entry of an event, as bytes, computed in the job that writes the row.

RFC 8785 JSON: keys sorted, integers and strings only. `to_json` of a struct whose fields are declared in order gives exactly that,
because every value is an identifier, a number, a digest or a word of ours.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidings.gate.presets import Preset

ASYNCAPI = "3.0.0"


def _hex(value: Column) -> Column:
    return F.lower(F.hex(value))


def state_hash(field: str, text: Column) -> Column:
    """HMAC under this event's opening key: one state can be opened to an auditor without the rest."""
    return F.when(
        text.isNotNull(), _hex(F.hmac(F.col("opening"), F.concat(F.lit(field.encode()), F.encode(text, "UTF-8"))))
    )


def opening() -> Column:
    """This event's opening key."""
    return F.hmac(F.col("subject_key"), F.concat(F.lit(b"open"), F.encode("event_id", "UTF-8")))


def _plain(text: Column) -> Column:
    """A vendor's token as printable ASCII, so that the bytes are canonical whatever the vendor wrote."""
    return F.regexp_replace(F.substring(text, 1, 200), r"[^ !#-\[\]-~]", "_")


def _sorted(**fields: Column) -> Column:
    return F.struct(*[fields[name].alias(name) for name in sorted(fields)])


def decided_entry(policy_version: str, preset: Preset) -> Column:
    """The entry's bytes; fields that do not apply are absent. Results of the anchors stand under the names of the preset."""
    decision = _sorted(
        anchors=_sorted(**{name: F.try_element_at(F.col("anchors"), F.lit(a)) for a, name in preset.names.items()}),
        preset=F.lit(preset.name),
        reference=F.col("reference"),
        tags=F.col("tags"),
    )
    custody = F.array(
        F.concat(F.lit("captured:"), F.col("source")),
        F.concat(F.lit("journal:"), F.col("generation_name"), F.lit("/"), F.col("offset").cast("string")),
    )
    entry = _sorted(
        after_state_hash=state_hash("after", F.col("after_json")),
        asyncapi_version=F.lit(ASYNCAPI),
        before_state_hash=state_hash("before", F.col("image_before")),
        capture=_sorted(epoch=_plain(F.col("epoch")), position=_plain(F.col("position")), source=F.col("source")),
        chain_of_custody=custody,
        change_type=F.col("change_type"),
        clocks=_sorted(hlc=F.col("hlc"), lamport=F.col("lamport")),
        decision=decision,
        event_id=F.col("event_id"),
        kind=F.lit("decided"),
        outbox_transaction=_plain(F.col("txn")),
        policy_version=F.lit(policy_version),
        registry=F.concat(F.lit("contract:"), F.col("schema_version")),
        schema_version=F.col("schema_version"),
        subject_identifier=_hex(F.col("kid")),
        timestamp=F.date_format("time", "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"),
        window=F.when(
            F.col("deadline").isNotNull(), _sorted(due=F.date_format("deadline", "yyyy-MM-dd'T'HH:mm:ss'Z'"))
        ),
    )
    return F.encode(F.to_json(entry), "UTF-8")
