"""Lengths just below 2^31, which 32 bits hold, and which wrap when they are rounded up to a tile."""

from __future__ import annotations

import os
import re

import pytest

triton = pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("interpreted kernels cannot be compiled", allow_module_level=True)

import triton.language as tl  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from runner.kernels.matmul._triton_kernels import matmul_pointers  # noqa: E402
from runner.kernels.softmax._triton_backward import _backward_long  # noqa: E402
from runner.kernels.softmax._triton_forward import _softmax_long  # noqa: E402

SOFTMAX = {"ARITHMETIC": tl.float32, "STEP": 512, "UNIT": 8, "EDGES": False, "LAUNCH": 0, "SLICES": 1, "LOOP": False}
TILES = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16, "GROUP_M": 8, "STAGES": 3}
MATMUL = {
    "ACCUMULATE": tl.float32,
    "PRECISION": "ieee",
    "scale_a_ptr": None,
    "scale_b_ptr": None,
    "A_ALONG_K": True,
    "B_ALONG_K": False,
    "A_UNIT": 8,
    "B_UNIT": 8,
    "A_AHEAD": False,
    "B_AHEAD": False,
    "SPLIT_K": 1,
    **TILES,
}


def arithmetic(kernel, lengths, constants):
    """What the IR of ``kernel`` does with the arguments ``lengths``, by their names."""
    signature = dict.fromkeys(kernel.arg_names, "i32")
    signature |= {name: "*fp16" for name in signature if name.endswith("_ptr")}
    signature |= {name: "fp32" for name in signature if name == "one"}
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, signature=signature, constexprs=constants)
    ir = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ttir"]
    told = re.search(r"tt\.func public @\w+\((.*?)\) attributes", ir, re.DOTALL)[1]
    names = re.findall(r"(%\w+): ", told)
    given = [name for name, kind in signature.items() if kind != "constexpr"]
    assert len(names) == len(given)
    return {
        name: set(re.findall(rf"= ([\w.]+) [^\n]*{value}\b", ir[ir.index(told) + len(told) :]))
        for name, value in zip(given, names, strict=True)
        if name in lengths
    }


@pytest.mark.parametrize("even", [True, False])
def test_a_long_product_reckons_in_64_bits(even):
    constants = MATMUL | {"EVEN_K": even}
    for given in (constants, constants | {"m": 1}):  # a length of 1 is a constant
        long = arithmetic(matmul_pointers, ("m", "n", "k"), given | {"LONG": True})
        assert len(long) == (2 if "m" in given else 3)
        assert all(done == {"arith.extsi"} for done in long.values())
    ordinary = arithmetic(matmul_pointers, ("m", "n", "k"), constants | {"LONG": False})
    assert all("arith.addi" in done for done in ordinary.values())  # which 64 bits would make dearer


@pytest.mark.parametrize("kernel", [_softmax_long, _backward_long])
def test_a_long_row_of_softmax_reckons_in_64_bits(kernel):
    assert arithmetic(kernel, ("cols",), SOFTMAX | {"LONG": True}) == {"cols": {"arith.extsi"}}
    assert "arith.muli" in arithmetic(kernel, ("cols",), SOFTMAX | {"LONG": False})["cols"]
