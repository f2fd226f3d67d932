"""``python -m runner verify``: what is a pass and what is none, what the user sees, and what is kept."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from runner import cli
from runner.device import identity
from runner.records.options import CONF
from runner.timing import verify
from runner.timing.call import Batches, Call
from runner.timing.statistics import Ratio
from runner.timing.verify import checks as shared
from runner.timing.verify import cpu as of_cpu
from runner.timing.verify.checks import Check, ComparedTimes

ROOT = Path(__file__).resolve().parents[2]
GOOD, BAD = Check("right", "1.00 us", "within 1 %", passed=True), Check("off", "2 us", "within 1 %", passed=False)


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")  # put back after a command that sets it
    return tmp_path


@pytest.fixture
def without_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def checks(monkeypatch, without_gpu):
    """``checks(name=findings or exception, ...)`` in the place of the CPU's own."""

    def put(**found):
        def check(what):
            def run(settings):
                if isinstance(what, BaseException):
                    raise what
                return what

            return run

        monkeypatch.setattr(of_cpu, "CHECKS", {name: check(what) for name, what in found.items()})

    return put


def pairs(*percents: float, half: float = 0.2, us: float = 20.0) -> list[ComparedTimes]:
    """Ratios that are so many percent off, each known to ``half`` a percent."""
    return [ComparedTimes(Ratio(math.log1p(p / 100), half / 100, 9, paired=True), us) for p in percents]


# --- what is a pass ---


@pytest.mark.parametrize(("off", "passed"), [([0.0] * 10, True), ([2.0] + [0.0] * 9, True), ([2.0, -2.0, 0.0], False)])
def test_of_equal_calls_one_may_be_called_different(off, passed):
    finding = shared.alike("A/A", pairs(*off), most=1)
    assert finding.passed is passed
    assert f"of {len(off)} called different" in finding.found


@pytest.mark.parametrize(("unclear", "passed"), [(0, True), (2, True), (3, False)])
def test_of_long_equal_calls_nine_in_ten_are_called_the_same(unclear, passed):
    made = pairs(*[0.0] * (20 - unclear)) + pairs(*[0.0] * unclear, half=3.0)
    assert shared.sure("A/A", made).passed is passed


def test_short_equal_calls_need_not_be_called_the_same():
    assert shared.sure("A/A", pairs(0.0, 0.0, half=3.0, us=2.0) + pairs(0.0)).passed


@pytest.mark.parametrize(("missed", "passed"), [(0, True), (1, True), (2, False)])
def test_a_longer_call_is_found_in_nine_of_ten(missed, passed):
    finding = shared.slower("spin of 5 us", pairs(*[2.0] * (10 - missed), *[0.0] * missed), 0.02, least=9)
    assert finding.passed is passed
    assert finding.name == "spin of 5 us, 2 % longer"


def test_a_call_that_is_called_faster_is_not_one_found_slower():
    assert not shared.slower("spin", pairs(*[-2.0] * 10), 0.02, least=9).passed


def test_a_pair_is_compared_as_a_sweep_does_it():
    class Fake:
        def compare(self, calls, device):
            assert [dict(columns) for _, columns in calls] == [{"instrument": "graph_timestamps"}] * 2
            return [Batches("graph_timestamps", [us] * 10, 400) for us in (10.3, 10.0)]

    call = Call(lambda: ())
    made = shared.compared(Fake(), "cuda", call, call, "graph_timestamps")
    assert made.us == pytest.approx(10.0)
    assert made.ratio.log == pytest.approx(math.log(1.03))
    assert made.ratio.word == "slower"


@pytest.mark.parametrize(("best_us", "passed"), [(20.2, True), (21.3, True), (21.5, False), (18.5, False)])
def test_a_loop_must_read_its_length(best_us, passed):
    assert of_cpu.known_loop(20.0, {"min_us": best_us, "wall_us": 25.0}).passed is passed


