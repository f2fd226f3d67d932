"""The types of a dataclass are the rules of its YAML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
import yaml

from runner.records.bad_input import BadInput
from runner.records.options import CONF, option_class
from runner.records.schema import build, to_fields


@dataclass(frozen=True)
class Thing:
    size: Annotated[int, "at least 1"]
    kind: Literal["a", "b", 3]
    share: float
    wait_s: Annotated[float, "above 0"]
    flag: bool
    maybe: str | None
    tags: tuple[str, ...]
    pass_: Literal["fwd"]

    def __post_init__(self):
        if self.share > 1:
            raise ValueError("share: more than all of it")


GOOD = {"size": 1, "kind": "a", "share": 0.5, "wait_s": 2.0, "flag": True, "maybe": None, "tags": ["x"], "pass": "fwd"}


def test_build_and_record_are_inverse():
    thing = build(Thing, GOOD, "thing")
    assert thing == Thing(1, "a", 0.5, 2.0, True, None, ("x",), "fwd")
    assert to_fields(thing) == GOOD | {"tags": ("x",)}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"size": 0}, "thing.size: 0 is not allowed; give a whole number of at least 1"),
        ({"size": 10**24}, "thing.size: 10{24} is not allowed; give at most 18446744073709551615"),
        ({"size": True}, "thing.size: true is not allowed; give a whole number of at least 1"),
        ({"wait_s": float("inf")}, "thing.wait_s: inf is not allowed; give a finite number above 0"),
        ({"wait_s": float("nan")}, "thing.wait_s: nan is not allowed; give a finite number above 0"),
        ({"wait_s": 0}, "thing.wait_s: 0.0 is not allowed; give a number above 0"),
        ({"size": 1.5}, "thing.size: 1.5 is not allowed"),
        ({"kind": "c"}, "thing.kind: 'c' is not allowed; one of: 3, a, b"),
        ({"kind": "3"}, "thing.kind: '3' is not allowed"),
        ({"share": "half"}, "thing.share: 'half' is not allowed; give a number"),
        ({"share": 2}, "thing.share: more than all of it"),
        ({"flag": 1}, "thing.flag: 1 is not allowed; give true or false"),
        ({"maybe": 1}, "thing.maybe: 1 is not allowed; give a word or null"),
        ({"tags": [1]}, "thing.tags: .1. is not allowed; give a list, each item a word"),
        ({"pass_": "fwd"}, "thing.pass_: no such field; did you mean pass"),
        ({"colour": 1}, "thing.colour: no such field; one of: "),
    ],
)
def test_a_broken_rule_is_named(change, line):
    with pytest.raises(BadInput, match=line):
        build(Thing, GOOD | change, "thing")


@pytest.mark.parametrize(
    ("word", "number"), [("4k", 4096), ("4K", 4096), ("2M", 2 * 1024**2), ("2**12", 4096), ("1**0", 1), (1e3, 1000)]
)
def test_a_whole_number_has_a_short_form(word, number):
    assert build(Thing, GOOD | {"size": word}, "thing").size == number
    assert build(Thing, GOOD | {"maybe": "4k"}, "thing").maybe == "4k"


@pytest.mark.parametrize("word", ["0k", "-4k", "4.5k", "4m", "4kb", "2**", "2**64", "9**99999", "4096"])
def test_other_words_are_no_numbers(word):
    with pytest.raises(BadInput, match="is not allowed; give a whole number of at least 1"):
        build(Thing, GOOD | {"size": word}, "thing")


def test_a_message_is_one_line_whatever_a_key_holds():
    with pytest.raises(BadInput) as refused:
        build(Thing, GOOD | {"a\nb\x1b[31m\u202e\u00e9": 1}, "thing")
    assert str(refused.value).startswith("thing.a\\nb\\x1b[31m\\u202e\u00e9: no such field; ")


@pytest.mark.parametrize("field", ["partition", "account"])
def test_a_word_in_a_script_has_one_line(field):
    pytest.importorskip("submitit")
    slurm = option_class("execute", "slurm")
    fields = yaml.safe_load((CONF / "launcher" / "slurm.yaml").read_text())
    fields |= {"cluster": "local"}
    del fields["name"]
    assert getattr(build(slurm, fields | {field: "gpu"}, "launcher"), field) == "gpu"
    with pytest.raises(BadInput, match=rf"launcher\.{field}: .*; give a word on one line"):
        build(slurm, fields | {field: "gpu\ntouch x"}, "launcher")


def test_a_missing_field_is_named():
    with pytest.raises(BadInput, match=r"thing\.size: missing; give it a value with thing\.size="):
        build(Thing, {k: v for k, v in GOOD.items() if k != "size"}, "thing")


def test_a_field_at_the_top_has_no_prefix():
    with pytest.raises(BadInput, match=r"^size: 0"):
        build(Thing, GOOD | {"size": 0}, "")


def test_no_fields_are_listed_for_a_class_without_fields():
    with pytest.raises(BadInput, match=r"^impl\.of: no such field; there are none$"):
        build(type("Plain", (), {"__dataclass_fields__": {}}), {"of": "naive"}, "impl")
