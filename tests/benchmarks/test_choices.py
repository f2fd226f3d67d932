"""What the study of matmul's choices measures, and says."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks.common import ROOT
from benchmarks.kernels.choices import SHAPES, Found, choices, report


@pytest.mark.parametrize("dtype", SHAPES)
def test_all_choices_are_different_and_the_chosen_one_is_among_them(dtype):
    pytest.importorskip("triton")
    from runner.kernels.matmul._configurations import configuration

    precision = "tf32x3" if dtype == "float32" else "ieee"
    for shape in SHAPES[dtype]:
        found = choices(shape, dtype, precision, 132)
        assert len(found) == len({*map(str, found)}) > 5
        if all(size % 16 == 0 for size in shape):
            m, k, n = shape
            machine = {"capability": (9, 0), "multiprocessors": 132, "roles": True}
            assert configuration(m, n, k, dtype, precision=precision, **machine) in found


@pytest.mark.long
def test_every_choice_is_measured_with_its_estimate():
    """Under the interpreter, in float16, which it multiplies as a GPU does."""
    code = """
from benchmarks.kernels import choices
found = choices.measure((70, 64, 24), "float16", choices.once)
assert found.measured.keys() == found.estimated.keys()
assert len(found.measured) > 3
print(found.loss)
"""
    pytest.importorskip("triton", minversion="3.4")
    given = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=given, capture_output=True, text=True)
    assert done.stdout.strip() == "1.0", done.stderr


def test_the_page_says_what_the_choices_cost():
    one = Found((8, 16, 32), 4.0, "a", 3.0, {"a": 3.0, "b": 2.0}, {"a": 3.0, "b": 4.0})
    two = Found((64, 64, 64), 9.0, "b", 6.0, {"b": 6.0}, {"b": 6.0})
    text = report([two, one])
    assert "2 shapes, 3 choices" in text
    assert "1.225 as a geometric mean, 1.500 at most" in text
    assert "by a factor of 1.49" in text  # exp(log 2 / sqrt 3)
    assert text.splitlines()[-2].startswith("| 8x16x32 | 4.00 | 3.00 | 2.00 | 1.500 | 2.000 | a | b |")
