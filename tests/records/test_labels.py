"""A label is enough to find its implementation."""

from __future__ import annotations

import itertools

import pytest

from runner.records.bad_input import BadInput
from runner.records.case import Choice
from runner.records.labels import Labels, called

VARIANTS = [
    Choice("compiled", {"of": of, "mode": mode, "dynamic": dynamic})
    for of, mode, dynamic in itertools.product(("naive", "torch"), ("default", None), (False, True))
]
PATHS = ("a.py:f", "b (2), c.py:f", "/old/a.py:f", "/old/a.py:g", "x/y.py:h", "y.py:h", "z.py:only")
FILES = [Choice("file", {"path": path}) for path in PATHS]
TUNED = [
    Choice("triton", {}),
    *(Choice("triton", {"args.BLOCK": size}) for size in (64, 128)),
    *(Choice("triton", {"args.BLOCK": 64, "args.num_warps": warps}) for warps in (4, 8)),
    Choice("file", {"path": "a.py:f", "args.BLOCK": 64}),
]
WRAPPED = [Choice("compiled", {"of": of, "mode": "default"}) for of in ("torch", "/my/own.py:f", "own.py:torch")]


@pytest.mark.parametrize(
    "some", [VARIANTS, VARIANTS[::2], VARIANTS[1:2], FILES, WRAPPED, TUNED, TUNED[1:], [*VARIANTS, *FILES]]
)
def test_a_label_names_one_implementation_of_its_grid(some):
    labels = Labels(some)
    for impl in some:
        assert [some[place] for place in called(some, labels.label(impl))] == [impl]


def test_a_function_in_a_file_is_told_by_the_shortest_end_of_its_path():
    def labels(*paths):
        impls = [Choice("file", {"path": path}) for path in paths]
        return [Labels(impls).label(impl) for impl in impls]

    assert labels("/long/path/tricks.py:slow", "/long/path/tricks.py:fast") == ["file(slow)", "file(fast)"]
    assert labels("/a/one.py:f", "/a/two.py:f") == ["file(one.py:f)", "file(two.py:f)"]
    assert labels("new/k.py:f", "/home/old/k.py:f") == ["file(new/k.py:f)", "file(old/k.py:f)"]
    assert labels("k.py:f", "old/k.py:f") == ["file(k.py:f)", "file(old/k.py:f)"]
    assert labels("/long/path/tricks.py:slow") == ["file"]
    assert [Labels(WRAPPED).label(impl) for impl in WRAPPED] == [
        "compiled(of=torch)",
        "compiled(of=f)",
        "compiled(of=own.py:torch)",
    ]


def test_arguments_that_are_given_are_always_shown():
    assert [Labels(TUNED).label(impl) for impl in TUNED] == [
        "triton",
        "triton(BLOCK=64)",
        "triton(BLOCK=128)",
        "triton(BLOCK=64, num_warps=4)",
        "triton(BLOCK=64, num_warps=8)",
        "file(BLOCK=64)",
    ]
    assert Labels(TUNED[1:2]).label(TUNED[1]) == "triton(BLOCK=64)"


@pytest.mark.parametrize("label", ["file(path=/long/tricks.py:slow)", "file(tricks.py:slow)", "file(slow)"])
def test_a_longer_and_a_shorter_path_name_the_same_function(label):
    impls = [Choice("file", {"path": f"/long/tricks.py:{name}"}) for name in ("slow", "fast")]
    assert called(impls, label) == [0]


def test_a_shorter_label_names_several_implementations():
    assert [VARIANTS[place] for place in called(VARIANTS, "compiled(of=torch)")] == VARIANTS[4:]
    assert len(called(VARIANTS, "compiled")) == len(VARIANTS)


@pytest.mark.parametrize(
    "label",
    ["", "compile", "compiled(", "compiled()", "compiled(of=torch", "compiled(torch)", "compiled(mode=null, of=torch)"],
)
def test_a_malformed_label_names_no_implementation(label):
    assert not called(VARIANTS, label)


def test_an_unknown_baseline_is_answered_with_all_labels():
    known = Labels([*VARIANTS[:2], Choice("torch", {})])
    known.check("compiled(dynamic=true)")
    known.check(None)
    with pytest.raises(
        BadInput, match=r"baseline=file: not in this sweep; one of: compiled\(dynamic=false\), .*, torch"
    ):
        known.check("file")
