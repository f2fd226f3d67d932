"""Kernels whose warps have roles, compiled here for a Hopper GPU that need not be here; and who gets which tile."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("interpreted kernels cannot be compiled", allow_module_level=True)
if tuple(int(word) for word in triton.__version__.split(".")[:2]) < (3, 6):
    pytest.skip("Gluon was another language before Triton 3.6", allow_module_level=True)

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402
from triton.experimental.gluon._runtime import GluonASTSource  # noqa: E402

from runner.kernels import hopper_pipeline, hopper_split  # noqa: E402
from runner.kernels.cdist import _hopper as hopper_cdist  # noqa: E402
from runner.kernels.cdist.triton import plan_for  # noqa: E402

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
SHARED = 232_448  # bytes a program can have
REGISTERS = 65_536  # of a processor
WARPS = 12  # two warpgroups that multiply, and one of which a warp loads
RESULTS = 2 * hopper_split.OWN.value * hopper_split.COLS.value // 128  # a thread, in the code of both warpgroups


@dataclass(frozen=True)
class Built:
    ptx: str
    usage: str
    shared: int


def box(rows, cols, dtype="fp16"):
    layout = gl.NVMMASharedLayout.get_default_for([rows, cols], gl.float32 if dtype == "fp32" else gl.float16)
    return f"tensordesc<{dtype}[{rows}, {cols}],{layout!r}>"


def build(kernel, tmp_path, **values):
    """``values``: the type of each argument, or the value of a constant. Numbers and addresses are multiples of 16."""
    values = dict.fromkeys(["a_norms", "a_scales", "b_norms", "b_scales"], "*fp32") | {"one": "fp32"} | values
    values = dict.fromkeys(["n", "m", "a_lo", "b_lo", "width"], "i32") | {"ALL": False, "GROUP": 8} | values
    values = {name: values[name] for name in kernel.arg_names}
    constants = {name: value for name, value in values.items() if not isinstance(value, str)}
    signature = {name: "constexpr" if name in constants else kind for name, kind in values.items()}
    aligned = {(place,): [["tt.divisibility", 16]] for place, kind in enumerate(signature.values()) if kind[0] in "*i"}
    source = GluonASTSource(kernel, signature=signature, constexprs=constants, attrs=aligned)
    options = {"num_warps": 4, "maxnreg": hopper_split.REGISTERS.value}
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(built.asm["cubin"])
    command = [CUOBJDUMP, "-res-usage", cubin]
    usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return Built(built.asm["ptx"], usage, built.metadata.shared)


def ring(tmp_path, *, distances=True, b_columns=False, depth=64, **fixed):
    b = box(depth, 128) if b_columns else box(128, depth)
    kinds = {"DISTANCES": distances, "B_COLUMNS": b_columns, "DEPTH": depth, "SLOTS": 3}
    return build(hopper_split._ring, tmp_path, a=box(128, depth), b=b, y="*fp32", **kinds, **fixed)


def stay(tmp_path, *, d=64, **fixed):
    plan = plan_for(16384, 16384, d, processors=132, descriptors=True, roles=True)
    sizes = {"DEPTH": plan.depth, "PARTS": triton.cdiv(d, plan.depth), "SLOTS": plan.stages}
    points = {"a": box(128, plan.depth), "b": box(128, plan.depth), "y": box(64, 128, "fp32")}
    return build(hopper_cdist._stay, tmp_path, **points, **sizes, **fixed)


def promotions(ptx):
    """Float32 instructions, a thread, that add up what tensor cores have summed: those with the factor ``one``."""
    name = re.search(r"\.param \.f32 (\w+)", ptx)[1]
    one = re.search(rf"ld\.param\.\w+\s+(%\w+), \[{name}\]", ptx)[1]
    return len(re.findall(rf"fma\.rn\.f32\s+%\w+, %\w+, {one}, %\w+;", ptx))


KERNELS = {
    "ring": ring,
    "ring of products": lambda path, **fixed: ring(path, distances=False, **fixed),
    "ring of products by column": lambda path, **fixed: ring(path, distances=False, b_columns=True, **fixed),
    "ring with every product": lambda path, **fixed: ring(path, distances=False, ALL=True, **fixed),
    "stay 32": lambda path, **fixed: stay(path, d=32, ALL=True, **fixed),
    "stay 64": stay,
    "stay 128": lambda path, **fixed: stay(path, d=128, **fixed),
}


@pytest.mark.parametrize("name", KERNELS)
def test_compiled_roles_multiply_and_copy_by_the_units_for_it_and_spill_nothing(tmp_path, name):
    built = KERNELS[name](tmp_path)
    assert "STACK:0 " in built.usage
    assert built.shared <= SHARED
    assert int(re.search(r"REG:(\d+)", built.usage)[1]) * 32 * WARPS <= REGISTERS
    assert "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16" in built.ptx
    assert "cp.async.bulk.tensor.2d.shared" in built.ptx
    assert ("cp.async.bulk.tensor.2d.global" in built.ptx) == name.startswith("stay")
    assert "setmaxnreg.inc.sync.aligned.u32 \t240" in built.ptx
    assert ".f64" not in built.ptx
    assert "\tsqrt.approx" not in built.ptx  # see tensor_cores.root


@pytest.mark.parametrize("name", [name for name in KERNELS if name[:7] not in ("stay 32", "stay 64")])
def test_compiled_roles_add_up_outside_of_the_tensor_cores(tmp_path, name):
    assert promotions(KERNELS[name](tmp_path).ptx) == RESULTS


@pytest.mark.parametrize("name", KERNELS)
def test_compiled_warpgroups_meet_before_one_thread_says_that_a_slot_is_free(tmp_path, name):
    """One thread says so for all; without a barrier it would speak for warps that still read."""
    told = re.findall(r"wgmma\.wait_group|bar\.sync|mbarrier\.arrive\.shared", KERNELS[name](tmp_path).ptx)
    free = [i for i, word in enumerate(told) if word.startswith("mbarrier")]
    assert len(free) == (4 if name.startswith("stay") else 2)
    assert all(told[i - 1] == "bar.sync" for i in free)


@pytest.mark.parametrize(("name", "size"), [("ring", "n"), ("ring", "m"), ("stay 64", "n")])
def test_compiled_roles_take_sizes_of_1_which_triton_makes_constants(tmp_path, name, size):
    assert "STACK:0 " in KERNELS[name](tmp_path, **{size: 1}).usage


@pytest.mark.parametrize("programs", [1, 3, 132])
@pytest.mark.parametrize(("rows", "cols"), [(1, 8), (1, 157), (2, 9), (3, 8), (64, 64), (133, 12), (265, 9)])
def test_each_tile_is_one_programs_and_all_have_as_many_give_or_take_one(rows, cols, programs):
    programs = min(programs, rows * cols)
    taken, each = [], []
    for program in range(programs):
        total, whole, begin = hopper_pipeline.shares.fn(program, programs, rows, cols)
        at = 0
        while at < total:
            i, first, count = hopper_pipeline.row_of_tiles.fn(at, total, whole, begin, program, programs, cols)
            assert count > 0
            taken += [(i, j) for j in range(first, first + count)]
            at += count
        each.append(total)
    assert sorted(taken) == [(i, j) for i in range(rows) for j in range(cols)]
    assert max(each) - min(each) <= 1
