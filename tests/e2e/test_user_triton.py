"""A Triton kernel in a user's file, without a GPU: refused, interpreted and compiled as the project's own are."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy
import pytest

triton = pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(
    numpy.lib.NumpyVersion(numpy.__version__) >= "2.4.0" and triton.__version__ < "3.7",
    reason="the interpreter of this Triton fails with numpy 2.4",
)

SMALL = ["workload=add", "workload.rows=8", "workload.cols=64", "device=cpu", "impl=file"]
BFLOAT16 = "Triton's interpreter truncates to bfloat16 where a GPU rounds; use float16, or a GPU"
NEEDS_GPU = "Triton kernels need an NVIDIA GPU; to check this one on a CPU: debug=interpret"
KERNELS = """
import torch, triton
import triton.language as tl

@triton.autotune([triton.Config({"block": 32}), triton.Config({"block": 64})], key=["n"])
@triton.jit
def tuned(a, b, y, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(y + at, tl.load(a + at, at < n) + tl.load(b + at, at < n), at < n)

@triton.jit
def rounded(a, b, y, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    of_a, of_b = tl.load(a + at, at < n).to(tl.bfloat16), tl.load(b + at, at < n).to(tl.bfloat16)
    tl.store(y + at, of_a.to(tl.float32) + of_b.to(tl.float32), at < n)

@triton.jit
def assembly(a, b, y, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    of_a = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [tl.load(a + at)], tl.float32, is_pure=True, pack=1)
    tl.store(y + at, of_a + tl.load(b + at))

@triton.jit
def shifted(a, b, y, n, block: tl.constexpr, of_a: tl.constexpr = 0, of_y: tl.constexpr = 0):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(y + at + of_y, tl.load(a + at + of_a) + tl.load(b + at))

@triton.jit
def added_to(a, b, y, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.atomic_add(y + at * 2, tl.load(a + at) + tl.load(b + at))

@triton.jit
def of_table(table, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    a, b, y = (tl.load(table).to(tl.pointer_type(tl.float32)), tl.load(table + 1).to(tl.pointer_type(tl.float32)),
        tl.load(table + 2).to(tl.pointer_type(tl.float32)))
    tl.store(y + at, tl.load(a + at, at < n) + tl.load(b + at, at < n), at < n)

def launched(kernel, **options):
    def add(a, b):
        y = torch.empty_like(a)
        grid = lambda meta: (triton.cdiv(a.numel(), meta["block"]),)
        kernel[grid](a, b, y, a.numel(), **options)
        return y
    return add

add, add_rounded, add_assembly = launched(tuned), launched(rounded, block=64), launched(assembly, block=64)
add_beyond, add_before = launched(shifted, block=64, of_y=1), launched(shifted, block=64, of_a=-1)
add_twice_as_far = launched(added_to, block=64)

def add_table(a, b):
    y = torch.empty_like(a)
    of_table[(8,)](torch.tensor([a.data_ptr(), b.data_ptr(), y.data_ptr()]), a.numel(), block=64)
    return y

def to_gpu(a, b):
    return (a.cuda() + b.cuda()).cpu()
"""
TUTORIAL = """
import triton
DEVICE = triton.runtime.driver.active.get_active_torch_device()
from kernels_of_mine import add as plain

def add(a, b):
    assert a.device == DEVICE
    return plain(a, b)
"""
SCRIPT = f"{TUTORIAL}\nimport torch\nadd(torch.zeros(1001, device=DEVICE), torch.zeros(1001, device=DEVICE))\n"
PERSISTENT = """
import torch, triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.cuda.libdevice import pow

DEVICE = triton.runtime.driver.active.get_active_torch_device()
COUNT = triton.runtime.driver.active.utils.get_device_properties(DEVICE.index)["multiprocessor_count"]

def is_cuda():
    return triton.runtime.driver.active.get_current_target().backend == "cuda"

@triton.jit
def persistent(x, y, n, block: tl.constexpr):
    for start in range(tl.program_id(0) * block, n, tl.num_programs(0) * block):
        at = start + tl.arange(0, block)
        tl.store(y + at, pow(libdevice.abs(tl.load(x + at, at < n)), 2.0), at < n)

def inputs(n=300):
    return torch.randn(n, device=DEVICE)

def reference(x):
    return x * x

def squared(x):
    assert x.device == DEVICE and not (is_cuda() and torch.cuda.is_available())
    y = torch.empty_like(x)
    kernel = persistent.warmup(x, y, x.numel(), block=64, grid=(1,))
    kernel._init_handles()
    assert kernel.n_regs > 0 and kernel.metadata.shared >= 0
    kernel[(COUNT, 1, 1)](x, y, x.numel(), 64)
    return y

@triton.testing.perf_report(triton.testing.Benchmark(["n"], [2**40], "which", ["a"], ["A"], "squares", {}))
def benchmark(n, which):
    raise SystemExit

benchmark.run(save_path=".", print_data=True)
"""


@pytest.fixture
def of_file(run, tmp_path):
    """``of_file(functions, *words)``: the finished command, and the row of each function and type."""
    (tmp_path / "kernels_of_mine.py").write_text(KERNELS)
    (tmp_path / "tutorial.py").write_text(TUTORIAL)
    (tmp_path / "script.py").write_text(SCRIPT)

    def go(functions, *words):
        result = run(*SMALL, f"impl.path={','.join(functions)}", *words, "-m")
        rows = {(row["case"]["impl"]["path"], row["case"]["workload"]["dtype"]): row for row in result.rows()}
        return result, rows

    return go


ADD, TUTORIALS = "kernels_of_mine.py:add", "tutorial.py:add"


def test_the_interpreter_checks_an_autotuned_kernel_and_refuses_what_it_cannot_do(of_file):
    functions = [ADD, f"{ADD}_rounded", f"{ADD}_assembly"]
    result, rows = of_file(functions, "debug=interpret", "workload.dtype=float32,bfloat16")
    right = rows[ADD, "float32"]
    assert (result.code, right["status"], right["metrics"]["correct"]) == (0, "ok", True)
    assert right["metrics"]["verdict_reason"].startswith("correct under Triton's interpreter")
    others = {key: row for key, row in rows.items() if row is not right}
    assert {row["status"] for row in others.values()} == {"unsupported"}
    assembly = others.pop((f"{ADD}_assembly", "float32"))["reason"]
    assert assembly.startswith("Triton's interpreter cannot run this kernel (inline_asm not supported")
    assert {row["reason"] for row in others.values()} == {BFLOAT16}


def test_the_interpreter_stops_at_an_access_outside_of_the_tensors(of_file):
    faults = {  # the tensors have 512 elements
        "beyond": "program (7, 0, 0) stores to y + 512, outside of its memory (y + 0 to y + 511)",
        "before": "program (0, 0, 0) loads a + -1, outside of its memory (a + 0 to a + 511)",
        "twice_as_far": "program (4, 0, 0) changes y + 512, outside of its memory (y + 0 to y + 511)",
    }
    result, rows = of_file([*(f"{ADD}_{name}" for name in faults), f"{ADD}_table"], "debug=interpret")
    *wrong, table = rows.values()
    assert [row["reason"] for row in wrong] == [
        f"IndexError: {fault}: the mask, the offset or the grid is wrong" for fault in faults.values()
    ]
    assert {row["status"] for row in wrong} == {"error"}
    assert "IndexError: program (7, 0, 0)" in result.out
    assert "(kernels_of_mine.py:26)" in result.out
    assert (table["status"], table["metrics"]["correct"]) == ("ok", True)  # its pointers may lead anywhere


def test_a_kernel_without_a_gpu_is_unsupported_and_says_what_to_do(of_file):
    result, rows = of_file([ADD, TUTORIALS, "kernels_of_mine.py:to_gpu"])
    assert result.code == 1
    assert {row["status"] for row in rows.values()} == {"unsupported"}
    of_triton, of_tutorial, to_gpu = (row["reason"] for row in rows.values())
    assert of_triton.startswith(NEEDS_GPU)
    assert of_tutorial.startswith(NEEDS_GPU)
    assert to_gpu.startswith("it asks for a GPU, and torch sees none here (")


def test_it_is_compiled_for_another_gpu_and_that_is_success(of_file):
    result, rows = of_file([ADD, TUTORIALS], "measure=inspect", "measure.inspect.arch=90")
    assert result.code == 0
    for row in rows.values():
        assert row["status"] == "unsupported"
        assert row["reason"] == "not run, only measured by inspect: Triton kernels need an NVIDIA GPU"
        assert row["metrics"]["kernel_name"] == "tuned"
        (ptx,) = (name for name in row["files"] if name.endswith("tuned.ptx"))
        assert ".target sm_90" in (result.folder / ptx).read_text()


def test_kernels_that_a_script_runs_when_it_is_imported_are_not_the_call_s(of_file):
    result, rows = of_file(["script.py:add"], "measure=inspect", "measure.inspect.arch=90")
    (row,) = rows.values()
    (table,) = (name for name in row["files"] if name.endswith("kernels.csv"))
    _, *lines = (result.folder / table).read_text().splitlines()
    assert len(lines) == 1  # 1001 elements are another specialization


@pytest.mark.parametrize("words", [["debug=interpret"], ["measure=inspect", "measure.inspect.arch=90"]])
def test_a_script_that_asks_the_driver_and_libdevice_needs_no_gpu(run, tmp_path, words):
    (tmp_path / "squares.py").write_text(PERSISTENT)
    result = run("workload=squares.py", "impl=squared", "device=cpu", *words)
    (row,) = result.rows()
    assert result.code == 0
    assert row["metrics"].get("correct", row["metrics"].get("kernel_name")) in (True, "persistent")
    assert "import_note" not in row["metrics"]  # its benchmark did not run
    assert not (tmp_path / "results.html").exists()


def test_compiling_is_no_success_if_a_time_was_asked_for_too(of_file):
    result, rows = of_file([ADD], "measure=[benchmark,inspect]", "measure.inspect.arch=90")
    assert (result.code, [row["status"] for row in rows.values()]) == (1, ["unsupported"])


def test_bench_refuses_to_time_what_the_interpreter_runs(tmp_path):
    (tmp_path / "kernels_of_mine.py").write_text(KERNELS)
    (tmp_path / "program.py").write_text(
        "import torch\nfrom runner import bench\nfrom kernels_of_mine import add\n"
        "a, b = torch.randn(2, 300)\n"
        "functions = {'right': add, 'wrong': lambda a, b: add(a, a), 'torch': torch.add}\n"
        "for each in bench(functions, a, b, check=torch.add, max_s=0.02):\n"
        "    print(each.timing.verdict, each.timing.reason)\n"
        "print(bench(add, a, b))\n"
        "try: bench(add, a.bfloat16(), b.bfloat16())\n"
        "except Exception as error: print(error)\n"
    )
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": root}
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    right, wrong, _, alone, refused = done.stdout.splitlines()
    untimed = "under Triton's interpreter; a time there would say nothing about a GPU"
    assert right == f"unsupported correct {untimed}"
    assert wrong.startswith("wrong ")
    assert alone == f"add: not timed on cpu, unsupported: {untimed}"
    assert refused == BFLOAT16
