"""The key of a case: the same in a program of torch alone as where orjson is installed, and as it was."""

from __future__ import annotations

import random
import struct
from math import inf, nan

import orjson
import pytest

from runner.records.case import CaseRecord, Choice
from runner.records.settings import Settings

FLOATS = [1e-5, -1.5e-5, 1e-6, 1e-7, 1e-4, 1e16, 1e15, 123456789012345680.0, 0.0, -0.0, nan, inf]


def drawn():
    generator = random.Random()
    for _ in range(500):
        anything = struct.unpack("d", generator.randbytes(8))[0]
        yield generator.choice([anything, round(generator.random() * 10.0 ** generator.randint(-8, 20), 8)])


@pytest.mark.parametrize("value", [*FLOATS, "ü", "\u2028\x7f\x1f", pytest.param(drawn, id="drawn")])
def test_a_choice_is_written_as_orjson_writes_it(value):
    for each in drawn() if value is drawn else [value]:
        choice = Choice("rms.py", {"eps": each, "rows": 8, "words": ("a", 1.5, True, None)})
        assert choice.text == orjson.dumps(choice.to_record(), option=orjson.OPT_SORT_KEYS).decode(), each


def test_the_key_of_a_case_stays_what_it_was():
    def key(**fields):
        return CaseRecord(Choice("rms.py", fields), Choice("torch", {}), (), Settings("cpu", 0)).key

    keys = [key(eps=1e-5), key(eps=1e-7), key(path="ü.py"), key(eps=nan), key(eps=1.0)]
    assert keys == ["0bff1ca54d6e2b77", "7751e33bbd26780a", "c8d18ac11887a3b3", "b89f2c93b9869761", "a1de404b766a208c"]
    assert key(path="\udcff")  # a name that is no text in UTF-8