class TestOnAGpu:
    """What its figures mean, without one."""

    gpu = pytest.importorskip("runner.timing.verify.cuda", reason="Triton is not here")

    @pytest.mark.parametrize(
        ("read_us", "true_us", "passed"), [(5.2, 5.0, True), (5.4, 5.0, False), (502.4, 500.0, True), (503.0, 500.0, 0)]
    )
    def test_a_spin_must_read_its_length(self, read_us, true_us, passed):
        assert self.gpu.known_length(5.0, read_us, true_us).passed is bool(passed)

    @pytest.mark.parametrize(
        ("graphs_us", "stream_us", "passed"),
        [(10.3, 9.7, True), (10.4, 10.0, False), (10.0, 10.7, True), (10.0, 10.9, False)],
    )
    def test_both_kinds_of_timestamps_must_agree_with_cupti(self, graphs_us, stream_us, passed):
        graphs = {"gpu_us": graphs_us, "cupti_us": 10.1, "latency_us": 18.0}
        finding = self.gpu.against_cupti(22, graphs, {"gpu_us": stream_us, "cupti_us": 9.9}, events_us=13.0)
        assert finding.passed is passed
        assert finding.found.startswith("CUPTI 10.00 us; graphs")
        assert finding.found.endswith("events +3.00, wall clock +8.00")

    def test_without_cupti_nothing_is_shown_to_be_right(self):
        row = {"gpu_us": 10.0, "latency_us": 18.0}
        assert self.gpu.against_cupti(22, row, row, 13.0) == Check(
            "gelu 2^22", "CUPTI is not available here", "graphs within 0.35 us, stream 0.8 us, or 1 %", passed=False
        )

    @pytest.mark.parametrize(
        ("none", "two", "four", "fits", "passed"),
        [
            (7.5, 10.0, 10.05, True, [True, True]),
            (7.5, 9.8, 10.0, True, [False, True]),
            (9.8, 10.0, 10.0, True, [True, False]),
            (9.8, 10.0, 10.0, False, [True, True]),
        ],
    )
    def test_more_than_twice_the_cache_makes_no_difference_and_none_at_all_does(self, none, two, four, fits, passed):
        times_us = {0.0: none, 0.25: 8.0, 0.5: 9.0, 1.0: 9.9, 2.0: two, 4.0: four}
        findings = self.gpu.swept(times_us, fits=fits)
        assert [finding.passed for finding in findings] == passed
        assert ("does not fit" in findings[1].found) is not fits

    @pytest.mark.parametrize(("random_us", "passed"), [(115.0, True), (99.5, True), (98.0, False)])
    def test_random_numbers_are_not_multiplied_faster_than_zeros(self, random_us, passed):
        assert self.gpu.against_zeros("matmul", random_us, 100.0).passed is passed


# --- the command, with checks that find what they are told to ---


