"""A workload in one file is read without being imported; each mistake in it is one line that says what to write."""

from __future__ import annotations

import ast

import pytest

from runner.records.bad_input import BadInput
from runner.tasks import own_file

RMS_NORM = """
import torch
from math import sqrt
raise RuntimeError("this file is read, not run")
axes = {"cols": [1024, 4096]}
rtol = 1e-3
def inputs(rows=4096, cols=4096, *, kind: Literal["plain", "wide"] = "plain", dtype=torch.bfloat16, device="cpu", seed):
    return torch.randn(rows, cols), torch.ones(cols)
def reference(x, w, bias=None, eps=1e-6): return _scaled(x, eps) * w
def _scaled(x, eps): return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
def fused(x, w, eps=1e-6): return torch.nn.functional.rms_norm(x, x.shape[-1:], w, eps)
@triton.jit
def kernel(x): pass
@triton.testing.perf_report(triton.testing.Benchmark(x_names=["n"]))
def benchmark(n): pass
class Model: pass
def flops(rows, cols): return 4 * rows * cols
def check(inputs, outputs): return None
by_hand = lambda x, w: x
compiled_once = torch.compile(reference, dynamic=False)
_half = functools.partial(fused, eps=0.5)
wide = partial(fused, eps=1e-3)
pattern = re.compile("x")
differentiable = Fused.apply
"""


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "mine.py"
        path.write_text(text)
        return own_file.read(str(path))

    return write


def test_fields_implementations_and_parts_are_read(file):
    read = file(RMS_NORM)
    assert read.fields == {"rows": 4096, "cols": 4096, "kind": "plain", "eps": 1e-6}
    assert read.of_inputs == ("rows", "cols", "kind")
    assert read.of_reference == ("eps",)
    assert read.words == {"kind": ("plain", "wide")}
    assert read.filled == ("dtype", "device", "seed")
    assert read.dtype == "bfloat16"
    assert read.implementations == ("reference", "fused", "compiled_once", "wide", "differentiable")
    assert read.parts == ("inputs", "reference", "flops", "check")
    assert read.sizes == ["rows", "cols"]
    assert (read.axes, read.atol, read.rtol) == ({"cols": [1024, 4096]}, None, 1e-3)


def test_the_fields_of_every_workload_may_be_swept_too(file):
    axes = {"n": [1, 2], "dtype": ["float16", None], "pass": ["fwd", "bwd"], "tf32": [True], "layout": ["offset"]}
    assert file(f"axes = {axes}\ndef inputs(n=1): ...\ndef reference(x): ...").axes == axes


@pytest.mark.parametrize("line", ["axes: dict = {'n': [1, 2]}", "axes, atol = {'n': [1, 2]}, 1e-3"])
def test_a_setting_may_be_annotated_or_one_of_several(file, line):
    assert file(f"{line}\ndef inputs(n=1): ...\ndef reference(x): ...").axes == {"n": [1, 2]}


def test_it_is_read_again_after_an_edit(file):
    before = file("def inputs(n=1): ...\ndef reference(x): ...\n")
    after = file("def inputs(n=1): ...\ndef reference(x): ...\ndef other(x): ...\n")
    assert (before.implementations, after.implementations) == (("reference",), ("reference", "other"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def reference(x): ...", "it defines no inputs(); write one that returns the arguments, as in def inputs"),
        ("def inputs(): ...", "it defines no reference(); write the function that says what is right"),
        ("class Operator: ...", "it defines no inputs() beside class Operator; write one that returns the arguments"),
        ("class Model: ...", "it defines no inputs() or get_inputs() beside class Model; write one that returns"),
        ("def inputs(n): ...\ndef reference(x): ...", "inputs: n has no default; give it one, as in n=1024"),
        ("def inputs(*n): ...\ndef reference(x): ...", "inputs takes * or ** arguments; name each, with a default"),
        (
            "def inputs(n=SIZE): ...\ndef reference(x): ...",
            "inputs: the default of n is SIZE, which is not a literal; give a number, a word, True or False",
        ),
        (
            "def inputs(n=[1, None]): ...\ndef reference(x): ...",
            "inputs: the default of n is [1, None], which is not a literal; give a number, a word, True or False",
        ),
        (
            "def inputs(shape=1): ...\ndef reference(x): ...",
            "inputs: shape is a field of every workload; give the parameter another name",
        ),
        (
            "def inputs(n=1): ...\ndef reference(x, n=2): ...",
            "n has two defaults, in inputs and in reference; give both the same",
        ),
        (
            "def inputs(*, dtype=torch.int8): ...\ndef reference(x): ...",
            "inputs: dtype=torch.int8 is not allowed; one of: float32, float16, bfloat16, float64, float8_e4m3fn",
        ),
        (
            "axes = {'m': [1]}\ndef inputs(n=1): ...\ndef reference(x): ...",
            "is not a field with a list of values; write it as in axes = {'cols': [1024, 4096]}",
        ),
        (
            "atol = -1\ndef inputs(n=1): ...\ndef reference(x): ...",
            "atol = -1 is not allowed; give a number of at least 0",
        ),
        (
            "shapes, atol = load()\ndef inputs(n=1): ...\ndef reference(x): ...",
            "shapes is not a literal; write the values",
        ),
        ("def inputs(n=1:", "line 1: "),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_write(file, text, message):
    with pytest.raises(BadInput) as caught:
        file(text)
    assert "mine.py" in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(BadInput, match=r"nothing\.py: No such file or directory: give a path that exists, seen from"):
        own_file.read(str(tmp_path / "nothing.py"))


@pytest.mark.parametrize(
    ("edit", "changed"),
    [
        (("torch.nn.functional.rms_norm(x", "torch.nn.functional.rms_norm(1 * x"), {"fused"}),
        (("pow(2)", "square()"), {"reference", "fused"}),  # _scaled is a part of reference, which all are judged by
        (('axes = {"cols": [1024, 4096]}', 'axes = {"cols": [1024]}'), {"reference", "fused"}),
        (("def check(inputs, outputs): return None", "def check(inputs, outputs): return ''"), {"reference", "fused"}),
        (("@triton.jit\ndef kernel(x): pass", "@triton.jit\ndef kernel(y): pass"), set()),
    ],
)
def test_an_edit_of_one_implementation_is_none_of_another(edit, changed):
    before, after = ast.parse(RMS_NORM), ast.parse(RMS_NORM.replace(*edit))
    for function in ("reference", "fused"):
        used = [ast.unparse(own_file.used_code(tree, [*own_file.PARTS, function])) for tree in (before, after)]
        assert (used[0] != used[1]) == (function in changed), function
