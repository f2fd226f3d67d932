"""What Triton makes of the kernels on halves whose warps are all alike, compiled here for GPUs that need not be here.

That the right tensor core instructions are there, that sums leave them where they should, and that nothing is spilled.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("interpreted kernels cannot be compiled", allow_module_level=True)

import triton.language as tl  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from runner.kernels import fp16_split, tensor_cores  # noqa: E402
from runner.kernels.cdist import triton as cdist  # noqa: E402
from runner.kernels.matmul import split as matmul  # noqa: E402

from .cases import ends, long  # noqa: E402

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
SHARED = {80: 166_912, 89: 101_376, 90: 232_448}  # bytes a program can have
HAS_DESCRIPTORS = tensor_cores.TensorDescriptor is not None
TENSOR_CORES = {80: "mma.sync.aligned.m16n8k16", 89: "mma.sync.aligned.m16n8k16", 90: "wgmma.mma_async"}


@dataclass(frozen=True)
class Built:
    ptx: str
    stack: int  # bytes a thread needs beyond its registers
    shared: int


def build(kernel, values, capability, warps, stages, tmp_path, unaligned=()):
    """``values``: the type of each argument, or the value of a constant. Numbers and addresses are multiples of 16."""
    constants = {name: value for name, value in values.items() if not isinstance(value, str)}
    signature = {name: "constexpr" if name in constants else values[name] for name in kernel.arg_names}
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, (name, kind) in enumerate(signature.items())
        if kind[0] in "*i" and not name.endswith("_col") and name not in unaligned
    }
    source = ASTSource(kernel, signature=signature, constexprs=constants, attrs=aligned)
    options = {"num_warps": warps, "num_stages": stages}
    built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(built.asm["cubin"])
    usage = subprocess.run([CUOBJDUMP, "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
    return Built(built.asm["ptx"], int(re.search(r"STACK:(\d+)", usage)[1]), built.metadata.shared)


def box(rows, cols, dtype="fp16"):
    return f"tensordesc<{dtype}[{rows}, {cols}]>"


def distances(plan, capability, tmp_path, *, parts=2, y="fp32", **fixed):
    descriptors = capability == 90 and HAS_DESCRIPTORS
    of_halves = {"a": box(plan.rows, plan.depth), "b": box(plan.cols, plan.depth)} if descriptors else {}
    store = plan.store if descriptors else 0
    values = {"a": "*fp16", "b": "*fp16", "y": box(plan.rows, store, y) if store else f"*{y}"} | of_halves
    values |= dict.fromkeys(["a_norms", "a_scales", "b_norms", "b_scales"], "*fp32") | {"one": "fp32"}
    values |= dict.fromkeys(["n", "m", "a_lo", "b_lo", "width"], "i32")
    values |= {
        "PARTS": parts,
        "ALL": False,
        "ROWS": plan.rows,
        "COLS": plan.cols,
        "DEPTH": plan.depth,
        "GROUP": cdist.GROUP,
    }
    values |= {"STAGES": plan.stages, "LOADS": descriptors, "STORE": store} | fixed
    chosen = {name: values[name] for name in cdist._tiles.arg_names}
    return build(cdist._tiles, chosen, capability, plan.warps, plan.stages, tmp_path)


def products(plan, capability, columns, tmp_path):
    descriptors = capability == 90 and HAS_DESCRIPTORS
    values = {"a": "*fp16", "b": "*fp16", "y": "*fp32"}
    if descriptors:
        boxes = [
            box(plan.depth, size) if by_column else box(size, plan.depth)
            for size, by_column in zip((plan.rows, plan.cols), columns, strict=True)
        ]
        values = {"a": boxes[0], "b": boxes[1], "y": box(plan.rows, plan.cols // 2, "fp32")}
    values |= dict.fromkeys(["a_scales", "b_scales"], "*fp32") | {"one": "fp32"}
    values |= dict.fromkeys(["m", "n", "k", "a_lo", "b_lo", "a_width", "b_width"], "i32")
    values |= {"A_COLUMNS": columns[0], "B_COLUMNS": columns[1], "ROWS": plan.rows, "COLS": plan.cols}
    values |= {"ALL": False, "DEPTH": plan.depth, "GROUP": matmul.GROUP, "STAGES": plan.stages}
    values |= {"LOADS": descriptors, "STORES": descriptors}
    chosen = {name: values[name] for name in matmul._tiles.arg_names}
    return build(matmul._tiles, chosen, capability, plan.warps, plan.stages, tmp_path)


def cdist_plans(capability):
    """All that ``plan_for`` gives."""
    found = [
        cdist.plan_for(size, size, d, processors=132, descriptors=capability == 90 and HAS_DESCRIPTORS, roles=False)
        for size in (64, 16384)
        for d in (16, 64, 128, 2048)
    ]
    if capability == 90 and HAS_DESCRIPTORS:
        found.append(cdist.plan_for(16384, 16383, 100, processors=132, descriptors=True, roles=True))
    return dict.fromkeys(found)


def promotions(ptx):
    """Float32 instructions, a thread, that add up what tensor cores have summed: those with the factor ``one``."""
    name = re.search(r"\.param \.f32 (\w+)", ptx)[1]
    one = re.search(rf"ld\.param\.\w+\s+(%\w+), \[{name}\]", ptx)[1]
    return len(re.findall(rf"fma\.rn\.f32\s+%\w+, %\w+, {one}, %\w+;", ptx))


def fast(built, plan, capability):
    assert built.stack == 0
    assert built.shared <= SHARED[capability]
    assert ".f64" not in built.ptx
    assert TENSOR_CORES[capability] in built.ptx
    assert promotions(built.ptx) == plan.rows * plan.cols // (32 * plan.warps)
    assert (
        "cp.async.bulk.tensor" if capability == 90 and HAS_DESCRIPTORS else "cp.async.cg.shared.global"
    ) in built.ptx
    return True


# The instructions of sm_89 are those of sm_80, with less shared memory.
PLANS = [(capability, plan) for capability in (90, 80) for plan in cdist_plans(capability)]
PLANS += [(89, max(cdist_plans(89), key=lambda plan: plan.stages * plan.depth * (plan.rows + plan.cols)))]
COLUMNS = ((False, False), (False, True), (True, False))
ON_HOPPER = [*cdist_plans(90)]
NAMES = [f"sm_{capability} {plan.rows}x{plan.cols}x{plan.depth}" for capability, plan in PLANS]


@pytest.mark.parametrize(
    ("capability", "plan"), ends(*PLANS[: len(ON_HOPPER)]) + ends(*PLANS[len(ON_HOPPER) :]), ids=NAMES
)
def test_compiled_cdist_adds_up_outside_of_the_tensor_cores_and_spills_nothing(tmp_path, capability, plan):
    assert fast(distances(plan, capability, tmp_path), plan, capability)


@pytest.mark.skipif(not HAS_DESCRIPTORS, reason="Triton before 3.4 has no descriptors")
@pytest.mark.parametrize(("parts", "descriptor"), [(1, True), (2, False)])
@pytest.mark.parametrize("plan", ends(*ON_HOPPER), ids=lambda plan: f"{plan.rows}x{plan.cols}x{plan.depth}")
def test_compiled_cdist_fits_into_a_hopper_gpu_however_it_stores(tmp_path, plan, parts, descriptor):
    """What test_split_triton.py runs on one. A buffer for a whole row of the largest tile would not fit."""
    built = distances(replace(plan, store=plan.store if descriptor else 0), 90, tmp_path, parts=parts)
    assert built.shared <= SHARED[90]
    assert built.stack == 0


@pytest.mark.parametrize(("capability", "plan", "y"), [(*PLANS[-2], "fp16"), long(*PLANS[-1], "bf16")], ids=str)
def test_compiled_cdist_of_narrow_points_takes_one_product(tmp_path, capability, plan, y):
    narrow, wide = distances(plan, capability, tmp_path, parts=1, y=y), distances(plan, capability, tmp_path)
    assert fast(narrow, plan, capability)
    count = TENSOR_CORES[capability] + ".sync"
    assert 3 * narrow.ptx.count(count) == wide.ptx.count(count)


@pytest.mark.parametrize("name", ["n", "m", "width"])
def test_compiled_cdist_takes_sizes_of_1_which_triton_makes_constants(tmp_path, name):
    plan = cdist.plan_for(16384, 16384, 128, processors=132, descriptors=False, roles=False)
    assert distances(plan, 80, tmp_path, **{name: 1}).stack == 0


@pytest.mark.parametrize(("capability", "d"), [(80, 1), (89, "i32"), (90, 1), (90, "i32")])
def test_compiled_cdist_of_float64_spills_nothing(tmp_path, capability, d):
    assert differences(capability, tmp_path, "fp64", (32, 32, 4), 1, steps=d).stack == 0


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("together", [2, 8, 16])
def test_compiled_differences_load_several_coordinates_at_once_and_store_rows_side_by_side(tmp_path, aligned, together):
    built = differences(90, tmp_path, "fp32", cdist.DIFFERENCES, together, unaligned=() if aligned else ("m",))
    assert built.stack == 0
    assert bool(re.findall(r"st\.global\S*\.v4", built.ptx)) == aligned
    rows, cols, warps = cdist.DIFFERENCES
    assert len(re.findall(r"ld\.global", built.ptx)) == together * (rows + cols // (32 * warps))


def differences(capability, tmp_path, dtype, tile, together, steps=1, unaligned=()):
    rows, cols, warps = tile
    values = dict.fromkeys(["a", "b", "y"], f"*{dtype}") | dict.fromkeys(["a_row", "b_row", "n", "m"], "i32")
    values |= {"a_col": 1, "b_col": 1, "steps": steps, "ROWS": rows, "COLS": cols, "TOGETHER": together}
    values["ARITHMETIC"] = tl.float64 if dtype == "fp64" else tl.float32
    chosen = {name: values[name] for name in cdist._differences.arg_names}
    return build(cdist._differences, chosen, capability, warps, 3, tmp_path, unaligned=unaligned)


@pytest.mark.parametrize(
    ("capability", "size", "columns"),
    [
        *ends(*((90, size, columns) for size in (1024, 4096) for columns in COLUMNS)),
        *((80, 4096, (False, False)), long(80, 1024, (False, True)), long(89, 4096, (True, False))),
    ],
)
def test_compiled_matmul_adds_up_outside_of_the_tensor_cores_and_spills_nothing(tmp_path, capability, size, columns):
    plan = matmul.plan_for(
        size, size, processors=132, descriptors=capability == 90 and HAS_DESCRIPTORS, roles=False
    )  # fmt: skip
    assert fast(products(plan, capability, columns, tmp_path), plan, capability)


@pytest.mark.parametrize(
    ("capability", "width", "samples"),
    [
        *((90, 64, 32), (90, 2048, 0), (90, 16384, 0), (80, 8192, 0)),
        *(long(90, 128, 0), long(90, 8192, 0), long(89, 16384, 0)),
    ],
)
def test_compiled_split_moves_128_bits_at_once_and_spills_nothing(tmp_path, capability, width, samples):
    block = min(width, fp16_split.WHOLE)
    rows = max(1, fp16_split.TOGETHER // block)
    values = {"a_col": 1, "b_col": 1, "CENTRE": samples == 0, "SAMPLES": samples, "NORMS": True, "PARTS": 2}
    values |= {"ROWS": rows, "BLOCK": block, "LOOP": width > block, "cols": "i32", "width": "i32", "centre": "*fp32"}
    for x, size in (("a", "n"), ("b", "m")):
        values |= {x: "*fp32", f"{x}_row": "i32", size: "i32", f"{x}_halves": "*fp16", f"{x}_lo": "i32"}
        values |= {f"{x}_norms": "*fp32", f"{x}_scales": "*fp32"}
    chosen = {name: values[name] for name in fp16_split._split_both.arg_names}
    built = build(fp16_split._split_both, chosen, capability, fp16_split.warps_for(rows * block), 3, tmp_path)
    assert built.stack == 0
    assert ".f64" not in built.ptx
    assert moved(built.ptx, "ld", "32") == 128
    assert moved(built.ptx, "st", "16") == 128


@pytest.mark.parametrize("capability", [80, 89, 90])
def test_compiled_split_of_columns_moves_128_bits_at_once(tmp_path, capability):
    values = dict.fromkeys(["x", "peaks"], "*fp32") | {"peaks": "*i32", "halves": "*fp16", "scales": "*fp32"}
    values |= dict.fromkeys(["x_row", "rows", "cols", "lo", "width"], "i32") | {"x_col": 1, "SQUARE": fp16_split.SQUARE}
    chosen = {name: values[name] for name in fp16_split._split_columns.arg_names}
    built = build(fp16_split._split_columns, chosen, capability, 4, 3, tmp_path)
    assert built.stack == 0
    assert moved(built.ptx, "st", "16") == 128


def moved(ptx, what, bits):
    """Bits of the widest access to elements of so many bits."""
    pattern = rf"{what}\.global\S*?(?:\.v(\d))?\.b(\d+)"
    return max(int(count or 1) * int(size) for count, size in re.findall(pattern, ptx))
