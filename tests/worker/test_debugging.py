"""Debugging modes: what they find, how their rows are marked, and how a tool's end is reported."""

from __future__ import annotations

from dataclasses import replace

import preloaded
import pytest
import torch

from runner.device import tools
from runner.findings.lines import derive_lines
from runner.kernels.unsupported import Unsupported
from runner.measure import MeasureContext
from runner.records.case import CaseRecord, Choice
from runner.records.debugging import useless_debug
from runner.records.settings import Settings
from runner.worker import AGAIN, Worker, sanitizer
from runner.worker.job import debugging
from runner.worker.sanitizer import SanitizerError, run_sanitizer

BENCHMARK = {
    "cold_l2": True,
    "instrument": "auto",
    "captures": 10,
    "buffer_sets": 5,
    "cupti_check": True,
    "measured_peak": False,
}
BENCHMARK |= {
    "warmup_s": 0.0,
    "samples": 20,
    "max_s": 0.02,
    "paired_rounds": 20,
    "race": False,
    "sustained_s": 0.0,
    "keep_samples": False,
}
BENCHMARK |= {"target_pct": 0.5, "target_cpu_pct": 2.0}
GELU = {
    "rows": 64,
    "cols": 64,
    "form": "tanh",
    "pass": "fwd",
    "dtype": "float32",
    "tf32": False,
    "data": "normal",
    "layout": "contiguous",
}
MLP = {"dim": 16, "layers": 1, "batch": 8, "steps": 1, "activation": "gelu", "pass": "fwd_bwd", "lr": 0.01}
MLP |= {
    "zero_grad": "every_step",
    "optimizer": "sgd",
    "autocast": "none",
    "print_loss": False,
    "dtype": "float32",
    "tf32": False,
    "data": "normal",
}
PLAIN = CaseRecord(Choice("gelu", GELU), Choice("torch", {}), (Choice("benchmark", BENCHMARK),), Settings("cpu", 0))

USER = """
import torch
def right_forward_and_nan_backward(x, w, b):
    h = torch.nn.functional.linear(x, w, b)
    return torch.nn.functional.gelu(h) + torch.sqrt(h * h * 0)
"""


def test_a_case_in_a_debugging_mode_is_another_case():
    other = PLAIN.with_settings(debug="anomaly")
    assert other.key != PLAIN.key
    assert other.problem != PLAIN.problem
    assert CaseRecord.from_record(other.to_record()) == other


def test_rows_of_a_debugging_mode_say_so_and_are_neither_compared_nor_the_fastest():
    worker = Worker()
    cases = [replace(PLAIN.with_settings(debug="anomaly"), impl=Choice(name, {})) for name in ("torch", "naive")]
    rows = [worker.run(case)[0] for case in cases]
    assert [row.status for row in rows] == ["ok", "ok"]
    assert {row.metrics["verdict"] for row in rows} == {"debug"}
    assert rows[0].metrics["verdict_reason"] == "debug=anomaly is a debugging mode; timings are not valid"
    assert worker.compare().reason == "there is nothing to compare"
    assert {line.fastest for line in derive_lines(rows, None)} == {"no"}
    assert any(line.fastest == "only" for line in derive_lines([worker.run(PLAIN)[0]], None))


def test_anomaly_names_the_operation_whose_backward_makes_nan_and_where_it_was_called(tmp_path):
    path = tmp_path / "user.py"
    path.write_text(USER)
    impl = Choice("file", {"path": f"{path}:right_forward_and_nan_backward"})
    case = replace(PLAIN, workload=Choice("mlp", MLP), impl=impl)
    assert Worker().run(case)[0].status == "wrong"  # which is all that is known of it outside of the debugging mode
    row, _ = Worker().run(case.with_settings(debug="anomaly"))
    assert row.status == "error"
    assert row.reason == "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output."
    assert "torch.sqrt(h * h * 0)" in row.detail
    assert not torch.is_anomaly_enabled()


@pytest.mark.parametrize(("mode", "device"), [("sanitizer", "cpu"), ("launch_blocking", "cpu"), ("interpret", "cuda")])
def test_a_debugging_mode_that_can_find_nothing_there_says_where_it_could(mode, device):
    with pytest.raises(Unsupported, match=f"^debug={mode} .*leave out device={device}"), debugging(mode, device):
        pass
    assert useless_debug("anomaly", device) == ""


FAKE = """{start}
import os, subprocess, sys, time
assert os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] == "1"
program = sys.argv[sys.argv.index("no") + 1:]
print("========= COMPUTE-SANITIZER")
{behaviour}
"""
FOUND = """
print("========= Invalid __global__ read of size 4 bytes")
print("=========     at kernel(float *)+0x70")
print("=========     by thread (0,0,0) in block (0,0,0)")
print("=========     Access at 0x7f0000000200 is out of bounds")
print("========= ERROR SUMMARY: 3 errors")
print("========= ERROR SUMMARY: 1 errors were not printed. Use --print-limit option to adjust the number")
"""
CLEAN = """
code = subprocess.call(program)
print("========= ERROR SUMMARY: 0 errors")
sys.exit(code)
"""


