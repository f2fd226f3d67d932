"""A label is enough to find its implementation."""

from __future__ import annotations

import itertools

import pytest

from runner.experiment.case import Choice, Labels, is_called
from runner.experiment.schema import BadInput

VARIANTS = [
    Choice("compiled", {"of": of, "mode": mode, "dynamic": dynamic})
    for of, mode, dynamic in itertools.product(("naive", "torch"), ("default", None), (False, True))
]
FILES = [Choice("file", {"path": path}) for path in ("a.py:f", "b (2), c.py:f", "path=a.py:f")]


@pytest.mark.parametrize("some", [VARIANTS, VARIANTS[::2], VARIANTS[:2], VARIANTS[1:2], FILES, [*VARIANTS, *FILES]])
def test_a_label_names_one_implementation_of_its_grid(some):
    labels = Labels(some)
    for impl in some:
        assert [other for other in some if is_called(other, labels.label(impl))] == [impl]


def test_a_shorter_label_names_several_implementations():
    assert [impl for impl in VARIANTS if is_called(impl, "compiled(of=torch)")] == VARIANTS[4:]
    assert all(is_called(impl, "compiled") for impl in VARIANTS)


@pytest.mark.parametrize(
    "label",
    ["", "compile", "compiled(", "compiled()", "compiled(of=torch", "compiled(torch)", "compiled(mode=None, of=torch)"],
)
def test_a_malformed_label_names_no_implementation(label):
    assert not any(is_called(impl, label) for impl in VARIANTS)


def test_an_unknown_baseline_is_answered_with_all_labels():
    known = Labels([*VARIANTS[:2], Choice("torch", {})])
    known.check("compiled(dynamic=True)")
    known.check(None)
    with pytest.raises(
        BadInput, match=r"baseline=file: not in this sweep; one of: compiled\(dynamic=False\), .*, torch"
    ):
        known.check("file")
