"""What Triton makes of the backward kernels and of the MLP's products, for GPUs that need not be here."""

from __future__ import annotations

import os
import re
import subprocess
from itertools import product
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("interpreted kernels cannot be compiled", allow_module_level=True)

import triton.language as tl  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from runner.kernels.gelu import triton as gelu  # noqa: E402
from runner.kernels.mlp import _triton_products as products  # noqa: E402
from runner.kernels.mlp import _triton_small as small  # noqa: E402
from runner.kernels.mlp import triton as mlp  # noqa: E402
from runner.kernels.softmax import _triton_backward as softmax  # noqa: E402
from runner.kernels.softmax import _triton_plan as softmax_plan  # noqa: E402

from .cases import long  # noqa: E402

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
REGISTERS = 65_536  # of a multiprocessor
SHARED = 233_472  # bytes of a multiprocessor of Hopper, of which each program takes 1 KiB for the system
ITEMSIZE = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8}


def on(*values):
    """Each on sm_90; in long tests the first on sm_89 too and the last on sm_80, whose instructions are the same."""
    return [*((90, *value) for value in values), long(89, *values[0]), long(80, *values[-1])]


of_types = pytest.mark.parametrize(("capability", "dtype"), on(("fp32",), ("fp64",), ("bf16",)))


class Built:
    """A kernel as compiled for ``capability``, every pointer and number a multiple of 16 as torch's allocator gives."""

    def __init__(self, kernel, arguments, constants, capability, warps, stages, folder):
        signature = {name: arguments.get(name, "constexpr") for name in kernel.arg_names}
        aligned = [place for place, kind in enumerate(signature.values()) if kind[0] in "*i"]
        attributes = {(place,): [["tt.divisibility", 16]] for place in aligned}
        source = ASTSource(kernel, signature=signature, constexprs=constants, attrs=attributes)
        options = {"num_warps": warps, "num_stages": stages}
        built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        cubin = folder / "kernel.cubin"
        cubin.write_bytes(built.asm["cubin"])
        usage = subprocess.run([CUOBJDUMP, "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
        self.ptx, self.shared = built.asm["ptx"], built.metadata.shared
        self.registers, self.stack = (int(re.search(rf"{what}:(\d+)", usage)[1]) for what in ("REG", "STACK"))

    def bits(self, what):
        """Width of the narrowest access to global memory of that kind, ``ld`` or ``st``, but for single numbers."""
        found = re.findall(rf"{what}\.global\S*?(?:\.v(\d))?\.b(\d+)", self.ptx)
        return min(int(count or 1) * int(bits) for count, bits in found)

    def count(self, pattern):
        """Instructions that match."""
        return len(re.findall(pattern, self.ptx))


@pytest.fixture
def build(tmp_path):
    def go(kernel, arguments, constants, capability, warps, stages=3):
        return Built(kernel, arguments, constants, capability, warps, stages, tmp_path)

    return go


def arithmetic(dtype):
    return tl.float64 if dtype == "fp64" else tl.float32


@pytest.mark.parametrize(("capability", "dtype", "tanh"), on(*product(("fp32", "fp64", "bf16"), (True, False))))
def test_gelus_backward_is_of_wide_accesses_and_two_special_functions(build, capability, dtype, tanh):
    block = gelu.BACKWARD_BYTES[ITEMSIZE[dtype]] // ITEMSIZE[dtype]
    constants = {"TANH": tanh, "ARITHMETIC": arithmetic(dtype), "BLOCK": block}
    pointers = dict.fromkeys(("x_ptr", "dy_ptr", "dx_ptr"), f"*{dtype}")
    built = build(gelu._gelu_backward, pointers | {"count": "i64"}, constants, capability, 4)
    accesses = gelu.BACKWARD_BYTES[ITEMSIZE[dtype]] // 2048
    assert built.count(r"ld\.global\S*\.v") == 2 * accesses
    assert built.count(r"ld\.global") == 2 * (accesses + 1)  # and the last elements, one a thread
    assert built.count(r"st\.global\S*\.v") == accesses
    assert built.stack == 0
    if dtype != "fp64":
        elements = block // (4 * 32) + 1
        assert built.count(r"ex2\.approx") == (1 if tanh else 2) * elements
        assert built.count(r"(?:div\.full|rcp\.approx)") == (elements if tanh else 0)
        assert ".f64" not in built.ptx


@pytest.mark.parametrize(("capability", "dtype"), on(("fp32",), ("fp16",), ("bf16",)))
def test_gelus_form_erf_is_one_exp2_and_few_multiplications(build, capability, dtype):
    constants = {"TANH": False, "ARITHMETIC": tl.float32, "BLOCK": gelu.LARGEST}
    pointers = dict.fromkeys(("x_ptr", "y_ptr"), f"*{dtype}")
    built = build(gelu._gelu, pointers | {"count": "i64"}, constants, capability, 4)
    elements = gelu.LARGEST // (4 * 32) + 1  # and the last elements, one a thread
    assert built.count(r"ex2\.approx") == elements
    assert built.count(r"(?:fma\.rn|mul)\.f32") <= (12 if dtype == "fp32" else 9) * elements
    assert built.count(r"(?:div|rcp|\.f64)") == 0


@pytest.mark.parametrize(
    ("capability", "dtype", "block", "whole"),
    on(
        *(("fp32", block, whole) for block, whole in ((32_768, False), (32_768, True), (16_384, False), (128, True))),
        *(("fp64", 4096, False), ("fp16", 128, False), ("fp16", 32_768, True)),
        *(("bf16", block, whole) for block, whole in ((32_768, False), (8192, True), (4096, False), (16_384, False))),
    ),
)
def test_softmaxs_backward_keeps_both_rows_in_registers_or_nearly(build, capability, block, dtype, whole):
    assert block <= softmax_plan.HELD[ITEMSIZE[dtype]]
    together = max(1, softmax_plan.PAIR_TILE // block)
    warps = softmax_plan.backward_warps(block * together, ITEMSIZE[dtype])
    pointers = dict.fromkeys(("y_ptr", "dy_ptr", "dx_ptr"), f"*{dtype}")
    numbers = dict.fromkeys(("dy_stride", "rows", "cols"), "i32")
    packed = ITEMSIZE[dtype] == 2
    constants = {"ARITHMETIC": arithmetic(dtype), "ROWS": together, "BLOCK": block}
    constants |= {"WHOLE": whole, "PACKED": packed, "UNIT": 16 // ITEMSIZE[dtype], "EDGES": False}
    built = build(softmax._backward_rows, pointers | numbers, constants, capability, warps)
    assert built.bits("ld") == built.bits("st") == 128
    spilled = 80 if (dtype, block) == ("fp32", 32_768) else 16 if packed and block == 16_384 and capability < 90 else 0
    assert built.stack <= spilled
    if block < 16_384:
        assert 2 * built.registers * warps * 32 <= REGISTERS  # one loads while the other sums or stores


@pytest.mark.parametrize(("capability", "dtype", "cols"), on(*product(("fp32", "fp64", "bf16"), (16_384, 40_000))))
def test_softmaxs_backward_of_a_long_row_tells_the_cache_what_comes_again(build, capability, dtype, cols):
    pointers = dict.fromkeys(("y_ptr", "dy_ptr", "dx_ptr", "runs_ptr"), f"*{dtype}")
    plan = softmax_plan.long(softmax_plan.Rows(10**4, cols, cols, ITEMSIZE[dtype], 132, 50 << 20), 2)
    constants = {"ARITHMETIC": arithmetic(dtype), "STEP": plan.step, "LONG": False, "LAUNCH": 0, "SLICES": 1}
    constants |= {"UNIT": plan.access.unit, "EDGES": plan.access.edges, "LOOP": plan.programs < 10**4}
    constants |= {"slices": 1}  # as Triton makes of an argument of 1
    numbers = dict.fromkeys(("dy_stride", "items", "cols", "steps"), "i32")
    built = build(softmax._backward_long, pointers | numbers, constants, capability, plan.warps)
    assert built.bits("ld") == built.bits("st") == 128
    assert built.count("evict_last") > 0
    assert built.count("evict_first") > 0
    assert built.stack == 0
    if plan.programs == 10**4:  # without a loop: two programs of a multiprocessor
        programs = (1536 if capability == 89 else 2048) // (plan.warps * 32)
        assert programs * built.registers * plan.warps * 32 <= REGISTERS


def built_product(build, tiling, dtype, capability, *, forward, relu, keep, stores=True):
    half = tiling.m, tiling.n // 2 if tiling.halves else tiling.n
    right = (tiling.n, tiling.k) if forward else (tiling.k, tiling.n)
    blocks = {"a": (tiling.m, tiling.k), "b": right, "out": half, "slope": half}
    arguments = {
        name: f"tensordesc<{dtype}[{rows}, {cols}]>" if tiling.copy_engine else f"*{dtype}"
        for name, (rows, cols) in blocks.items()
    }
    if not stores:
        arguments["out"] = f"*{dtype}"
    numbers = ("rows", "cols", "depth", "a_stride", "b_stride", "out_stride", "slope_stride")
    arguments |= {"bias": f"*{dtype}", "sums": "*fp32"} | dict.fromkeys(numbers, "i32")
    constants = {"FORWARD": forward, "RELU": relu, "KEEP": keep, "COPY_ENGINE": tiling.copy_engine}
    constants |= {"BLOCK_M": tiling.m, "BLOCK_N": tiling.n, "BLOCK_K": tiling.k, "GROUP": tiling.group}
    constants |= {"HALVES": tiling.halves, "STORES": tiling.copy_engine and stores}
    return build(products._product, arguments, constants, capability, tiling.warps, tiling.stages)


FORWARD = {"forward": True, "relu": False, "keep": True}
ALONE = {"forward": True, "relu": False, "keep": False}
BACKWARD = {"forward": False, "relu": False, "keep": True}
RELU = BACKWARD | {"relu": True}
TILINGS = (products.HOPPER, *products.SMALLER)


@pytest.mark.skipif(products.TensorDescriptor is None, reason="this Triton has no descriptors")
@pytest.mark.parametrize(
    ("dtype", "epilogue", "tiling"),
    [(dtype, epilogue, products.HOPPER) for dtype, epilogue in (("bf16", ALONE), ("fp16", FORWARD), ("bf16", RELU))]
    + [("bf16", FORWARD, TILINGS[1]), ("bf16", FORWARD, TILINGS[4])]  # stored in halves, and at once
    + [long("bf16", FORWARD, TILINGS[place]) for place in (2, 3, 5, 6)]
    + [("bf16", BACKWARD, TILINGS[1])],  # the others have many registers left
    ids=str,
)
def test_on_hopper_the_mlp_is_of_wide_instructions_and_spills_nothing(build, dtype, epilogue, tiling):
    built = built_product(build, tiling, dtype, 90, **epilogue)
    assert built.count(rf"wgmma\.mma_async\S*m64n{tiling.n}k16") > 0
    assert built.count(r"cp\.async\.bulk\.tensor\.2d\.shared") >= 2 * tiling.stages
    stores = (2 if tiling.halves else 1) * (2 if epilogue["forward"] and epilogue["keep"] else 1)
    copies = 2 if epilogue["forward"] else 1  # of the epilogue: a flattened loop holds two
    assert built.count(r"cp\.async\.bulk\.tensor\.2d\.global") in (stores, copies * stores)
    assert built.stack == 0
    assert tiling.resident * (built.shared + 1024) <= SHARED
    assert tiling.resident * built.registers * tiling.warps * 32 <= REGISTERS
    assert ".f64" not in built.ptx


@pytest.mark.skipif(products.TensorDescriptor is None, reason="this Triton has no descriptors")
def test_a_last_layer_that_is_stored_by_pointers_fits_the_shared_memory(build):
    built = built_product(build, products.HOPPER, "bf16", 90, **FORWARD, stores=False)
    assert built.stack == 0
    assert built.shared + 1024 <= SHARED


@pytest.mark.parametrize(
    ("capability", "epilogue"), [(89, FORWARD), (80, BACKWARD), long(90, FORWARD), long(90, BACKWARD)], ids=str
)
def test_elsewhere_the_mlp_comes_through_pointers_128_bits_at_once(build, capability, epilogue):
    tiling = products.POINTERS
    built = built_product(build, tiling, "bf16", capability, **epilogue)
    assert built.count(r"(wgmma\.mma_async|mma\.sync)") > 0
    assert built.count(r"cp\.async\.cg\.shared\.global \[[^]]*\], \[[^]]*\], 0x10") >= 2 * (tiling.stages - 1)
    assert built.stack == 0
    assert built.shared <= 99 * 1024  # of sm_89, the least
    assert ".f64" not in built.ptx


@of_types
def test_what_is_between_the_products_is_wide_and_spills_nothing(build, capability, dtype):
    pointers = dict.fromkeys(("dy_ptr", "slope_ptr", "dz_ptr"), f"*{dtype}")
    pointers["sums_ptr"] = "*fp64" if dtype == "fp64" else "*fp32"
    numbers = ("row_stride", "slope_stride", "dz_stride", "rows", "cols", "width")
    numbers = dict.fromkeys(numbers, "i32") | {"col_stride": "constexpr"}
    constants = {"RELU": False, "ARITHMETIC": arithmetic(dtype), "ROWS": mlp.ROWS, "COLS": mlp.COLS}
    built = build(mlp._through_activation, pointers | numbers, constants | {"col_stride": 1}, capability, mlp.WARPS)
    assert built.bits("ld") == 128
    assert built.stack == 0


@pytest.mark.parametrize(("capability", "tile"), on((small.SMALL,), (small.LARGE,)))
def test_triton_small_are_loaded_ahead_and_multiplied_in_float32_or_in_six_products(build, capability, tile):
    constants = {"RELU": False, "TILE": tile, "DEPTH": small.DEPTH}
    pointers = dict.fromkeys(("h", "w", "bias", "y", "slope"), "*fp32")
    numbers = dict.fromkeys(("rows", "dim"), "i32")
    split = {"KEEP": True, "PRECISION": small.PRECISION}
    warps = tile // small.FORWARD_ROWS
    forward = build(
        small._forward, pointers | numbers | {"one": "fp32"}, constants | split, capability, warps, small.STAGES
    )
    if small.PRECISION != "ieee":
        assert forward.count(r"mma\.sync\S*bf16") == 6 * small.DEPTH // 16 * tile // 8  # no warp does another's work
    pointers = dict.fromkeys(("dz", "slope", "w", "h", "slope_below", "below", "dw", "db"), "*fp32")
    numbers |= {"row_stride": "i32"}
    constants |= {"col_stride": 1, "TOP": False, "BELOW": True, "THROUGH": True}
    warps = tile // small.BACKWARD_ROWS
    backward = build(small._backward, pointers | numbers, constants, capability, warps, small.STAGES)
    assert not backward.count(r"mma\.(sync|_async)")
    for built in (forward, backward):
        assert built.count(r"cp\.async\.cg\.shared\.global \[[^]]*\], \[[^]]*\], 0x10") >= 2 * (small.STAGES - 1)
        assert built.stack == 0


@of_types
def test_the_activation_alone_is_wide_and_spills_nothing(build, capability, dtype):
    pointers = dict.fromkeys(("z_ptr", "b_ptr", "y_ptr", "slope_ptr"), f"*{dtype}") | {"rows": "i32", "cols": "i32"}
    constants = {"RELU": False, "KEEP": True, "ROWS": mlp.ACTIVATED_ROWS, "COLS": mlp.ACTIVATED_COLS}
    built = build(mlp._activate, pointers, constants, capability, 4)
    assert built.bits("st") == 128
    loads = mlp.ACTIVATED_ROWS * mlp.ACTIVATED_COLS * ITEMSIZE[dtype] // (4 * 32 * 16)  # of z by each thread; b besides
    assert built.count(r"ld\.global\S*\.v") == loads
    assert built.stack == 0
