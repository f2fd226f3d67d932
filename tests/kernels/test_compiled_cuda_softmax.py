"""What NVRTC makes of softmax in CUDA C++, for GPUs that need not be here: wide accesses, no spills, no float64."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("cuda.core")
pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("nothing of Triton here", allow_module_level=True)

from runner.kernels import softmax
from runner.kernels.cuda_sources import variants
from runner.kernels.softmax._cuda_plan import RING_STATE, Processor, Rows, plan

from . import cubins

SOURCE = variants(Path(softmax.__path__[0]))["default"]
PROCESSORS = {
    "sm_80": Processor(80, 108, 166_912),
    "sm_89": Processor(89, 142, 101_376),
    "sm_90a": Processor(90, 132, 232_448),
}
ITEMSIZE = {"float": 4, "bfloat16": 2, "float16": 2, "double": 8}
STEP = {"sm_80": 3, "sm_89": 4, "sm_90a": 1}  # every so many of the sizes below
COLS = [8, 3000, 4096, 16_384, 32_768, 40_000, 131_072, 300_000, 65, 50_257, 300_001]
CHOSEN = [(arch, dtype, cols) for arch in PROCESSORS for dtype in ("float", "bfloat16") for cols in COLS[:: STEP[arch]]]
IN_REGISTERS = [
    (*one, cols)
    for one in (("sm_80", "float"), ("sm_90a", "bfloat16"), ("sm_90a", "float16"))
    for cols in (1024, 4096, 16_384, 32_768)
]
IN_A_CLUSTER = [("sm_90a", dtype, 131_072) for dtype in ("float", "bfloat16")]
IN_THE_RING = [("sm_90a", dtype, 1_048_576) for dtype in ("float", "bfloat16", "float16")]
GENERAL = [
    (arch, f"softmax_{name.format(T=dtype, W=wide)}")
    for arch, dtype in (("sm_80", "bfloat16"), ("sm_90a", "double"))
    for wide in ("elements", "vectors", "edges")
    for name in ("general<{T}, 512, 1, Access::{W}>", "whole<{T}, 512, Access::{W}>")
]


def of_each(cases):
    """The test of each of ``cases``; of older processors they are long."""
    return [case if case[0] == "sm_90a" else pytest.param(*case, marks=pytest.mark.long) for case in cases]


def chosen(arch, dtype, cols, rows=1000):
    return plan(Rows(ITEMSIZE[dtype], rows, cols, cols, 1, True), PROCESSORS[arch])


@cache
def kernels(arch: str) -> dict[str, cubins.Built]:
    """All kernels that the tests look at."""
    planned = [*CHOSEN, *IN_REGISTERS, *IN_A_CLUSTER, *IN_THE_RING]
    names = [chosen(*case).kernel.format(T=case[1]) for case in planned if case[0] == arch]
    names += [name for other, name in GENERAL if other == arch]
    return cubins.built(SOURCE, tuple(dict.fromkeys(names)), arch)


def built(arch, dtype, cols):
    return kernels(arch)[chosen(arch, dtype, cols).kernel.format(T=dtype)]


def global_accesses(instructions):
    """Loads, stores and copies of rows, without what blocks tell each other."""
    wanted = re.compile(r"(LDG|STG|LDGSTS)\b")
    return {name for name in instructions if wanted.match(name) and "STRONG" not in name}


@pytest.mark.parametrize(("arch", "dtype", "cols"), of_each(CHOSEN))
def test_what_is_chosen_spills_nothing_and_has_no_float64(arch, dtype, cols):
    kernel = built(arch, dtype, cols)
    assert kernel.stack == kernel.local == 0
    assert not kernel.float64
    assert chosen(arch, dtype, cols).shared + kernel.shared <= PROCESSORS[arch].shared


@pytest.mark.parametrize(("arch", "dtype", "cols"), of_each(IN_REGISTERS))
def test_rows_in_registers_move_16_bytes_at_once(arch, dtype, cols):
    assert global_accesses(built(arch, dtype, cols).instructions) == {"LDG.E.128.CONSTANT", "STG.E.128"}


@pytest.mark.parametrize(("arch", "dtype", "cols"), IN_A_CLUSTER)
def test_a_cluster_sends_once_and_waits_for_no_memory(arch, dtype, cols):
    kernel = built(arch, dtype, cols)
    assert kernel.instructions["STAS.64"] == 1
    assert not kernel.having("MEMBAR")


@pytest.mark.parametrize(("arch", "dtype", "cols"), IN_THE_RING)
def test_the_ring_moves_16_bytes_at_once_and_tells_a_partial_in_one_store(arch, dtype, cols):
    kernel = built(arch, dtype, cols)
    assert kernel.instructions["LDGSTS.E.BYPASS.128"]
    assert kernel.instructions["STG.E.128"] >= 8
    assert kernel.instructions["STG.E.128.STRONG.GPU"] == 1
    assert kernel.instructions["LDG.E.128.STRONG.GPU"] == 4
    assert kernel.instructions["LDS.128"] == 16
    assert kernel.stack == kernel.local == 0
    assert kernel.shared <= RING_STATE
    assert kernel.registers * 576 <= 65_536


@pytest.mark.parametrize(("arch", "name"), of_each(GENERAL))
def test_the_general_kernels_spill_nothing(arch, name):
    kernel = kernels(arch)[name]
    assert kernel.stack == kernel.local == 0
    if "vectors" in name and "general" in name:
        assert global_accesses(kernel.instructions) == {"LDG.E.128", "STG.E.128"}
