"""What NVRTC makes of softmax in CUDA C++, for GPUs that need not be here: wide accesses, no spills, no float64."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("cuda.core")
triton = pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("nothing of Triton here", allow_module_level=True)

from runner.kernels import cuda_nvrtc, softmax  # noqa: E402
from runner.kernels.cuda_sources import variants  # noqa: E402
from runner.kernels.softmax._cuda_plan import RING_STATE, Processor, Rows, plan  # noqa: E402

SOURCE = variants(Path(softmax.__path__[0]))["default"]
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
PROCESSORS = {
    "sm_80": Processor(80, 108, 166_912),
    "sm_89": Processor(89, 142, 101_376),
    "sm_90a": Processor(90, 132, 232_448),
}
ITEMSIZE = {"float": 4, "bfloat16": 2, "float16": 2, "double": 8}
STEP = {"sm_80": 3, "sm_89": 4, "sm_90a": 1}  # every so many of the sizes below
OLDER = pytest.mark.long
SAME = pytest.mark.long  # float16 moves as bfloat16 does
COLS = [8, 3000, 4096, 16_384, 32_768, 40_000, 131_072, 300_000, 65, 50_257, 300_001]


def dumped(what: str, tmp: Path, arch: str, kernel: str) -> str:
    _, cubin, _ = cuda_nvrtc.compiled(SOURCE, kernel, arch)  # kept in ``tmp``
    path = tmp / "kernel.cubin"
    path.write_bytes(cubin)
    return subprocess.run([CUOBJDUMP, what, path], capture_output=True, text=True, check=True).stdout


@cache
def instructions_of(*kernel) -> Counter[str]:
    """How often each instruction occurs. Disassembling takes half a second."""
    return Counter(re.findall(r"/\*[0-9a-f]{4,}\*/ +(?:@!?U?P\w+ +)?([A-Z][\w.]*)", dumped("-sass", *kernel)))


@cache
def usage_of(*kernel) -> dict[str, int]:
    """Registers, and bytes of each kind of memory."""
    found = re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", dumped("-res-usage", *kernel))
    return {name: int(number) for name, number in found}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, monkeypatch_module):
    place = tmp_path_factory.mktemp("cubins")
    monkeypatch_module.setenv("XDG_CACHE_HOME", str(place))
    return place


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def chosen(arch, dtype, cols, rows=1000):
    return plan(Rows(ITEMSIZE[dtype], rows, cols, cols, 1, True), PROCESSORS[arch])


def global_accesses(instructions):
    """Loads, stores and copies of rows, without what blocks tell each other."""
    wanted = re.compile(r"(LDG|STG|LDGSTS)\b")
    return {name for name in instructions if wanted.match(name) and "STRONG" not in name}


@pytest.mark.parametrize(
    ("arch", "dtype", "cols"),
    [
        pytest.param(arch, dtype, cols, marks=() if arch == "sm_90a" and place % 2 == turn else OLDER)
        for arch in PROCESSORS
        for turn, dtype in enumerate(("float", "bfloat16"))
        for place, cols in enumerate(COLS[:: STEP[arch]])
    ],
)
def test_what_is_chosen_spills_nothing_and_has_no_float64(folder, arch, dtype, cols):
    plan_ = chosen(arch, dtype, cols)
    instructions, usage = (of(folder, arch, plan_.kernel.format(T=dtype)) for of in (instructions_of, usage_of))
    assert usage["STACK"] == usage["LOCAL"] == 0
    assert not [name for name in instructions if re.match(r"D(ADD|MUL|FMA|SETP|MNMX)|MUFU\.\w*64", name)]
    assert plan_.shared + usage["SHARED"] <= PROCESSORS[arch].shared


@pytest.mark.parametrize(
    ("arch", "dtype"),
    [
        pytest.param("sm_80", "float", marks=OLDER),
        ("sm_90a", "bfloat16"),
        pytest.param("sm_90a", "float16", marks=SAME),
    ],
)
@pytest.mark.parametrize("cols", [1024, 4096, 16_384, 32_768])
def test_rows_in_registers_move_16_bytes_at_once(folder, arch, dtype, cols):
    plan_ = chosen(arch, dtype, cols)
    instructions = instructions_of(folder, arch, plan_.kernel.format(T=dtype))
    assert global_accesses(instructions) == {"LDG.E.128.CONSTANT", "STG.E.128"}


@pytest.mark.parametrize("dtype", ["float", "bfloat16"])
def test_a_cluster_sends_once_and_waits_for_no_memory(folder, dtype):
    instructions = instructions_of(folder, "sm_90a", chosen("sm_90a", dtype, 131_072).kernel.format(T=dtype))
    assert instructions["STAS.64"] == 1
    assert not [name for name in instructions if name.startswith("MEMBAR")]


@pytest.mark.parametrize("dtype", ["float", "bfloat16", pytest.param("float16", marks=SAME)])
def test_the_ring_moves_16_bytes_at_once_and_tells_a_partial_in_one_store(folder, dtype):
    name = chosen("sm_90a", dtype, 1_048_576).kernel
    instructions, usage = (of(folder, "sm_90a", name.format(T=dtype)) for of in (instructions_of, usage_of))
    assert instructions["LDGSTS.E.BYPASS.128"]
    assert instructions["STG.E.128"] >= 8
    assert instructions["STG.E.128.STRONG.GPU"] == 1
    assert instructions["LDG.E.128.STRONG.GPU"] == 4
    assert instructions["LDS.128"] == 16
    assert usage["STACK"] == usage["LOCAL"] == 0
    assert usage["SHARED"] <= RING_STATE
    assert usage["REG"] * 576 <= 65_536


@pytest.mark.parametrize(("arch", "dtype"), [pytest.param("sm_80", "bfloat16", marks=OLDER), ("sm_90a", "double")])
@pytest.mark.parametrize("wide", ["elements", "vectors", "edges"])
@pytest.mark.parametrize("name", ["general<{T}, 512, 1, Access::{W}>", "whole<{T}, 512, Access::{W}>"])
def test_the_general_kernels_spill_nothing(folder, arch, dtype, wide, name):
    kernel = folder, arch, f"softmax_{name.format(T=dtype, W=wide)}"
    assert usage_of(*kernel)["STACK"] == usage_of(*kernel)["LOCAL"] == 0
    if wide == "vectors" and "general" in name:
        assert global_accesses(instructions_of(*kernel)) == {"LDG.E.128", "STG.E.128"}
