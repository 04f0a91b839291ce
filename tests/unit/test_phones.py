"""One number written many ways is one number; libphonenumber, which others trust, says which."""

from __future__ import annotations

import random
from collections.abc import Iterator

import phonenumbers
import pytest
from phonenumbers import PhoneNumberFormat, PhoneNumberType
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tidings.phones import e164, plans
from tidings.stages.normal import country_plan, phone

# text, country → what it is; the rest of the world is below
WRITTEN = [
    ("+49 (0)30 901820", "DE", "+4930901820"),
    ("030 / 90 18 20", "DE", "+4930901820"),
    ("0049 30 901820", "DE", "+4930901820"),
    ("+49 030 901820", "DE", "+4930901820"),
    ("tel:+49-30-901820", "DE", "+4930901820"),
    ("TEL:+49-30-901820;ext=12", "DE", "+4930901820;ext=12"),
    ("030 901820 ext. 12", "DE", "+4930901820;ext=12"),
    ("030 901820 x12", "DE", "+4930901820;ext=12"),
    ("030 901820 #12", "DE", "+4930901820;ext=12"),
    ("030 901820 ext. 13", "DE", "+4930901820;ext=13"),
    ("＋４９　３０　９０１８２０", "DE", "+4930901820"),
    ("020 7946 0018", "GB", "+442079460018"),
    ("+44 (0)20 7946 0018", "US", "+442079460018"),
    ("442079460018", "GB", "+442079460018"),
    ("01 42 68 53 00", "FR", "+33142685300"),
    ("06 698 12345", "IT", "+390669812345"),  # the 0 of an Italian landline belongs to the number
    ("+39 06 698 12345", "IT", "+390669812345"),
    ("(415) 555-0132", "US", "+14155550132"),
    ("1-415-555-0132", "US-CA", "+14155550132"),
    ("4155550132", "us", "+14155550132"),
    ("011 44 20 7946 0018", "US", "+442079460018"),
    ("0011 49 30 901820", "AU", "+4930901820"),
    ("8 (812) 345-67-89", "RU", "+78123456789"),
    ("812 345-67-89", "RU", "+78123456789"),
    ("555-0132", "US", "5550132"),  # no area code: nobody can know
    ("030 901820", "EU", "030901820"),  # not a country
    ("030 901820", "", "030901820"),
    ("unknown", "DE", "unknown"),
    ("1-800-FLOWERS", "US", "1-800-flowers"),
    ("112", "DE", "112"),
    ("", "DE", ""),
    ("+", "DE", ""),
    ("--", "DE", ""),
]
# The 15 of an Argentine mobile stands inside the number.
UNSUPPORTED = {("AR", "NATIONAL")}


def around_the_world() -> Iterator[tuple[str, str, str]]:
    """Example numbers of every country, in each of the usual ways."""
    ways = {name: getattr(PhoneNumberFormat, name) for name in ("E164", "INTERNATIONAL", "NATIONAL", "RFC3966")}
    for country in sorted(phonenumbers.SUPPORTED_REGIONS):
        for kind in (PhoneNumberType.FIXED_LINE, PhoneNumberType.MOBILE):
            number = phonenumbers.example_number_for_type(country, kind)
            for name, way in ways.items():
                if number is not None and (country, name) not in UNSUPPORTED:
                    yield (
                        phonenumbers.format_number(number, way),
                        country,
                        phonenumbers.format_number(number, ways["E164"]),
                    )


def scribbled(count: int) -> Iterator[tuple[str, str]]:
    """What people and programs type; the same every time."""
    dice = random.Random(7)
    countries = [*plans(), "EU", "", "XX"]
    for _ in range(count):
        text = "".join(dice.choice("0123456789" * 4 + "+ ()-/.x#;e１٣") for _ in range(dice.randint(0, 18)))
        yield dice.choice(["", "", "00", "+", "tel:", "(0)", "011"]) + text, dice.choice(countries)


@pytest.mark.parametrize(("text", "country", "meant"), WRITTEN)
def test_a_number_is_what_was_meant(text: str, country: str, meant: str) -> None:
    assert e164(text, country) == meant


def test_every_country_in_every_way() -> None:
    cases = list(around_the_world())
    assert len(cases) > 1_900
    assert {country for _, country, _ in cases} <= set(plans())
    assert [(text, country) for text, country, meant in cases if e164(text, country) != meant] == []


def test_columns_say_the_same(spark: SparkSession) -> None:
    cases = [(text, country) for text, country, _ in (*WRITTEN, *around_the_world())]
    cases += [(text, country) for text, country in scribbled(3_000)]
    rows = spark.createDataFrame(cases, "text string, country string")
    found = rows.select("text", "country", phone(F.col("text"), country_plan(F.col("country"))).alias("said")).collect()
    assert len(found) == len(cases)
    differ = [(r["text"], r["country"], r["said"]) for r in found if (r["said"] or "") != e164(r["text"], r["country"])]
    assert differ == []