@pytest.fixture
def fake_sanitizer(tmp_path, monkeypatch):
    """``fake_sanitizer(behaviour)``: a stand-in, which tries how its ends are reported, not whether it finds anything.

    What it prints is in the form that compute-sanitizer's manual has; none of it was recorded.
    """

    def make(behaviour: str) -> MeasureContext:
        program = tmp_path / "fake_sanitizer"
        program.write_text(FAKE.format(start=preloaded.stand_in(), behaviour=behaviour))
        program.chmod(0o755)
        monkeypatch.setattr(tools, "find_tool", lambda name: str(program))
        return MeasureContext("cuda", PLAIN, tmp_path / "files", program=AGAIN)

    return make


def test_what_it_finds_is_told_with_its_kernel(fake_sanitizer, tmp_path):
    context = fake_sanitizer(FOUND)
    with pytest.raises(SanitizerError) as caught:
        run_sanitizer(context)
    found = "3 errors, the first: Invalid __global__ read of size 4 bytes at kernel(float *)+0x70"
    assert str(caught.value) == f"{found}; all are in {tmp_path / 'files' / 'sanitizer.log'}"


def test_a_clean_case_has_no_errors(fake_sanitizer):
    assert run_sanitizer(fake_sanitizer(CLEAN)) == {"sanitizer_errors": 0}


def test_a_case_that_is_wrong_under_it_is_left_to_the_worker_and_one_that_fails_is_not(fake_sanitizer, tmp_path):
    user = tmp_path / "user.py"
    user.write_text("def wrong(x): return x\ndef fails(x): raise ValueError('no')\n")
    context = fake_sanitizer(CLEAN)
    cases = {name: replace(PLAIN, impl=Choice("file", {"path": f"{user}:{name}"})) for name in ("wrong", "fails")}
    assert run_sanitizer(replace(context, case=cases["wrong"])) == {"sanitizer_errors": 0}
    with pytest.raises(SanitizerError, match=r"no error in memory, but .* the case fails: .*ValueError: no"):
        run_sanitizer(replace(context, case=cases["fails"]))


def test_a_case_that_cannot_be_run_under_it_was_not_looked_at(fake_sanitizer, tmp_path):
    user = tmp_path / "user.py"
    user.write_text(
        "from runner.kernels.unsupported import Unsupported\n"
        "def no(x): raise Unsupported('no CUDA graph can hold it')\n"
    )
    case = replace(PLAIN, impl=Choice("file", {"path": f"{user}:no"}))
    with pytest.raises(Unsupported, match="the case is unsupported in phase build: no CUDA graph can hold"):
        run_sanitizer(replace(fake_sanitizer(CLEAN), case=case))


@pytest.mark.parametrize(
    ("behaviour", "told"),
    [
        ("print('========= Error: Device not supported')", "could not run: Error: Device not supported"),
        ("time.sleep(60)", r"was not done after 0\.5 s: take a smaller workload"),
    ],
)
def test_where_it_cannot_look_the_case_is_unsupported(fake_sanitizer, monkeypatch, behaviour, told):
    monkeypatch.setattr(sanitizer, "LIMIT_S", 0.5 if "sleep" in behaviour else 30.0)
    with pytest.raises(Unsupported, match=told):
        run_sanitizer(fake_sanitizer(behaviour))


def test_without_it_or_without_a_folder_the_case_is_unsupported(monkeypatch, fake_sanitizer):
    context = fake_sanitizer(CLEAN)
    with pytest.raises(Unsupported, match="this call has no folder for them"):
        run_sanitizer(MeasureContext("cuda", PLAIN, None))
    monkeypatch.setattr(tools, "find_tool", lambda name: None)
    with pytest.raises(Unsupported, match="it comes with the CUDA toolkit; put it on PATH"):
        run_sanitizer(context)


OUT_OF_BOUNDS = """
import torch, triton
import triton.language as tl
@triton.jit
def copy(x, y, n, beyond, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(y + at, tl.load(x + at + beyond), mask=at < n)
def within(x, beyond=0):
    y = torch.empty_like(x)
    copy[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), beyond, 1024)
    return torch.nn.functional.gelu(x, approximate="tanh")
def outside(x): return within(x, 1 << 20)
"""


@pytest.mark.gpu
@pytest.mark.skipif(tools.find_tool("compute-sanitizer") is None, reason="compute-sanitizer is not installed here")
@pytest.mark.parametrize(("function", "status"), [("within", "ok"), ("outside", "error")])
def test_a_real_sanitizer_finds_a_read_out_of_bounds(tmp_path, function, status):
    path = tmp_path / "user.py"
    path.write_text(OUT_OF_BOUNDS)
    impl = Choice("file", {"path": f"{path}:{function}"})
    row, _ = Worker(files=tmp_path / "files").run(
        replace(PLAIN.with_settings(device="cuda", debug="sanitizer"), impl=impl)
    )
    assert row.status == status, row.reason
    assert any(file.endswith("sanitizer.log") for file in row.files)
    if status == "ok":
        assert row.metrics["sanitizer_errors"] == 0
    else:
        assert "Invalid __global__ read of size" in row.reason
        assert " at copy" in row.reason
