"""A change: what happened to one row, in the same words for every vendor."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidings.seal.cards import masked_states, places_by_card
from tidings.stages.decode import CORE, EMPTY, NAMED, TEXTS, Keys, decode, refused, skipped
from tidings.stages.dialect import Dialect, load, names
from tidings.stages.message import (
    PROBLEM,
    inexact,
    is_blank,
    is_list,
    is_object,
    parse,
    parse_under,
    problem,
    refusal,
    whole,
)
from tidings.stages.recognise import recognised, unwrapped
from tidings.stages.verdict import IMAGES

CHANGE = T.StructType(
    [
        T.StructField("source", T.StringType()),
        T.StructField("place", T.StringType()),
        T.StructField("ordinal", T.IntegerType()),
        T.StructField("arrived", T.TimestampType()),
        T.StructField("rank", T.StringType()),
        T.StructField("dialect", T.StringType()),
        T.StructField("op", T.StringType()),
        T.StructField("entity", T.StringType()),
        T.StructField("key", T.VariantType()),
        T.StructField("before", T.VariantType()),
        T.StructField("after", T.VariantType()),
        *[T.StructField(name, T.StringType()) for name in TEXTS.values()],
        T.StructField("before_kind", T.StringType()),
        T.StructField("commit_time", T.TimestampType()),
        T.StructField("position", T.StringType()),
        T.StructField("ordering", T.StringType()),
        T.StructField("epoch", T.StringType()),
        T.StructField("txn", T.StringType()),
        T.StructField("reason", T.StringType()),
        T.StructField("skip", T.StringType()),
        T.StructField("problem", PROBLEM),
        T.StructField("masked", T.BooleanType()),
        # Carried as it came; the subject stage keeps it, masked, only for rows that end in quarantine.
        T.StructField("body", T.StringType()),
        T.StructField("file", T.StringType()),
        T.StructField("line", T.LongType()),
    ]
)
AUTO = "auto"
# The problem of a message in a dialect that this plan leaves out; whoever sees it makes a larger plan.
UNHEARD = "unheard"
BLANK = "blank"
ERASED = "erased"  # the person was, and this says nothing that brings them back
_CARRIED = ("source", "place", "arrived", "rank", "file", "line")


def change(
    messages: DataFrame,
    dialect: str,
    keys: Keys | None = None,
    heard: Collection[str] | None = None,
    tokens: Mapping[str, str] | None = None,
) -> DataFrame:
    """Every message as one or more changes; a bad message stays a row with its problem, a marker a row with its skip.

    `keys` names the key columns per entity for messages that carry no key (`*` stands for every other entity). Of all dialects
    that `auto` recognises only those `heard` so far are decoded; a message in another one is UNHEARD. `tokens` says per entity where
    attested tokens stand, which are no cards.
    """
    wrappers, dialects = _candidates(dialect)
    body, parsed = F.col("body"), F.col("parsed")
    read = messages.select(*_CARRIED, "body", parse(body).alias("parsed"))
    sound = read.select(
        *_CARRIED, "body", whole(parsed, body).alias("sound"), _rewrapped(parsed, body, [*wrappers, *dialects])
    )
    if wrappers:
        opened = sound.withColumn("opened", F.when(F.col("sound"), unwrapped(wrappers, parsed)))
        sound = opened.withColumn("parsed", F.col("opened.root")).withColumn("wrapper", F.col("opened.wrapper"))
    spoken = F.when(F.col("sound"), recognised(dialects, parsed)) if dialect == AUTO or wrappers else F.lit(0)
    heeded = sound.withColumn("spoken", spoken)
    if dialect == AUTO:
        heeded = _unboxed(heeded, dialects)
    decoded = heeded.withColumn("changes", _changes(dialects, body, keys or {}, heard))
    named = _named(wrappers, dialects).alias("dialect")
    # Most dialects put one change in a message; only a list of them is worth the cost of an explode.
    many = any(each.each for each in dialects if heard is None or each.name in heard)
    one = [F.lit(0).alias("ordinal"), F.get("changes", F.lit(0)).alias("core")]
    found = [F.posexplode("changes").alias("ordinal", "core")] if many else one
    several = decoded.select(*_CARRIED, "body", "sound", named, *found)
    looked_at = F.col("core.suspect") & F.col("core.problem").isNull()
    sealed = several.withColumn("sealed", F.when(looked_at, _sealed(tokens or {})))
    judged = sealed.withColumn("core", _judged(F.col("core"), body))
    return judged.select(*[_column(field.name) for field in CHANGE.fields])


def _candidates(dialect: str) -> tuple[list[Dialect], list[Dialect]]:
    """The wrappers to take off and the dialects to try, in their order."""
    listed = [load(name) for name in names()] if dialect == AUTO else [load(dialect)]
    wrappers = [each for each in listed if each.unwrap]
    plain = [each for each in listed if not each.unwrap]
    inside = sorted((load(name) for wrapper in wrappers for name in wrapper.inside), key=lambda each: each.order)
    return wrappers, plain or inside


@cache
def skip_reasons(dialect: str) -> tuple[str, ...]:
    """Why a message of this dialect can be no change."""
    wrappers, dialects = _candidates(dialect)
    said = {reason for each in (*wrappers, *dialects) for _, reason in each.skips}
    return tuple(sorted({BLANK, EMPTY, ERASED, *said}))


def _named(wrappers: list[Dialect], dialects: list[Dialect]) -> Column:
    inner = F.get(F.array(*[F.lit(dialect.name) for dialect in dialects]), F.col("spoken"))
    if not wrappers:
        return inner
    return F.coalesce(F.get(F.array(*[F.lit(wrapper.name) for wrapper in wrappers]), F.col("wrapper")), inner)


def _rewrapped(parsed: Column, body: Column, dialects: list[Dialect]) -> Column:
    """A vendor's value that came without topic and key is read as if it had come with them."""
    bare = sorted({part for dialect in dialects for part in dialect.bare})
    if not bare:
        return parsed.alias("parsed")
    marked = F.lit(False)
    for names_together in bare:
        together = F.lit(True)
        for name in names_together.split("+"):
            together = together & F.try_variant_get(parsed, f"$[0].{name}", "variant").isNotNull()
        marked = marked | together
    keyed = F.try_variant_get(parsed, "$[0].topic", "string").isNotNull()
    valued = F.try_variant_get(parsed, "$[0].value", "variant").isNotNull()
    rewrapped = parse_under(body, "value")
    return (
        F.when(keyed, parsed).when(parsed.isNotNull() & ~valued & marked, rewrapped).otherwise(parsed).alias("parsed")
    )