def test_all_passed_is_exit_code_0_and_a_certificate_that_later_runs_have(checks, capsys):
    checks(first=[GOOD, GOOD], second=[GOOD])
    assert identity.describe()["certificate"] is None
    assert cli.main(["verify"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Verifying ")
    assert "[1/2] first: 2 of 2 passed" in out
    assert "[2/2] second: 1 of 1 passed" in out
    assert "3 of 3 passed. Certificate: " in out
    summary = identity.describe()["certificate"]
    assert (summary["passed"], summary["of"], summary["failed"]) == (3, 3, [])


def test_a_check_that_fails_is_exit_code_1_and_stands_in_the_certificate(checks, capsys, home):
    checks(first=[GOOD], second=[BAD])
    assert cli.main(["verify", "--device", "cpu"]) == 1
    assert "FAIL" in capsys.readouterr().out
    assert identity.describe()["certificate"]["failed"] == ["off"]
    (path,) = home.rglob("*.json")
    record = json.loads(path.read_text())
    assert record["identity"] == identity.cpu_identity()
    assert record["device"] == "cpu"
    failed = {"name": "off", "found": "2 us", "bar": "within 1 %", "passed": False}
    failed |= {"separate_pct": None, "processes": []}
    assert record["findings"][1] == failed


def test_how_far_separate_times_differ_is_in_the_certificate_and_in_each_later_row(checks):
    from runner.timing.cpu import measure

    def column():
        identity.separate_pct.cache_clear()  # kept for the rest of a process
        return measure(Call(lambda: ()), dataclasses.replace(verify.settings(), max_s=0.01))[0]["separate_pct"]

    try:
        assert column() is None
        checks(first=[GOOD, dataclasses.replace(GOOD, separate_pct=1.25)])
        assert cli.main(["verify", "--device", "cpu"]) == 0
        assert column() == 1.25
    finally:
        identity.separate_pct.cache_clear()


def processes(noise: float, count: int, since_s: float = 0.0) -> list[list[float]]:
    """Times of two calls: the second is alternately so much longer and shorter."""
    return [[since_s + 3.0 * at, 20.0, 300.0 * math.exp(noise * (-1) ** at)] for at in range(count)]


@pytest.mark.parametrize(("noise", "percent", "passed"), [(0.01, 4.0, True), (0.05, 19.9, False)])
def test_the_call_that_repeats_itself_worse_says_how_far_separate_times_differ(noise, percent, passed):
    finding = shared.separate("separate times", processes(noise, 6), most_pct=5.0)
    assert finding.separate_pct == pytest.approx(percent, abs=0.1)
    assert finding.passed is passed


def test_earlier_runs_of_verify_count_too(checks):
    """Two quiet hours that differ by 4 %: neither of them knows that."""
    now = shared.separate("separate times", processes(0.001, 6, 3600.0), most_pct=5.0)
    before = [[at, us, 1.04 * other] for at, us, other in processes(0.001, 6)]
    checks(first=[shared.separate("separate times", before, most_pct=5.0)])
    assert cli.main(["verify", "--device", "cpu"]) == 0
    both = shared.separate("separate times", processes(0.001, 6, 3600.0), 5.0, shared.earlier("cpu"))
    assert now.separate_pct < 0.5 < 5.0 < both.separate_pct
    assert "12 processes in 60.2 min" in both.found
    assert len(shared.separate("", processes(0.001, 40), 5.0).processes) == shared.MOST_PROCESSES


def test_a_check_that_raises_has_failed_and_the_others_go_on(checks, capsys):
    checks(first=RuntimeError("no clock\nat all"), second=[GOOD])
    assert cli.main(["verify"]) == 1
    assert "RuntimeError: no clock" in capsys.readouterr().out
    assert identity.describe()["certificate"]["failed"] == ["first"]


def test_a_check_that_others_disturb_is_not_judged_and_nothing_is_certified(checks, capsys, home):
    checks(first=[GOOD], second=verify.TooBusy(), third=[BAD])
    assert cli.main(["verify"]) == 1
    out = capsys.readouterr().out
    assert "[2/3] second: too busy to judge, try again (" in out
    assert "1 of 3 self-tests could not be judged, since other processes use this machine: stop them, then" in out
    assert "TooBusy" not in out
    assert not list(home.rglob("*.json"))


def test_where_all_are_disturbed_there_is_no_table(checks, capsys):
    checks(first=verify.TooBusy(), second=verify.TooBusy())
    assert cli.main(["verify"]) == 1
    assert "FAIL" not in (out := capsys.readouterr().out)
    assert "found" not in out


@pytest.mark.parametrize("waited_s", [0.0, 3600.0])
@pytest.mark.parametrize("slow", [False, True])
def test_rounds_without_time_and_threads_without_a_core_are_no_result(monkeypatch, waited_s, slow):
    """The threads of this process are made to wait, and the calls to be too slow for rounds."""
    from runner.timing import cpu

    waits = iter([0.0, waited_s])
    monkeypatch.setattr(cpu, "waited_s", lambda *_: next(waits))
    quick = dataclasses.replace(verify.settings(), max_s=1e-9 if slow else 0.2)
    call = Call(lambda: ())
    if slow or waited_s:
        with pytest.raises(verify.TooBusy):
            shared.compared(quick, "cpu", call, call)
    else:
        shared.compared(quick, "cpu", call, call)


def test_a_time_that_others_disturbed_is_no_result(monkeypatch):
    from runner.timing import cpu

    waits = iter([0.0, 3600.0])
    monkeypatch.setattr(cpu, "waited_s", lambda *_: next(waits))
    with pytest.raises(verify.TooBusy):
        dataclasses.replace(verify.settings(), max_s=0.01).time(Call(lambda: ()), "cpu")


def test_an_interrupt_certifies_nothing(checks, capsys, home):
    checks(first=[GOOD], second=KeyboardInterrupt())
    assert cli.main(["verify"]) == 130
    assert "nothing is certified" in capsys.readouterr().out
    assert not list(home.rglob("*.json"))


def test_a_cache_that_cannot_be_written_is_said_and_costs_nothing(checks, capsys, home):
    (home / "kernel-runner").write_text("a file where the folder should be")
    checks(first=[GOOD])
    assert cli.main(["verify"]) == 0
    assert "cannot hold a certificate" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--device", "tpu"], "argument --device: invalid choice: 'tpu'"),
        (["--device"], "argument --device: expected one argument"),
        (["now"], "now: not an argument of verify; one of: --device, --help"),
        (["--device", "cuda"], "--device cuda: torch sees no NVIDIA GPU here"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(checks, capsys, home, arguments, says):
    checks(first=[GOOD])
    assert cli.main(["verify", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"runner: {says}")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert not list(home.rglob("*.json"))


def test_help_is_help_and_imports_no_torch():
    look = "try: main(['verify', '-h'])\nfinally: assert 'torch' not in sys.modules"
    probe = f"import sys\nfrom runner.cli import main\n{look}"
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--device" in done.stdout


def test_the_settings_are_those_of_the_yaml_without_the_measured_peak():
    import yaml

    values = yaml.safe_load((CONF / "measure" / "benchmark.yaml").read_text())
    del values["name"], values["quick"]
    assert verify.settings() == verify.Settings(**values | {"measured_peak": False})


# --- for real ---


def command(tmp_path, *arguments, **environment):
    """A finished ``python -m runner verify``."""
    inherited = {name: value for name, value in os.environ.items() if name != "KINETO_LOG_LEVEL"}
    inherited["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "runner", "verify", *arguments],
        cwd=tmp_path,
        env=inherited | {"XDG_CACHE_HOME": str(tmp_path)} | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def certified(tmp_path):
    (path,) = (tmp_path / "kernel-runner" / "certificate").glob("*.json")
    return json.loads(path.read_text())


def test_a_cpu_is_verified_whatever_else_it_does(tmp_path):
    """On a loaded machine checks may fail or not be judged, and that is told."""
    done = command(tmp_path, "--device", "cpu")
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    count = len(of_cpu.CHECKS)
    named = [f"[{place}/{count}] {name}" for place, name in enumerate(of_cpu.CHECKS, 1)]
    assert [line.partition(":")[0] for line in lines] == named
    assert "profiler" not in done.stderr.lower()
    assert "Error" not in done.stdout + done.stderr
    if any("too busy to judge, try again" in line for line in lines):
        assert done.returncode == 1
        assert "Nothing is certified." in done.stdout
        assert not (tmp_path / "kernel-runner" / "certificate").exists()
        return
    record = certified(tmp_path)
    failed = [finding["name"] for finding in record["findings"] if not finding["passed"]]
    assert done.returncode == (1 if failed else 0), done.stdout + done.stderr
    names = ["loop of 20 us", "loop of 200 us", "loop of 2000 us", "A/A, gelu of 65536 elements: different"]
    assert {*names, "loop of 200 us, 5 % longer"} <= {finding["name"] for finding in record["findings"]}
    assert all(finding["found"] in done.stdout for finding in record["findings"])
    assert (record["passed"], record["of"]) == (len(record["findings"]) - len(failed), len(record["findings"]))


@pytest.mark.gpu
def test_this_gpu_passes_all_of_it(tmp_path):
    done = command(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    record = certified(tmp_path)
    assert record["device"] == "cuda"
    assert record["identity"] == identity.identity()
    assert record["passed"] == record["of"] == 21


@pytest.mark.gpu
def test_a_gpu_whose_kernels_are_interpreted_is_refused(tmp_path):
    done = command(tmp_path, TRITON_INTERPRET="1")
    assert done.returncode == 2
    assert done.stderr.startswith("runner: TRITON_INTERPRET=1 ")
