"""What Triton makes of its kernels, compiled here for GPUs that need not be here: wide loads, and no spills."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("interpreted kernels cannot be compiled", allow_module_level=True)

import triton.language as tl  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from runner.kernels import reductions, row_norms  # noqa: E402
from runner.kernels.adamw import triton as adamw  # noqa: E402
from runner.kernels.add import triton as add  # noqa: E402
from runner.kernels.cumsum import triton as cumsum  # noqa: E402
from runner.kernels.gelu import triton as gelu  # noqa: E402
from runner.kernels.histogram import triton as histogram  # noqa: E402
from runner.kernels.softmax import _triton_forward as softmax  # noqa: E402
from runner.kernels.softmax import _triton_plan as softmax_plan  # noqa: E402
from runner.kernels.square import triton as square  # noqa: E402
from runner.kernels.transpose import triton as transpose  # noqa: E402

from .cases import long  # noqa: E402

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
ALIGNED = [["tt.divisibility", 16]]


def on(*values):
    """Each on sm_90; in long tests the first on sm_89 too and the last on sm_80, whose instructions are the same."""
    return [*((90, value) for value in values), long(89, values[0]), long(80, values[-1])]


def build(kernel, arguments, constants, capability, warps, tmp_path, multiples=None):
    """PTX, and the bytes of stack a thread needs, where ``multiples``, or all arguments, are multiples of 16."""
    signature = arguments | dict.fromkeys(constants, "constexpr")
    source = ASTSource(
        kernel,
        signature=signature,
        constexprs=constants,
        attrs={
            (place,): ALIGNED
            for place, name in enumerate(signature)
            if name in (arguments if multiples is None else multiples)
        },
    )
    built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps})
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(built.asm["cubin"])
    usage = subprocess.run([CUOBJDUMP, "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
    return built.asm["ptx"], int(re.search(r"STACK:(\d+)", usage)[1])


@pytest.mark.parametrize(("capability", "dtype"), on("bf16", "fp32", "fp64"))
@pytest.mark.parametrize(
    ("kernel", "arguments"),
    [(add._add, {}), (gelu._gelu, {"TANH": True}), (gelu._gelu, {"TANH": False}), (square._square, {})],
    ids=["add", "gelu tanh", "gelu erf", "square"],
)
def test_elements_of_any_number_are_moved_128_bits_at_once(tmp_path, capability, dtype, kernel, arguments):
    constants = arguments | {"BLOCK": 1024}
    constants |= {} if kernel is add._add else {"ARITHMETIC": tl.float64 if dtype == "fp64" else tl.float32}
    pointers = {name: f"*{dtype}" for name in kernel.arg_names if name.endswith("_ptr")}
    ptx, stack = build(kernel, pointers | {"count": "i64"}, constants, capability, 4, tmp_path, multiples=pointers)
    accesses = 1024 * {"bf16": 2, "fp32": 4, "fp64": 8}[dtype] // (4 * 32 * 16)  # of a thread
    for what, tensors in (("ld", len(pointers) - 1), ("st", 1)):
        found = widths(ptx, what)
        assert found.count(128) == tensors * accesses
        assert len(found) == tensors * (accesses + 1)  # and the last elements, one a thread
    assert stack == 0
    assert dtype == "fp64" or ".f64" not in ptx


@pytest.mark.parametrize(("capability", "block"), on(32768, 128, 1024, 4096, 16384))
@pytest.mark.parametrize(("dtype", "whole"), [("fp32", True), ("bf16", False)])  # the next test has the others
def test_compiled_softmax_moves_128_bits_at_once_and_spills_nothing(tmp_path, capability, block, dtype, whole):
    ptx, stack, plan = build_softmax(dtype, block if whole else block - 16, capability, tmp_path)
    assert bits(ptx, "ld") == bits(ptx, "st") == 128
    assert stack == 0
    assert ".f64" not in ptx
    loads = plan.rows * plan.step * plan.steps * ITEMSIZE[dtype] // (plan.warps * 32 * 16)  # of a thread, at one read
    assert len(re.findall(r"ld\.global", ptx)) == plan.reads * loads  # none is merged with another


@pytest.mark.parametrize(("capability", "block"), on(32768, 1024, 16384))
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_compiled_softmax_of_an_odd_number_of_columns_has_one_narrow_access(tmp_path, capability, block, dtype):
    ptx, stack, plan = build_softmax(dtype, block - 1, capability, tmp_path)
    wide, narrow = (len(re.findall(rf"st\.global{kind}\.b", ptx)) for kind in (r"\.v4", ""))
    assert wide == plan.step * plan.steps * ITEMSIZE[dtype] // (plan.warps * 32 * 16)
    assert narrow == 1
    assert stack == 0


@pytest.mark.parametrize(("capability", "cols"), on(9001, 16384))
def test_compiled_softmax_in_float64_keeps_its_widest_row_in_registers(tmp_path, capability, cols):
    _, stack, plan = build_softmax("fp64", cols, capability, tmp_path)
    assert stack == 0
    assert plan.reads == 1


def build_norm(function, mean, cols, constants, warps, tmp_path):
    arguments = {name: "*bf16" for name in function.arg_names if "_ptr" in name} | {
        "mean_ptr": "*fp32",
        "rstd_ptr": "*fp32",
    }
    arguments |= {name: "i32" for name in ("stride", "rows", "cols") if name in function.arg_names}
    shared = {"EPS": 1e-5, "MEAN": mean, "SAVE": True, "ARITHMETIC": tl.float32, "UNIT": 8}
    return build(function, arguments, shared | constants, 90, warps, tmp_path)


@pytest.mark.parametrize(("mean", "cols"), [(False, 4096), (True, 4096), (True, 8192)])
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "masked"])
def test_compiled_norms_move_128_bits_at_once_and_spill_nothing(tmp_path, mean, cols, whole):
    _, warps, again = row_norms._forward_plan(cols, 4096, 2, mean, 132)
    constants = {"ROWS": 1, "BLOCK": cols, "EVEN": whole, "AT_ONCE": whole}
    constants |= {"AGAIN": again, "HINT": "evict_last" if again else ""}
    ptx, stack = build_norm(row_norms._forward_rows, mean, cols, constants, warps, tmp_path)
    each = cols // (warps * 32 * 8)  # accesses of a thread to a row
    assert widths(ptx, "ld").count(128) == each * (1 + again + 1 + mean)
    assert widths(ptx, "st").count(128) == each
    assert stack == 0


@pytest.mark.parametrize(
    ("mean", "cols", "plan"),
    [
        (True, 1280, (256, 5, 1)),
        (True, 5120, (1024, 5, 4)),
        (True, 16_384, (8192, 2, 16)),
        (True, 11_008, (4096, 3, 16)),  # 43 times 256
        (False, 5120, (2048, 3, 8)),
        (False, 100_000, (4096, 0, 16)),
    ],
)
def test_compiled_norms_in_steps_move_128_bits_at_once_and_spill_nothing(tmp_path, mean, cols, plan):
    assert row_norms._steps(cols, 2, mean) == plan
    step, steps, warps = plan
    even = cols % step == 0
    constants = {"STEP": step, "STEPS": steps, "EVEN": even, "AT_ONCE": even}
    ptx, stack = build_norm(row_norms._forward_long, mean, cols, constants, warps, tmp_path)
    assert set(widths(ptx, "ld")) == {128}
    assert widths(ptx, "st").count(128) >= max(1, step // (warps * 32 * 8))
    assert stack == 0


# One number | of rows, one program each | of columns | of many short rows, without a loop
@pytest.mark.parametrize(
    ("op", "dtype", "outs", "inner"),
    [
        ("sum", "fp32", 1, True),
        ("argmax", "bf16", 1, True),
        ("max", "bf16", 2**14, True),
        ("sum", "bf16", 2**14, False),
        ("argmax", "fp32", 2**12, False),
        ("norm", "bf16", 2**18, True),
    ],
)
def test_compiled_reductions_load_128_bits_at_once_and_leave_registers_to_others(tmp_path, op, dtype, outs, inner):
    itemsize, count = (4 if dtype == "fp32" else 2), 2**26 // outs
    plan = reductions.plan_for(op, outs, count, itemsize, inner, True, 132)
    sizes = dict.fromkeys(("stride", "lead", "outs", "count", "rounds", "extra", "segments"), "i32")
    types = {"x_ptr": f"*{dtype}", "y_ptr": "*i64" if op == "argmax" else f"*{dtype}", "value_ptr": "*fp32"}
    arguments = types | {"place_ptr": "*i64", "counter_ptr": "*i32"} | sizes
    constants = {
        "OP": op,
        "INNER": inner,
        "UNIT": 16 // itemsize,
        "LENGTH_UNIT": 16 // itemsize,
        "ARITHMETIC": tl.float32,
        "OUTS": plan.outs,
        "STEP": plan.step,
        "UNROLL": plan.unroll,
        "LOOP": plan.loop,
        "ALL_OUTS": True,
        "ALL_STEPS": True,
        "ALIGN": 1,
        "TOGETHER": plan.together,
    }
    pointers = [name for name in arguments if name.endswith("ptr")]
    ptx, stack = build(reductions._reduce, arguments, constants, 90, plan.warps, tmp_path, pointers)
    loads = len(re.findall(r"ld\.global\.v4\.b32", ptx.replace(".L1::", ".")))
    assert loads >= plan.outs * plan.step * plan.unroll * itemsize // (plan.warps * 32 * 16)  # of a thread, in a round
    assert stack == 0
    assert ".f64" not in ptx
    usage = subprocess.run([CUOBJDUMP, "-res-usage", tmp_path / "kernel.cubin"], capture_output=True, text=True)
    registers = int(re.search(r"REG:(\d+)", usage.stdout)[1])
    assert plan.loop is False or registers * 32 * plan.warps * reductions.RESIDENT <= 2**16


ITEMSIZE = {"bf16": 2, "fp32": 4, "fp64": 8}


def softmax_rows(dtype, cols, rows=10**5):
    return softmax_plan.Rows(rows, cols, cols, ITEMSIZE[dtype], multiprocessors=132, l2=50 << 20)


def build_softmax(dtype, cols, capability, tmp_path):
    """PTX, bytes of stack and plan, for many rows that fit into registers."""
    plan = softmax_plan.held(softmax_rows(dtype, cols))
    ptx, stack = build(
        softmax._softmax_rows,
        {"x_ptr": f"*{dtype}", "y_ptr": f"*{dtype}", "x_stride": "i32", "rows": "i32", "cols": "i32"},
        {
            "ARITHMETIC": tl.float64 if dtype == "fp64" else tl.float32,
            "ROWS": plan.rows,
            "STEP": plan.step,
            "STEPS": plan.steps,
            "SURE": plan.sure,
            "READS": plan.reads,
            "UNIT": plan.access.unit,
            "EDGES": plan.access.edges,
        },
        capability,
        plan.warps,
        tmp_path,
        multiples=("x_ptr", "y_ptr"),
    )
    return ptx, stack, plan


@pytest.mark.parametrize(("capability", "dtype"), on("bf16", "fp32", "fp64"))
@pytest.mark.parametrize(("rows", "cols"), [long(10**4, 33_000), (10**4, 131_071), (3, 131_072)])
def test_compiled_softmax_of_a_long_row_moves_128_bits_at_once_and_spills_nothing(
    tmp_path, capability, dtype, rows, cols
):
    plan = softmax_plan.long(softmax_rows(dtype, cols, rows), 1)
    assert (plan.slices > 1) == (rows == 3)
    pointers = {"x_ptr": f"*{dtype}", "y_ptr": f"*{dtype}", "runs_ptr": "*fp64" if dtype == "fp64" else "*fp32"}
    constants = {
        "ARITHMETIC": tl.float64 if dtype == "fp64" else tl.float32,
        "STEP": plan.step,
        "UNIT": plan.access.unit,
        "EDGES": plan.access.edges,
        "LONG": False,
        "SLICES": triton.next_power_of_2(plan.slices),
        "LOOP": plan.programs < rows * plan.slices,
    }
    for launch in (0,) if plan.slices == 1 else (1, 2):
        ptx, stack = build(
            softmax._softmax_long,
            pointers | dict.fromkeys(("x_stride", "items", "cols", "slices", "steps"), "i32"),
            constants | {"LAUNCH": launch},
            capability,
            plan.warps,
            tmp_path,
            multiples=pointers,
        )
        assert dtype == "fp64" or ".f64" not in ptx
        assert stack == 0
        if not plan.access.edges and plan.slices == 1 and (dtype != "fp64" or cols % 2 == 0):
            assert bits(ptx, "ld") == bits(ptx, "st") == 128


@pytest.mark.parametrize("side", [1024, 16384])
@pytest.mark.parametrize(("dtype", "itemsize"), [("bf16", 2), ("fp32", 4)])
def test_compiled_transpose_moves_128_bits_at_once_and_spills_nothing(tmp_path, dtype, itemsize, side):
    rows, cols = transpose.tile_for(side, side, itemsize, 132)
    constants = {"ROWS": rows, "COLS": cols}
    arguments = {"x_ptr": f"*{dtype}", "y_ptr": f"*{dtype}", "x_stride": "i32", "rows": "i32", "cols": "i32"}
    ptx, stack = build(transpose._transpose, arguments, constants, 90, transpose.WARPS, tmp_path)
    assert bits(ptx, "ld") == bits(ptx, "st") == 128
    assert stack == 0


@pytest.mark.parametrize(("cols", "dtype"), [(100, "fp32"), (10**6, "fp32"), (10**6, "bf16")])
def test_compiled_cumsum_moves_128_bits_at_once_and_spills_nothing(tmp_path, cols, dtype):
    rows, block, warps = cumsum.shape_for(cols, 4)
    ptx, stack = build(
        cumsum._cumsum,
        {"x_ptr": f"*{dtype}", "y_ptr": f"*{dtype}", "x_stride": "i32", "rows": "i32", "cols": "i32"},
        {"ARITHMETIC": tl.float32, "ROWS": rows, "BLOCK": block, "LONG": False},
        90,
        warps,
        tmp_path,
    )
    assert bits(ptx, "ld") == bits(ptx, "st") == 128
    assert stack == 0
    assert ".f64" not in ptx


def test_compiled_histogram_reads_128_bits_at_once_and_spills_nothing(tmp_path):
    ptx, stack = build(
        histogram._count_blocks,
        {"x_ptr": "*fp32", "y_ptr": "*i64", "count": "i32", "bins": "i32"},
        {"BINS": 256, "BLOCK": histogram.BLOCK},
        90,
        histogram.WARPS,
        tmp_path,
    )
    assert bits(ptx, "ld") == 128
    assert stack == 0


def widths(ptx: str, what: str) -> list[int]:
    """Bits of each access to global memory of that kind, "ld" or "st"."""
    found = re.findall(rf"{what}\.global\S*?(?:\.v(\d))?\.b(\d+)", ptx)
    return [int(count or 1) * int(width) for count, width in found]


def bits(ptx: str, what: str) -> int:
    """Width of the narrowest access to global memory of that kind."""
    return min(widths(ptx, what))


@pytest.mark.parametrize(("capability", "dtype"), [(100, "fp32"), (90, "fp32"), (89, "bf16"), (80, "bf16")])
def test_a_parameter_in_a_table_is_moved_128_bits_at_once_where_it_is_aligned(tmp_path, capability, dtype):
    kind = {"fp32": tl.float32, "bf16": tl.bfloat16}[dtype]
    constants = {"P": kind, "G": kind, "M": kind, "ARITHMETIC": tl.float32, "COUNT": 256, "BLOCK": 1024}
    numbers = [name for name in adamw._adamw.arg_names if name not in ("table_ptr", "count", *constants)]
    arguments = {"table_ptr": "*i64", "count": "i32"} | dict.fromkeys(numbers, "fp64")
    ptx, stack = build(adamw._adamw, arguments, constants, capability, 4, tmp_path, multiples=["table_ptr"])
    accesses = 1024 * {"bf16": 2, "fp32": 4}[dtype] // (4 * 32 * 16)  # of a thread
    assert [widths(ptx, what).count(128) for what in ("ld", "st")] == [4 * accesses, 3 * accesses]
    assert stack == 0
