"""What Gluon makes of the matrix product whose warps have roles, for a Hopper GPU that need not be here."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from types import FunctionType, SimpleNamespace

import pytest

triton = pytest.importorskip("triton")
pytest.importorskip("triton.experimental.gluon.nvidia.hopper")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("no interpreter runs Gluon", allow_module_level=True)

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402
from triton.experimental.gluon._runtime import GluonASTSource  # noqa: E402

from runner.kernels.matmul._configurations import (  # noqa: E402
    FEWEST_STEPS,
    configuration,
    hopper_choices,
    share_tiles,
)
from runner.kernels.matmul._triton_roles import AT_FIRST, LOADING, MULTIPLYING, _share, matmul_roles  # noqa: E402

from .cases import long  # noqa: E402

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
HOW = configuration(4096, 4096, 4096, "bfloat16", capability=(9, 0), multiprocessors=132, roles=True)
STAGES = {how.block_n: how.stages for _, how in hopper_choices(4096, 4096, 4096, 2, 132) if how.kernel == "roles"}
SHARED = 232_448  # bytes that a program may have
REGISTERS = 65_536  # of a multiprocessor
TYPES = {"bf16": gl.bfloat16, "fp16": gl.float16, "fp8e4nv": gl.float8e4nv}


def tiles(dtype, rows, cols):
    """The type of a descriptor of such tiles."""
    return f"tensordesc<{dtype}[{rows}, {cols}],{gl.NVMMASharedLayout.get_default_for([rows, cols], TYPES[dtype])!r}>"


@pytest.fixture
def built(tmp_path):
    """``built("bf16")``: PTX, SASS, and the resources that the assembler reports."""

    def build(
        dtype,
        *,
        a_along_k=True,
        b_along_k=True,
        scaled=False,
        described=True,
        columns=HOW.block_n,
        width=64,
        unit=1,
        shared=False,
    ):
        half, block_k = HOW.block_m // 2, HOW.block_k * 16 // TYPES[dtype].primitive_bitwidth
        stored = "bf16" if dtype == "fp8e4nv" else dtype
        rest = replace(HOW, block_n=columns).rest
        constants = {
            "A_ALONG_K": a_along_k,
            "B_ALONG_K": b_along_k,
            "BLOCK_M": HOW.block_m,
            "BLOCK_N": columns,
            "BLOCK_K": block_k,
            "GROUP_M": HOW.group_m,
            "REST": rest,
            "WIDTH": width,
            "UNIT": unit,
            "STAGES": STAGES[columns],
        } | ({} if scaled else {"scale_a_ptr": None, "scale_b_ptr": None})
        constants |= ({} if described else {"y": None}) | ({} if rest else {"b_rest": None})
        constants |= {} if shared else {"parts_ptr": None, "flags_ptr": None}

        def of_b(rows):
            return tiles(dtype, rows, block_k) if b_along_k else tiles(dtype, block_k, rows)

        arguments = {
            "a": tiles(dtype, half, block_k) if a_along_k else tiles(dtype, block_k, half),
            "b": of_b(columns - rest),
            "b_rest": of_b(rest) if rest else None,
            "y": tiles(stored, half, width),
            "y_ptr": f"*{stored}",
            "parts_ptr": "*fp32",
            "flags_ptr": "*i32",
            **dict.fromkeys(["scale_a_ptr", "scale_b_ptr"], "*fp32"),
            **dict.fromkeys(["m", "n", "k", "depth", "each"], "i32"),
        }
        names = matmul_roles.arg_names
        source = GluonASTSource(
            matmul_roles,
            signature={name: "constexpr" if name in constants else arguments[name] for name in names},
            constexprs={(names.index(name),): value for name, value in constants.items()},
            attrs={(names.index(name),): [["tt.divisibility", 16]] for name in ("y_ptr", "parts_ptr")[: 1 + shared]},
        )
        options = {"num_warps": HOW.warps, "maxnreg": AT_FIRST}
        kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        cubin = tmp_path / "kernel.cubin"
        cubin.write_bytes(kernel.asm["cubin"])
        dump = [
            subprocess.run([CUOBJDUMP, what, cubin], capture_output=True, text=True, check=True).stdout
            for what in ("-res-usage", "-sass")
        ]
        return kernel, kernel.asm["ptx"], *dump

    return build


@pytest.mark.parametrize(
    ("dtype", "layouts", "depth", "columns"),
    [
        ("bf16", {}, 16, 256),
        ("bf16", {"b_along_k": False}, 16, 192),
        long("fp16", {"a_along_k": False, "b_along_k": False}, 16, 128),
        long("fp8e4nv", {"scaled": True}, 32, 256),
    ],
)
def test_two_warpgroups_multiply_what_a_warp_loads_and_spill_nothing(built, dtype, layouts, depth, columns):
    kernel, ptx, usage, sass = built(dtype, **layouts, columns=columns)
    products = set(re.findall(r"wgmma\.mma_async\.sync\.aligned\.(m\d+n\d+k\d+)", ptx))
    assert products == {f"m64n{n}k{depth}" for n in ([128, 64] if columns == 192 else [columns])}
    of_b = len(products) if layouts.get("b_along_k", True) else columns // 64
    assert len(re.findall(r"bulk\.tensor\.2d\.shared\S*global", ptx)) == 2 + of_b
    # y leaves in parts beside the first steps of the next tile, and the last tile's at the end; of each warpgroup.
    assert len(re.findall(r"bulk\.tensor\.2d\.global\.shared", ptx)) == 2 * 2 * columns // 64
    assert kernel.metadata.shared <= SHARED
    assert re.search(r"STACK:(\d+)", usage)[1] == "0"
    assert not re.search(r"\b(LDL|STL)\b", sass)
    assert ".f64" not in ptx


@pytest.mark.parametrize(
    ("dtype", "columns", "described"),
    [("bf16", 256, True), long("fp16", 192, False), long("fp8e4nv", 256, False)],
)
def test_parts_of_sums_go_from_thread_to_thread(built, dtype, columns, described):
    width = 64 if described else 32
    kernel, ptx, usage, sass = built(dtype, shared=True, described=described, columns=columns, width=width, unit=2)
    # Each warpgroup sets flags after its stores, of 8 bytes, 32 threads next to each other, and waits before its loads.
    assert len(re.findall(r"st\.release\.gpu", ptx)) == len(re.findall(r"ld\.acquire\.gpu", ptx)) == 2
    assert (
        len(re.findall(r"st\.global\S*\.v2\.b32", ptx))
        == len(re.findall(r"ld\.global\S*\.v2\.b32", ptx))
        == columns // 2
    )
    assert kernel.metadata.shared <= SHARED
    assert int(re.search(r"STACK:(\d+)", usage)[1]) <= 8
    assert len(re.findall(r"\b(LDL|STL)\b", sass)) <= 8  # of Triton 3.7; 3.6 spills nothing


@pytest.mark.parametrize(
    ("dtype", "columns", "unit"), [("bf16", 128, 2), long("fp8e4nv", 256, 1), long("fp16", 192, 4)]
)
def test_a_y_whose_rows_are_not_aligned_is_stored_by_threads(built, dtype, columns, unit):
    kernel, ptx, usage, sass = built(
        dtype, b_along_k=dtype != "bf16", described=False, columns=columns, width=32, unit=unit
    )
    assert not re.search(r"bulk\.tensor\.2d\.global\.shared", ptx)
    assert set(re.findall(r"st\.global\S*?(?:\.v\d)?\.b\d+", ptx)) == {
        {1: "st.global.b16", 2: "st.global.b32", 4: "st.global.v2.b32"}[unit]
    }
    assert kernel.metadata.shared <= SHARED
    assert int(re.search(r"STACK:(\d+)", usage)[1]) <= 8
    assert len(re.findall(r"\b(LDL|STL)\b", sass)) <= 8  # 64 bits of float8, once a tile


@pytest.mark.parametrize(("columns", "products"), [(256, 1), (192, 2), long(128, 1)])
def test_a_product_is_in_flight_whenever_a_step_waits(built, columns, products):
    _, ptx, _, sass = built("bf16", columns=columns)
    # Of each warpgroup: one wait for all before a tile is handed over, and one a step that leaves the step's own.
    waits = re.findall(r"wgmma\.wait_group\.sync\.aligned (\d)", ptx)
    assert (waits.count(str(products)), waits.count("0")) == (2 * (columns // 64 + 1), 2)
    # ptxas, where it cannot tell that accumulators are untouched, waits for every instruction by itself.
    assert sass.count("WARPGROUP.DEPBAR") == len(waits)


@pytest.mark.parametrize("programs", [7, 78, 108, 114, 132])
@pytest.mark.parametrize("blocks", [4, 5, 8, 17, 64, 216])
def test_each_block_of_shared_tiles_has_one_program_and_the_last_programs_wait(programs, blocks):
    for tiles in range(1, programs):
        depth, each, _ = share_tiles(tiles, blocks, programs)
        done, parts = [[0] * blocks for _ in range(tiles)], []
        for program in range(programs):  # the kernel's own function, where a program knows its number and theirs
            known = SimpleNamespace(program_id=lambda _, mine=program: mine, num_programs=lambda _: programs)
            share = FunctionType(_share.fn.__code__, {"gl": known, "min": min})
            part, begin, end, first, last = share(tiles, blocks, depth, each)
            for tile in range(first, last):
                parts.append(part)
                for block in range(begin, end):
                    done[tile][block] += 1
        assert all(count == 1 for tile in done for count in tile), tiles
        assert 0 not in parts[:-tiles]
        assert FEWEST_STEPS <= depth <= blocks


def test_registers_go_to_the_warpgroups_that_multiply(built):
    _, ptx, usage, _ = built("bf16")
    assert f".maxnreg {AT_FIRST}" in ptx
    assert {MULTIPLYING.value, LOADING.value} <= set(
        map(int, re.findall(r"setmaxnreg\.\w+\.sync\.aligned\.u32\s+(\d+)", ptx))
    )
    assert 128 * (2 * MULTIPLYING.value + LOADING.value) <= 128 * 3 * AT_FIRST <= REGISTERS
    assert int(re.search(r"REG:(\d+)", usage)[1]) <= AT_FIRST


def test_the_tests_here_are_of_the_kernel_that_is_chosen():
    assert HOW.kernel == "roles"


@pytest.mark.parametrize("blocks", range(FEWEST_STEPS, 8))
def test_the_ring_is_no_longer_than_a_tile_is_deep(blocks):
    for _, how in hopper_choices(4096, 4096, 64 * blocks, 2, 132):
        if how.kernel == "roles":
            assert max(how.stages, how.block_n // 64) <= blocks  # else phases of a barrier could be mistaken
