"""``debug=...`` on the command line: the environment is there in time, and rows say what they were made under."""

from __future__ import annotations

import os

import numpy
import pytest

SMALL = ["workload=gelu", "workload.rows=8", "workload.cols=64"]
QUICK = ["measure.benchmark.samples=20", "measure.benchmark.max_s=0.02", "measure.benchmark.warmup_s=0"]

# Says what the process that forked the worker was started with, for torch and Triton were imported there.
ENVIRONMENT = """
def gelu(x):
    with open("/proc/self/environ", "rb") as own:
        begun = own.read().split(b"\\0")
    raise ValueError([name for name in ("TRITON_INTERPRET", "CUDA_LAUNCH_BLOCKING") if f"{name}=1".encode() in begun])
"""


WRONG = """
import torch, triton
import triton.language as tl
@triton.jit
def double(x, y, n, block: tl.constexpr):
    at = tl.arange(0, block)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)
def gelu(x):
    y = torch.empty_like(x)
    double[(1,)](x, y, x.numel(), 512)
    return y
"""


def test_triton_kernels_are_interpreted_where_it_is_asked_for(run):
    triton = pytest.importorskip("triton")
    if numpy.lib.NumpyVersion(numpy.__version__) >= "2.4.0" and triton.__version__ < "3.7":
        pytest.skip("the interpreter of this Triton fails with numpy 2.4")
    result = run(*SMALL, *QUICK, "impl=torch,triton", "debug=interpret", "-m")
    assert result.code == 0, result.out + result.err
    assert result.statuses() == {"torch": "ok", "triton": "ok"}
    assert {row["metrics"]["verdict"] for row in result.rows()} == {"debug"}
    assert {row["case"]["debug"] for row in result.rows()} == {"interpret"}
    assert "★" not in result.out
    of_torch, interpreted = (row["metrics"] for row in result.rows())
    assert of_torch["verdict_reason"] == "debug=interpret is a debugging mode; timings are not valid"
    assert interpreted["verdict_reason"].startswith("correct under Triton's interpreter")
    assert interpreted["correct"] is True
    assert "wall_us" not in interpreted


def test_numba_kernels_are_simulated_where_it_is_asked_for(run):
    pytest.importorskip("numba", reason="it needs the extra numba")
    result = run(*SMALL, *QUICK, "impl=numba", "workload.form=tanh,erf", "device=cpu", "debug=interpret", "-m")
    assert result.code == 0, result.out + result.err
    assert [row["status"] for row in result.rows()] == ["ok", "ok"]
    for row in result.rows():
        assert row["metrics"]["verdict_reason"].startswith("correct under Numba's simulator")
        assert "wall_us" not in row["metrics"]


def test_a_wrong_triton_kernel_is_found_out_without_a_gpu(run, tmp_path):
    pytest.importorskip("triton")
    (tmp_path / "user.py").write_text(WRONG)
    result = run(*SMALL, *QUICK, "impl=file", "impl.path=user.py:gelu", "debug=interpret")
    assert result.code == 1
    assert result.statuses() == {"file": "wrong"}


def test_one_command_may_sweep_the_debugging_modes_and_each_has_workers_of_its_own(run, tmp_path):
    (tmp_path / "user.py").write_text(ENVIRONMENT)
    result = run(*SMALL, *QUICK, "impl=file", "impl.path=user.py:gelu", "device=cpu", "debug=null,interpret", "-m")
    reasons = {row["case"]["debug"]: row["reason"] for row in result.rows()}
    assert reasons == {None: "ValueError: []", "interpret": "ValueError: ['TRITON_INTERPRET']"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["debug=interpret", "device=cuda"],
            "runner: debug: interpret runs Triton and Numba kernels on the CPU; leave out device=cuda\n",
        ),
        (["debug=sanitizer", "device=cpu"], "runner: debug: sanitizer looks at kernels on a GPU; leave out device=cpu"),
    ],
)
def test_a_debugging_mode_that_can_find_nothing_there_is_refused_before_anything_runs(run, words, told):
    result = run(*SMALL, *words)
    assert result.code == 2
    assert result.err.startswith(told)
    assert result.folder is None


def test_without_a_gpu_launches_cannot_be_waited_for(run):
    (row,) = run(*SMALL, "impl=torch", "debug=launch_blocking").rows()
    assert row["status"] == "unsupported"
    assert row["reason"].startswith("debug=launch_blocking looks at kernels on a GPU")


@pytest.mark.gpu
def test_launches_are_waited_for_from_the_start_of_cuda_on(run, tmp_path):
    (tmp_path / "user.py").write_text(ENVIRONMENT)
    words = [*SMALL, *QUICK, "device=cuda", "debug=launch_blocking"]
    gpu = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0")}
    (failed,) = run(*words, "impl=file", "impl.path=user.py:gelu", env=gpu).rows()
    assert failed["reason"] == "ValueError: ['CUDA_LAUNCH_BLOCKING']"
    timed = run(*words, "impl=torch", env=gpu).rows()[0]
    assert (timed["status"], timed["metrics"]["verdict"]) == ("ok", "debug"), timed["reason"]
