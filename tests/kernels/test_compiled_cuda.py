"""What NVRTC makes of the CUDA C++ kernels, for GPUs that need not be here: what makes each of them fast."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

pytest.importorskip("cuda.core")
triton = pytest.importorskip("triton")  # which brings cuobjdump

from runner.kernels import cuda_nvrtc  # noqa: E402
from runner.kernels.cuda_sources import variants  # noqa: E402
from runner.kernels.matmul.cuda import LARGE, SMALL  # noqa: E402

KERNELS = Path(__file__).parents[2] / "kernels"
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
ARCHS = [*(pytest.param(arch, marks=pytest.mark.long) for arch in ("sm_80", "sm_89")), "sm_90a"]
# Each type and each processor, without the product of both.
DTYPES = [
    *(pytest.param(*one, marks=pytest.mark.long) for one in (("float", "sm_80"), ("bfloat16", "sm_89"))),
    *((dtype, "sm_90a") for dtype in ("float", "bfloat16")),
    pytest.param("double", "sm_90a", marks=pytest.mark.long),
]
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)
FLOAT64 = re.compile(r"D(ADD|MUL|FMA|SETP)\b|F2F\.F(64\.F32|32\.F64)|MUFU\.\w+64H|I2F\.F64|F2I\.F64")
# Of a multiprocessor: CUDA C++ Programming Guide, table 27.
SHARED_BYTES = {"sm_80": 164 * 1024, "sm_89": 100 * 1024, "sm_90a": 228 * 1024}
REGISTERS_AT_ALL_WARPS = {"sm_80": 32, "sm_89": 40, "sm_90a": 32}


@dataclass
class Built:
    """What stands in a cubin."""

    file: Path
    registers: int
    stack: int
    shared: int

    @cached_property
    def instructions(self) -> Counter[str]:
        """How often each occurs. Disassembling takes half a second."""
        return Counter(INSTRUCTION.findall(dumped("-sass", self.file)))

    def having(self, word: str) -> set[str]:
        """The instructions whose name begins with ``word``."""
        return {name for name in self.instructions if name.startswith(word)}


def dumped(what: str, file: Path) -> str:
    return subprocess.run([CUOBJDUMP, what, file], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def build(tmp_path):
    def compiled(op, variant, name, arch):
        _, cubin, _ = cuda_nvrtc.compiled(variants(KERNELS / op)[variant], name, arch)
        file = tmp_path / f"{variant}.cubin"
        file.write_bytes(cubin)
        usage = dumped("-res-usage", file)
        return Built(file, *(int(re.search(rf"{what}:(\d+)", usage)[1]) for what in ("REG", "STACK", "SHARED")))

    return compiled


@pytest.fixture(autouse=True)
def cold(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize(("dtype", "arch"), [*DTYPES, ("float16", "sm_90a")])
def test_add_moves_sixteen_bytes_at_once_and_spills_nothing(build, arch, dtype):
    built = build("add", "default", f"add_kernel<{dtype}, true>", arch)
    assert (built.instructions["LDG.E.128"], built.instructions["STG.E.128"]) == (2, 1)  # beside those of the tail
    assert built.stack == 0
    assert built.registers <= REGISTERS_AT_ALL_WARPS[arch]
    assert float64(built) == (dtype == "double")


@pytest.mark.parametrize("tanh", ["true", pytest.param("false", marks=pytest.mark.long)])
@pytest.mark.parametrize(("dtype", "arch"), [*DTYPES, ("float16", "sm_90a")])
def test_gelu_moves_sixteen_bytes_at_once_and_spills_nothing(build, arch, dtype, tanh):
    built = build("gelu", "default", f"gelu_kernel<{dtype}, {tanh}, true>", arch)
    assert built.instructions["LDG.E.128"] == built.instructions["STG.E.128"] == 1  # beside those of the tail
    assert built.stack == 0
    assert built.registers <= REGISTERS_AT_ALL_WARPS[arch]
    assert float64(built) == (dtype == "double")


@pytest.mark.parametrize("arch", ARCHS[::2])
def test_histogram_counts_in_shared_memory_and_two_blocks_fit_on_a_multiprocessor(build, arch):
    built = build("histogram", "default", "histogram_kernel<32, true>", arch)
    assert built.instructions["LDG.E.128"] or built.instructions["LDG.E.128.CONSTANT"]
    assert built.having("ATOMS")
    assert built.stack == 0
    assert built.registers <= REGISTERS_AT_ALL_WARPS[arch]
    assert not build("histogram", "global", "histogram_kernel<true>", arch).having("ATOMS")


@pytest.mark.parametrize("dtype", ["float", "bfloat16"])
def test_gelu_of_an_unaligned_view_reads_element_by_element(build, dtype):
    built = build("gelu", "default", f"gelu_kernel<{dtype}, true, false>", "sm_90a")
    assert built.having("LDG") == {"LDG.E" if dtype == "float" else "LDG.E.U16"}
    assert built.stack == 0


@pytest.mark.parametrize("arch", ARCHS)
def test_the_lectures_gelu_computes_in_float64_and_reads_element_by_element(build, arch):
    built = build("gelu", "lecture", "gelu_kernel", arch)
    assert built.instructions["DFMA"] > 20
    assert built.having("F2F.F64.F32")
    assert built.having("LDG") == {"LDG.E"}


@pytest.mark.parametrize(("dtype", "arch"), DTYPES)
@pytest.mark.parametrize(("op", "variant"), [("matmul", "tiled"), ("cdist", "default")])
def test_tiles_are_read_sixteen_bytes_at_once_and_kept_in_registers(build, op, variant, dtype, arch):
    built = build(op, variant, f"{op}_kernel<{dtype}, true>", arch)
    assert all("128" in name for name in built.having("LDG"))
    assert all(".128" in name or (dtype == "bfloat16" and ".64" in name) for name in built.having("STG"))
    assert built.having("LDS") == {"LDS.128"}
    assert built.stack == 0
    assert built.registers <= 128  # two blocks of 256 threads a multiprocessor
    assert float64(built) == (dtype == "double")


@pytest.mark.parametrize("dtype", ["float", "bfloat16"])
@pytest.mark.parametrize(("op", "variant"), [("matmul", "tiled"), ("cdist", "default")])
def test_tiles_of_any_size_and_stride_spill_nothing(build, op, variant, dtype):
    assert build(op, variant, f"{op}_kernel<{dtype}, false>", "sm_80").stack == 0


def test_cdist_adds_up_in_two_steps(build):
    built = build("cdist", "default", "cdist_kernel<float, true>", "sm_90a")
    assert built.instructions["FADD"] >= 256 + 32  # a difference a term of a step; and the second sum of 8 x 4 elements


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.long)])
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("tiles", [LARGE, SMALL], ids=["large", "small"])
def test_matmul_of_16_bits_keeps_tensor_cores_fed(build, dtype, tiles, arch):
    built = build("matmul", "default", f"matmul_kernel<{dtype}, {', '.join(map(str, tiles))}, true>", arch)
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
    assert not float64(built)
    blocks = 2 if arch != "sm_89" else 1
    assert blocks * (2 * stages * depth * (rows + cols) + 1024) <= SHARED_BYTES[arch]


def test_matmul_of_any_size_and_stride_uses_tensor_cores_and_spills_nothing(build):
    built = build("matmul", "default", f"matmul_kernel<bfloat16, {', '.join(map(str, LARGE))}, false>", "sm_80")
    assert built.having("HMMA")
    assert built.stack == 0


def float64(built: Built) -> bool:
    return any(FLOAT64.match(name) for name in built.instructions)