def _unboxed(rows: DataFrame, dialects: list[Dialect]) -> DataFrame:
    """A broker's record that means nothing as a whole is read as its value: what it carries came without a topic."""
    parsed, spoken = F.col("parsed"), F.col("spoken")
    value = F.try_variant_get(parsed, "$[0].value", "variant")
    boxed = spoken.isNull() & F.try_variant_get(parsed, "$[0].topic", "string").isNotNull() & value.isNotNull()
    inside = F.when(F.col("sound") & boxed, F.to_variant_object(F.array(value)))
    bare = [place for place, each in enumerate(dialects) if not each.record]
    named = F.get(F.array(*map(F.lit, bare)), recognised([dialects[place] for place in bare], F.col("inside")))
    return (
        rows.withColumn("inside", inside)
        .withColumn("spoken", F.when(F.col("inside").isNotNull(), named).otherwise(spoken))
        .withColumn("parsed", F.coalesce("inside", "parsed"))
    )


def _changes(dialects: list[Dialect], body: Column, keys: Keys, heard: Collection[str] | None) -> Column:
    """The decoded changes of a sound message, or the one reason why there are none."""
    parsed, spoken = F.col("parsed"), F.col("spoken")
    unread = F.when(is_blank(body), F.array(skipped(BLANK))).otherwise(F.array(refused(problem(refusal(body)))))
    chain = F.when(~F.col("sound"), unread)
    lists = [place for place, dialect in enumerate(dialects) if dialect.takes_list]
    listed = is_list(body) & F.coalesce(spoken.isin(lists), F.lit(False)) if lists else F.lit(False)
    chain = chain.when(~is_object(body) & ~listed, F.array(refused(problem("not_an_object"))))
    for place, dialect in enumerate(dialects):
        if heard is None or dialect.name in heard:
            chain = chain.when(spoken == place, decode(dialect, parsed, keys))
    if heard is not None:
        name = F.get(F.array(*[F.lit(dialect.name) for dialect in dialects]), spoken)
        chain = chain.when(spoken.isNotNull(), F.array(refused(problem(UNHEARD, "", name), suspect=False)))
    return chain.otherwise(F.array(refused(problem("unknown_dialect", "", "no dialect recognises the message"))))


def _judged(core: Column, body: Column) -> Column:
    """A change whose numbers lost digits when they were parsed is no change, nor is one that a card number names or places."""
    lossy = F.col("sound") & core["suspect"] & core["skip"].isNull() & inexact(body)
    place = F.concat_ws("|", *[core[name] for name in ("position", "ordering", "epoch")])
    renamed = F.col("sealed.masked") & (F.to_json(_kept("key")) != core["key_json"])
    says = "a card number stands in the key; masked, it would name other records too"
    return (
        F.when(lossy, refused(problem("number_not_exact")))
        .when(renamed, refused(problem("card_in_key", "key", says)))
        .when(
            places_by_card(place),
            refused(problem("card_in_position", "position", "a card number stands for the place")),
        )
        .otherwise(core)
    )


def _sealed(tokens: Mapping[str, str]) -> Column:
    """Key, images and names as they may be kept; only rows that look as if they held a card number come here."""
    states = F.struct(*[F.col(f"core.{name}").alias(name) for name in (*IMAGES, *NAMED)])
    return masked_states(states, F.col("core.entity"), tokens)


def _kept(name: str, kind: str = "variant") -> Column:
    return F.try_variant_get(F.col("sealed.state"), f"$.{name}", kind)


def _column(name: str) -> Column:
    masked = F.coalesce(F.col("sealed.masked"), F.lit(False))
    touched = masked & F.col("core.problem").isNull()
    core = F.col(f"core.{name}") if name in CORE else None
    if name == "masked":
        return masked.alias(name)
    if core is None:
        return F.col(name)
    if name in IMAGES:
        return F.when(touched, _kept(name)).otherwise(core).alias(name)
    if name in TEXTS.values():
        return F.when(touched, F.to_json(_kept(name.removesuffix("_json")))).otherwise(core).alias(name)
    return F.when(touched, _kept(name, "string")).otherwise(core).alias(name) if name in NAMED else core.alias(name)
