"""What NVRTC makes of the CUDA C++ kernels, for GPUs that need not be here: what makes each of them fast."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cuda.core")
pytest.importorskip("triton")

from runner.kernels.cuda_sources import variants
from runner.kernels.matmul.cuda import LARGE, SMALL

from . import cubins

KERNELS = Path(__file__).parents[2] / "kernels"
ARCHS = [*(pytest.param(arch, marks=pytest.mark.long) for arch in ("sm_80", "sm_89")), "sm_90a"]
# Each type and each processor, without the product of both.
DTYPES = [
    *(pytest.param(*one, marks=pytest.mark.long) for one in (("sm_80", ["float"]), ("sm_89", ["bfloat16"]))),
    ("sm_90a", ["float", "bfloat16", "float16", "double"]),
]
# Of a multiprocessor: CUDA C++ Programming Guide, table 27.
SHARED_BYTES = {"sm_80": 164 * 1024, "sm_89": 100 * 1024, "sm_90a": 228 * 1024}
REGISTERS_AT_ALL_WARPS = {"sm_80": 32, "sm_89": 40, "sm_90a": 32}


def build(op, variant, arch, *names):
    """The kernels ``names`` of a file."""
    kernels = cubins.built(variants(KERNELS / op)[variant], names, arch)
    return [kernels[name] for name in names]


@pytest.mark.parametrize(("arch", "dtypes"), DTYPES)
def test_add_moves_sixteen_bytes_at_once_and_spills_nothing(arch, dtypes):
    kernels = build("add", "default", arch, *(f"add_kernel<{dtype}, true>" for dtype in dtypes))
    for dtype, built in zip(dtypes, kernels, strict=True):
        assert (built.instructions["LDG.E.128"], built.instructions["STG.E.128"]) == (2, 1)  # beside those of the tail
        assert built.stack == 0
        assert built.registers <= REGISTERS_AT_ALL_WARPS[arch]
        assert built.float64 == (dtype == "double")


@pytest.mark.parametrize(("arch", "dtypes"), DTYPES)
def test_gelu_moves_sixteen_bytes_at_once_and_spills_nothing(arch, dtypes):
    forms = [(dtype, tanh) for dtype in dtypes for tanh in ("true", "false")]
    kernels = build("gelu", "default", arch, *(f"gelu_kernel<{dtype}, {tanh}, true>" for dtype, tanh in forms))
    for (dtype, _), built in zip(forms, kernels, strict=True):
        assert built.instructions["LDG.E.128"] == built.instructions["STG.E.128"] == 1  # beside those of the tail
        assert built.stack == 0
        assert built.registers <= REGISTERS_AT_ALL_WARPS[arch]
        assert built.float64 == (dtype == "double")


@pytest.mark.parametrize("arch", ARCHS[::2])
def test_histogram_counts_in_shared_memory_and_two_blocks_fit_on_a_multiprocessor(arch):
    (built,) = build("histogram", "default", arch, "histogram_kernel<32, true>")
    assert built.instructions["LDG.E.128"] or built.instructions["LDG.E.128.CONSTANT"]
    assert built.having("ATOMS")
    assert built.stack == 0
    assert built.registers <= REGISTERS_AT_ALL_WARPS[arch]
    (of_one_table,) = build("histogram", "global", arch, "histogram_kernel<true>")
    assert not of_one_table.having("ATOMS")


def test_gelu_of_an_unaligned_view_reads_element_by_element():
    kernels = build(
        "gelu", "default", "sm_90a", "gelu_kernel<float, true, false>", "gelu_kernel<bfloat16, true, false>"
    )
    for load, built in zip(("LDG.E", "LDG.E.U16"), kernels, strict=True):
        assert built.having("LDG") == {load}
        assert built.stack == 0


@pytest.mark.parametrize("arch", ARCHS)
def test_the_lectures_gelu_computes_in_float64_and_reads_element_by_element(arch):
    (built,) = build("gelu", "lecture", arch, "gelu_kernel")
    assert built.instructions["DFMA"] > 20
    assert built.having("F2F.F64.F32")
    assert built.having("LDG") == {"LDG.E"}


@pytest.mark.parametrize(("arch", "dtypes"), DTYPES)
@pytest.mark.parametrize(("op", "variant"), [("matmul", "tiled"), ("cdist", "default")])
def test_tiles_are_read_sixteen_bytes_at_once_and_kept_in_registers(op, variant, arch, dtypes):
    kernels = build(op, variant, arch, *(f"{op}_kernel<{dtype}, true>" for dtype in dtypes))
    for dtype, built in zip(dtypes, kernels, strict=True):
        assert all("128" in name for name in built.having("LDG"))
        narrow = dtype in ("bfloat16", "float16")
        assert all(".128" in name or (narrow and ".64" in name) for name in built.having("STG"))
        assert built.having("LDS") == {"LDS.128"}
        assert built.stack == 0
        assert built.registers <= 128  # two blocks of 256 threads a multiprocessor
        assert built.float64 == (dtype == "double")
        if (op, dtype) == ("cdist", "float"):  # a difference a term of a step; and the second sum of 8 x 4 elements
            assert built.instructions["FADD"] >= 256 + 32


@pytest.mark.parametrize(("op", "variant"), [("matmul", "tiled"), ("cdist", "default")])
def test_tiles_of_any_size_and_stride_spill_nothing(op, variant):
    for built in build(op, variant, "sm_80", f"{op}_kernel<float, false>", f"{op}_kernel<bfloat16, false>"):
        assert built.stack == 0


@pytest.mark.parametrize("arch", ARCHS)
def test_matmul_of_16_bits_keeps_tensor_cores_fed(arch):
    forms = [(dtype, tiles) for dtype in ("bfloat16", "float16") for tiles in (LARGE, SMALL)]
    names = [f"matmul_kernel<{dtype}, {', '.join(map(str, tiles))}, true>" for dtype, tiles in forms]
    for (_, tiles), built in zip(forms, build("matmul", "default", arch, *names), strict=True):
        rows, cols, depth, warp_rows, warp_cols, stages = tiles
        products = sum(built.instructions[name] for name in built.having("HMMA.16816.F32"))
        assert products == warp_rows * warp_cols * depth / (16 * 8 * 16)  # the loop over k, and nothing twice
        assert built.having("LDGSTS")
        assert all("LDGSTS.E.BYPASS.128" in name for name in built.having("LDGSTS"))
        assert built.having("LDSM.16.M88.4")
        assert built.having("LDSM.16.MT88.4")
        assert built.having("STG") == {"STG.E.128"}
        assert not built.having("LDG.")
        assert built.stack == 0
        assert not built.float64
        blocks = 2 if arch != "sm_89" else 1
        assert blocks * (2 * stages * depth * (rows + cols) + 1024) <= SHARED_BYTES[arch]


def test_matmul_of_any_size_and_stride_uses_tensor_cores_and_spills_nothing():
    (built,) = build("matmul", "default", "sm_80", f"matmul_kernel<bfloat16, {', '.join(map(str, LARGE))}, false>")
    assert built.having("HMMA")
    assert built.stack == 0
