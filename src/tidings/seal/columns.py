"""Sealing as native columns: what Keyring does to one value, Spark does here to a whole batch, byte for byte."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tidings.seal.keyring import FORMAT, IV_BYTES, SEPARATOR, TAG_BYTES

LOTS = 16  # a batch's subjects are divided into this many; part of the offset layout, so never changed in place


def keys_frame(spark: SparkSession, mapping: Mapping[str, bytes]) -> DataFrame:
    """One row, one binary column per key. Join it: a literal key would show in plans and logs, a joined column does not.

    Arrow makes it a local relation, whose broadcast needs no job (0.1 s less per batch). Only with
    spark.io.encryption.enabled does the row reach the JVM by socket instead of a scratch file.
    """
    return spark.createDataFrame(pa.table({name: pa.array([key], pa.binary()) for name, key in mapping.items()}))


def tag_column(k_tag: Column, tenant: Column | str, kind: Column | str, key_json: Column) -> Column:
    return _truncated(F.hmac(k_tag, _joined(tenant, kind, key_json)), TAG_BYTES)


def identifier_column(k_tag: Column, kind: Column | str, value: Column) -> Column:
    return _truncated(F.hmac(k_tag, _joined("identifier", kind, value)), TAG_BYTES)


def kid_column(secret: Column, tag: Column) -> Column:
    return _truncated(F.hmac(secret, F.concat(F.lit(b"kid"), tag)), TAG_BYTES)


def key_column(secret: Column, tag: Column) -> Column:
    return F.hmac(secret, F.concat(F.lit(b"key"), tag))


def bucket_column(tag: Column, buckets: int = 256) -> Column:
    return F.conv(F.hex(F.substring(tag, 1, 1)), 16, 10).cast("int") % buckets


def lot_column(lots: Column, tag: Column) -> Column:
    """Where a subject stands in one batch. An event keeps its offset for ever, so what decides it must not outlive the person's keys:
    another lot in every batch, drawn with a secret that is forgotten, where the tag's own bucket would tell who an event is not about."""
    return F.coalesce(bucket_column(F.hmac(lots, tag), LOTS), F.lit(0))


def aad_column(table: str, event_id: Column, field: str, fmt: str = FORMAT) -> Column:
    """What a sealed value is bound to. NULL when the event id is: sealing then stops instead of binding to nothing."""
    return _joined(table, event_id, field, fmt)


def seal_column(plain: Column, key: Column, k_iv: Column, aad: Column) -> Column:
    """AES-256-GCM of `plain` (string or binary). A missing key, IV key or AAD stops the write; a NULL plaintext stays NULL.

    Native encryption answers a NULL key with a NULL value and no error, which would lose the payload in silence.
    """
    data = plain.cast("binary")
    iv = _truncated(F.hmac(k_iv, F.concat(aad, data)), IV_BYTES)
    sealed = F.aes_encrypt(data, key, F.lit("GCM"), F.lit("DEFAULT"), iv, aad)
    return _stop_when(key.isNull() | k_iv.isNull() | aad.isNull(), "sealing_key_missing", sealed)


def open_column(sealed: Column, key: Column, aad: Column) -> Column:
    """The plaintext as binary, or NULL: no key means erased or key-missing, a key and no plaintext means damaged."""
    return F.try_aes_decrypt(sealed, key, F.lit("GCM"), F.lit("DEFAULT"), aad)


def wrap_column(key: Column, kek: Column, tag: Column, kid: Column) -> Column:
    """A subject key as a key file holds it. The kid gives the IV (one kid has one key), so the IV is not stored again."""
    sealed = F.aes_encrypt(key, kek, F.lit("GCM"), F.lit("DEFAULT"), _truncated(kid, IV_BYTES), _row_aad(tag, kid))
    missing = key.isNull() | kek.isNull() | tag.isNull() | kid.isNull()
    return _stop_when(missing, "wrapping_key_missing", F.substring(sealed, IV_BYTES + 1, 2**31 - 1))


def unwrap_column(wrapped: Column, kek: Column, tag: Column, kid: Column) -> Column:
    sealed = F.concat(_truncated(kid, IV_BYTES), wrapped)
    return F.try_aes_decrypt(sealed, kek, F.lit("GCM"), F.lit("DEFAULT"), _row_aad(tag, kid))


def _row_aad(tag: Column, kid: Column) -> Column:
    return F.concat(F.lit(b"keys" + SEPARATOR), tag, kid)


def _stop_when(missing: Column, code: str, otherwise: Column) -> Column:
    # The message is a constant: an error here reaches logs, and a row must not.
    return F.when(
        missing, F.raise_error(F.lit(f"[{code}] the write was stopped; no row was sealed without its key"))
    ).otherwise(otherwise)


def _joined(*parts: Column | str) -> Column:
    texts = [F.lit(part) if isinstance(part, str) else part for part in parts]
    pieces = [texts[0].cast("binary")]
    for text in texts[1:]:
        pieces += [F.lit(SEPARATOR), text.cast("binary")]
    return F.concat(*pieces)


def _truncated(value: Column, size: int) -> Column:
    return F.substring(value, 1, size)
