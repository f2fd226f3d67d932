"""What Triton makes of the matrix products, for GPUs that need not be here: the instructions that make them fast."""

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

from runner.kernels import padding  # noqa: E402
from runner.kernels.matmul import _triton_kernels  # noqa: E402
from runner.kernels.matmul._configurations import (  # noqa: E402
    ITEMSIZE,
    LEAST_LOAD,
    TILES,
    _descriptors,
    configuration,
    row_major,
)
from runner.kernels.matmul._configurations import pointers as general  # noqa: E402
from runner.kernels.tensor_cores import TensorDescriptor  # noqa: E402

from .cases import ends, long  # noqa: E402

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
SHARED = {80: 166_912, 89: 101_376, 90: 232_448}  # bytes that a program may have
NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64", "fp8e4nv": "float8_e4m3fn"}
NONE = {"scale_a_ptr": None, "scale_b_ptr": None}
SHARED_BY_PARTS = {"parts_ptr": "*fp32", "counters_ptr": "*i32"}

hopper = pytest.mark.skipif(TensorDescriptor is None, reason="this Triton has no descriptors")


class Built:
    """A kernel for ``capability``: its PTX, and what it takes of a multiprocessor."""

    def __init__(self, kernel, arguments, constants, capability, how, folder, sizes_are_multiples_of_16=True):
        signature = {name: "constexpr" if name in constants else arguments[name] for name in kernel.arg_names}
        aligned = "*i" if sizes_are_multiples_of_16 else "*"
        plain = [place for place, kind in enumerate(signature.values()) if kind[0] in aligned]
        source = ASTSource(
            kernel,
            signature=signature,
            constexprs=constants,
            attrs={(place,): [["tt.divisibility", 16]] for place in plain},
        )
        options = {"num_warps": how.warps, "num_stages": how.stages}
        built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        cubin = folder / "kernel.cubin"
        cubin.write_bytes(built.asm["cubin"])
        usage = subprocess.run([CUOBJDUMP, "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
        self.ptx = built.asm["ptx"]
        self.stack = int(re.search(r"STACK:(\d+)", usage)[1])
        self.shared = built.metadata.shared
        assert self.shared <= SHARED[capability]
        assert (".f64" in self.ptx) == ("*fp64" in arguments.values())

    def count(self, pattern):
        """Instructions that match."""
        return len(re.findall(pattern, self.ptx))

    @property
    def products(self):
        """Kinds of tensor core instructions."""
        return set(re.findall(r"(?:wgmma\.mma_async|mma)\.sync\.aligned\.(m\d+n\d+k\d+)", self.ptx))


@pytest.fixture
def descriptors(tmp_path):
    """``descriptors(how, "bf16")``: the kernel that Hopper runs for large products."""

    def build(how, dtype, stored, *, a_along_k=True, b_along_k=True, described=True, scaled=False, unit=8, early=False):
        rest = how.rest
        a, b = (how.block_m, how.block_k), (how.block_n - rest, how.block_k)
        y = (how.block_m, how.block_n // how.pieces)
        constants = {
            "A_ALONG_K": a_along_k,
            "B_ALONG_K": b_along_k,
            "BLOCK_M": how.block_m,
            "BLOCK_N": how.block_n,
            "BLOCK_K": how.block_k,
            "GROUP_M": how.group_m,
            "SPLIT_K": how.split_k,
            "PIECES": how.pieces,
            "UNIT": unit,
            "STAGES": how.stages,
            "EARLY": early,
        }
        arguments = {
            "a": tiles(dtype, a, a_along_k),
            "b": tiles(dtype, b, b_along_k),
            **({"b_rest": tiles(dtype, (rest, how.block_k), b_along_k)} if rest else {}),
            "y": tiles(stored, y, True),
            "y_ptr": f"*{stored}",
            **SHARED_BY_PARTS,
            "scale_a_ptr": "*fp32",
            "scale_b_ptr": "*fp32",
            **dict.fromkeys(["m", "n", "k"], "i32"),
        }
        constants |= ({} if scaled else NONE) | ({} if described else {"y": None}) | ({} if rest else {"b_rest": None})
        kernel = _triton_kernels.matmul_descriptors
        return Built(kernel, arguments, constants, 90, how, tmp_path, sizes_are_multiples_of_16=described)

    return build


@pytest.fixture
def pointers(tmp_path):
    """``pointers("bf16", 80)``: the general kernel, for a row-major b."""

    def build(
        dtype, capability, size=4096, *, precision="ieee", even=True, a_along_k=True, b_along_k=False, long=False,
        load=16, how=None, **sides,
    ):  # fmt: skip
        machine = {"capability": (capability // 10, capability % 10), "multiprocessors": 132}
        how = how or general(
            size, size, size, NAMES[dtype], precision=precision, loads=row_major(load, load), **machine
        )
        constants = {
            "ACCUMULATE": tl.float64 if dtype == "fp64" else tl.float32,
            "PRECISION": precision,
            "A_ALONG_K": a_along_k,
            "B_ALONG_K": b_along_k,
            "A_UNIT": load // ITEMSIZE[NAMES[dtype]],
            "B_UNIT": load // ITEMSIZE[NAMES[dtype]],
            "A_AHEAD": load < LEAST_LOAD,
            "B_AHEAD": load < LEAST_LOAD,
            "EVEN_K": even,
            "LONG": long,
            "BLOCK_M": how.block_m,
            "BLOCK_N": how.block_n,
            "BLOCK_K": how.block_k,
            "GROUP_M": how.group_m,
            "SPLIT_K": how.split_k,
            "STAGES": how.stages,
            "stride_ak" if a_along_k else "stride_am": 1,
            "stride_bk" if b_along_k else "stride_bn": 1,
            "stride_yn": 1,
        }
        arguments = {
            **dict.fromkeys(["a_ptr", "b_ptr"], f"*{dtype}"),
            "y_ptr": f"*{'bf16' if dtype == 'fp8e4nv' else dtype}",
            **SHARED_BY_PARTS,
            **({"parts_ptr": "*fp64"} if dtype == "fp64" else {}),
            **dict.fromkeys(["m", "n", "k", "stride_am", "stride_ak", "stride_bk", "stride_bn", "stride_ym"], "i32"),
            "one": "fp32",
            **sides,
        }
        known = load == 16 and dtype != "fp32"  # else only the units say how much is aligned
        return Built(_triton_kernels.matmul_pointers, arguments, constants | NONE, capability, how, tmp_path, known)

    return build


def tiles(dtype, block, upright):
    """The type of a descriptor of ``block``, or of its transpose."""
    rows, cols = block if upright else block[::-1]
    return f"tensordesc<{dtype}[{rows}, {cols}]>"


def on_hopper(m, n, k, dtype, **options):
    return configuration(m, n, k, NAMES[dtype], capability=(9, 0), multiprocessors=132, **options)


@hopper
@pytest.mark.parametrize(
    ("dtype", "a_along_k", "b_along_k"),
    ends(("bf16", True, True), ("bf16", True, False), ("fp16", False, True), ("fp16", False, False)),
)
def test_large_products_on_hopper_use_the_widest_wgmma_and_the_tensor_memory_accelerator(
    descriptors, dtype, a_along_k, b_along_k
):
    built = descriptors(on_hopper(8192, 8192, 8192, dtype), dtype, dtype, a_along_k=a_along_k, b_along_k=b_along_k)
    assert built.products == {"m64n256k16"}
    assert built.count(r"cp\.async\.bulk\.tensor\.2d\.shared\S*global")
    assert built.count(r"cp\.async\.bulk\.tensor\.2d\.global\.shared") == 2  # y, in halves
    assert "1" in re.findall(r"wgmma\.wait_group\.sync\.aligned (\d)", built.ptx)  # one product is always in flight
    assert not built.count(r"(ld|st)\.global")
    assert built.stack == 0


@hopper
@pytest.mark.parametrize(("tile", "split"), [*((tile, 1) for tile in TILES), (TILES[0], 2), (TILES[1], 3)], ids=str)
def test_products_of_every_tile_on_hopper_use_wgmma_and_spill_nothing(descriptors, tile, split):
    how = _descriptors(tile, split, 8192, 2)
    built = descriptors(how, "bf16", "bf16", b_along_k=False)
    thirds = {2 * how.block_n // 3, how.block_n // 3}
    assert built.products == {f"m64n{n}k16" for n in (thirds if how.pieces == 3 else {how.block_n})}
    assert len(built.products) in {int(wait) for wait in re.findall(r"wgmma\.wait_group\S* (\d+)", built.ptx)}
    system = 1024  # bytes that it takes for each program
    assert how.programs * (built.shared + system) <= SHARED[90] + system
    assert built.stack == 0


@hopper
def test_the_last_program_of_a_tile_adds_up_the_parts_of_its_sum(descriptors):
    how = on_hopper(512, 512, 8192, "bf16")
    assert how.split_k > 1
    built = descriptors(how, "bf16", "bf16")
    assert built.products == {f"m64n{how.block_n}k16"}
    assert built.count(r"atom\S*\.acq_rel\S*\.gpu\S*\.add|atom\S*\.gpu\S*\.acq_rel\S*\.add") == 1
    assert built.stack == 0


@hopper
@pytest.mark.parametrize(("unit", "store"), [(1, "b16"), (2, "b32"), (4, "v2.b32")])
def test_a_y_whose_rows_are_not_aligned_is_stored_in_the_widest_pieces_that_fit(descriptors, unit, store):
    built = descriptors(on_hopper(4096, 4096, 4096, "bf16"), "bf16", "bf16", described=False, unit=unit)
    assert built.count(r"st\.global") == built.count(rf"st\.global\.{store}\b")
    assert built.stack <= 8


@hopper
@pytest.mark.parametrize("early", [True, False])
def test_a_product_that_starts_before_its_copies_are_complete_waits_before_it_loads(descriptors, early):
    built = descriptors(on_hopper(1024, 1024, 1024, "bf16"), "bf16", "bf16", early=early)
    assert built.count(r"griddepcontrol\.wait") == early
    assert not early or built.ptx.index("griddepcontrol.wait") < built.ptx.index("cp.async.bulk")


@hopper
@pytest.mark.parametrize("scaled", [True, False])
def test_float8_on_hopper_is_summed_by_its_tensor_cores_alone(descriptors, scaled):
    built = descriptors(on_hopper(8192, 8192, 8192, "fp8e4nv"), "fp8e4nv", "bf16", scaled=scaled)
    assert built.products == {"m64n256k32"}
    assert not built.count(r"add\.f32")  # no promotion of part sums, as with use_fast_accum
    assert built.stack == 0


@hopper
def test_tf32_on_hopper_uses_wgmma(descriptors):
    built = descriptors(on_hopper(8192, 8192, 8192, "fp32", precision="tf32"), "fp32", "fp32")
    assert built.products == {"m64n256k8"}
    assert built.stack == 0


@hopper
@pytest.mark.parametrize(
    ("m", "along_k", "early"),
    [(1, True, True), (1, False, False), (16, True, False), (16, False, True), (64, True, True), (64, False, False)],
)
def test_skinny_products_on_hopper_waste_no_more_than_they_must(tmp_path, m, along_k, early):
    how = on_hopper(m, 8192, 8192, "bf16")
    constants = {
        "WIDE_ALONG_K": along_k,
        "NARROW_ALONG_K": True,
        "BLOCK_ROWS": how.block_m,
        "BLOCK_COLS": how.block_n,
        "BLOCK_K": how.block_k,
        "SPLIT_K": how.split_k,
        "ROTATED": along_k and m <= 16,
        "STAGES": how.stages,
        "EARLY": early,
    }
    arguments = {
        "wide": tiles("bf16", (how.block_n, how.block_k), along_k),
        "narrow": tiles("bf16", (how.block_m, how.block_k), True),
        "y_ptr": "*bf16",
        **SHARED_BY_PARTS,
        **dict.fromkeys(["rows", "cols", "k", "stride_row", "stride_col"], "i32"),
    }
    built = Built(_triton_kernels.matmul_skinny, arguments, constants | NONE, 90, how, tmp_path)
    assert built.products == {f"m64n{max(16, m)}k16"}
    assert built.count(r"griddepcontrol\.wait") == early
    assert not early or built.ptx.index("griddepcontrol.wait") < built.ptx.index("cp.async.bulk.tensor")
    assert built.count(r"cp\.async\.bulk\.tensor")
    assert built.stack == 0


@pytest.mark.parametrize(
    ("capability", "even", "size"),
    [
        *((80, True, 512), (80, False, 4096), (90, True, 512), (90, False, 4096)),
        *(long(89, True, 4096), long(90, True, 4096), long(90, False, 512)),
    ],
)
def test_16_bits_by_pointers_use_tensor_cores_and_16_byte_copies(pointers, capability, even, size):
    built = pointers("bf16", capability, size, even=even)
    if size == 4096 or capability < 90:
        assert built.products == {"m16n8k16" if capability < 90 else "m64n128k16"}
    assert built.products
    assert copied_bytes(built) == {16}
    assert built.stack == 0


@pytest.mark.parametrize("side", ["m", "n", "k"])
def test_pointers_take_a_side_of_more_than_2_to_the_31(pointers, side):
    built = pointers("bf16", 90, **{side: "i64"})
    assert built.products == {"m64n128k16"}
    assert built.stack == 0


@pytest.mark.parametrize(("capability", "b_along_k"), [(80, True), (89, False)])
def test_tf32_by_pointers_uses_tensor_cores(pointers, capability, b_along_k):
    built = pointers("fp32", capability, precision="tf32", b_along_k=b_along_k)
    assert built.products == {"m16n8k8"}
    assert copied_bytes(built) == {16}
    assert built.stack <= 8  # Triton 3.6; 3.7: 0


@pytest.mark.parametrize("capability", [long(80), long(89), 90])
def test_float32_is_multiplied_in_float32(pointers, capability):
    built = pointers("fp32", capability)
    assert built.products == set()
    assert built.count(r"fma\.rn\.f32") >= 512
    assert not built.count(r"\.f64|tf32")
    assert built.stack == 0


@pytest.mark.parametrize(("capability", "size"), [(80, 256), (90, 4096)])
def test_three_products_of_tf32_use_tensor_cores_and_wide_copies(pointers, capability, size):
    # As in y^T = b^T a^T: only the right operand lies along k.
    built = pointers("fp32", capability, size, precision="tf32x3", even=False, a_along_k=False, b_along_k=True)
    assert built.products
    assert all(kind.endswith("k8") for kind in built.products)
    assert copied_bytes(built) == ({8, 16} if (capability, size) == (80, 256) else {16})  # that tile is small
    assert built.stack == 0


@pytest.mark.parametrize(
    ("size", "load", "copied"),
    [
        long((8, 4096), 2, set()),
        ((64, 4096), 4, {4}),
        ((64, 4096), 2, set()),
        long((1792, 819), 4, {4}),
        long((176, 16356), 2, set()),
    ],
)
def test_16_bits_of_any_alignment_by_pointers_spill_nothing(pointers, load, copied, size):
    machine = {"capability": (9, 0), "multiprocessors": 132}
    how = general(*size, 4096, "bfloat16", loads=row_major(load, load), **machine)
    built = pointers("bf16", 90, even=False, load=load, how=how)
    assert built.products
    assert copied_bytes(built) == copied
    assert built.stack <= 8


@pytest.mark.parametrize("capability", [80, long(89), 90])
def test_float64_spills_nothing(pointers, capability):
    built = pointers("fp64", capability)
    assert not built.count(r"cvt\S*\.f32\.f64|cvt\S*\.f64\.f32")
    assert built.stack == 0


def test_float8_by_pointers_uses_the_tensor_cores_of_sm_89(pointers):
    built = pointers("fp8e4nv", 89, b_along_k=True)
    assert built.products == {"m16n8k32"}
    assert copied_bytes(built) == {16}
    assert built.stack == 0


def copied_bytes(built):
    """How much each asynchronous copy into shared memory takes."""
    copies = re.findall(r"cp\.async\.c[ag]\.shared\.global \[[^\]]*\], \[[^\]]*\], (\w+)", built.ptx)
    return {int(size, 0) for size in copies}


@hopper
@pytest.mark.parametrize("early", [True, False])
def test_the_kernel_that_copies_allows_the_next_one_to_start_before_it_loads(early):
    names, constants = padding._pad.arg_names, {"ROWS": padding.ROWS, "COLS": padding.COLS, "EARLY": early}
    pointers = ("x", "out", "x_2", "out_2")
    signature = {name: "*i16" if name in pointers else "constexpr" if name in constants else "i32" for name in names}
    source = ASTSource(padding._pad, signature=signature, constexprs=constants)
    ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}).asm["ptx"]
    assert ptx.count("griddepcontrol.launch_dependents") == early
    assert not early or ptx.index("griddepcontrol") < ptx.index("ld.global")
