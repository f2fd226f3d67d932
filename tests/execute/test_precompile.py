"""Processes that compile the coming cases, and stand still while one is measured."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from runner.device.gpus import Gpu
from runner.execute import Notice, precompile
from runner.execute.local import Local
from runner.execute.precompile import Precompiler
from runner.execute.worker_process import Zygote
from runner.experiment.case import CaseRecord, Choice
from runner.experiment.results import Row

BENCHMARK = {
    "cold_l2": True,
    "instrument": "auto",
    "captures": 10,
    "buffer_sets": 5,
    "cupti_check": True,
    "measured_peak": False,
    "warmup_s": 0.0,
}
BENCHMARK |= {"samples": 20, "max_s": 0.02, "paired_rounds": 20, "sustained_s": 0.0, "keep_samples": False}
BENCHMARK |= {"target_pct": 0.5, "target_cpu_pct": 2.0}
LIMITS = {"gpus": 0, "start_limit_s": 120, "build_limit_s": 60, "check_limit_s": 60, "measure_limit_s": 60}


def compiled(cols, **fields):
    values = {"of": "naive", "mode": "default", "dynamic": False, "fullgraph": False, "cold": False} | fields
    gelu = {"rows": 64, "cols": cols, "form": "tanh", "pass": "fwd"}
    gelu |= {"dtype": "float32", "tf32": False, "data": "normal"}
    return CaseRecord(Choice("gelu", gelu), Choice("compiled", values), (Choice("benchmark", BENCHMARK),), "cpu", 0)


@pytest.fixture
def cold(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))


def test_coming_cases_are_compiled_into_the_cache_that_their_worker_finds(tmp_path, cold):
    cases = [compiled(cols) for cols in (64, 65, 66, 67)]
    rows = [
        e for e in Local(**(LIMITS | {"precompile": 1})).run(cases, str(tmp_path / "worker.log")) if isinstance(e, Row)
    ]
    assert [row.status for row in rows] == ["ok"] * 4
    ahead = [row for row in rows if "precompile_s" in row.metrics]
    assert ahead
    assert all(row.metrics["compile_cached"] for row in ahead)
    assert all(row.metrics["compile_s"] < row.metrics["precompile_s"] for row in ahead)


def test_what_no_cache_keeps_is_not_compiled_ahead():
    torch = CaseRecord(compiled(64).workload, Choice("torch", {}), (), "cpu", 0)
    triton = CaseRecord(compiled(64).workload, Choice("triton", {}), (), "cpu", 0)
    kept = compiled(64)
    assert precompile.compiled([torch, triton, kept, compiled(64, cold=True)]) == [triton, kept]


@pytest.mark.parametrize(
    ("asked", "cores", "cases", "gib", "count"),
    [
        (None, 2, 100, [80], 0),
        (None, 16, 100, [80], 7),
        (None, 128, 100, [80], 8),
        (None, 16, 3, [80], 0),
        (None, 16, 100, [8], 1),
        (None, 16, 100, [24, 24], 7),
        (None, 16, 100, [4], 0),
        (None, 16, 100, [0], 7),
        (None, 16, 100, [], 7),
        (3, 2, 100, [8], 3),
        (3, 2, 2, [80], 0),
        (0, 64, 99, [80], 0),
    ],
)
def test_processes_are_as_many_as_cores_memory_and_cases_are_worth(asked, cores, cases, gib, count):
    gpus = [Gpu(index, f"GPU-{index}", "", size * 2**30, 0) for index, size in enumerate(gib)]
    assert precompile.processes(asked, cores, cases, gpus) == count


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_they_stand_still_while_their_gpu_measures(tmp_path, cold, eventually):
    zygote = Zygote(tmp_path / "worker.log", 60.0)
    builders = Precompiler(zygote, tmp_path / "ahead.log", [()], 1, [compiled(64)], 60.0)
    try:
        builders.advance()
        (pid,) = (builder.process.pid for builder in builders._builders)
        builders.pause_for([()])
        assert eventually(lambda: state(pid) == "T")
        builders.pause_for([])
        assert eventually(lambda: state(pid) in "RS")
    finally:
        builders.close()
        zygote.close()
    assert not Path(f"/proc/{pid}").exists()


def timed(verdict, device="NVIDIA H200", cols=64):
    figures = {"gpu_us" if device != "cpu" else "wall_us": 1.0, "verdict": verdict}
    return Row(case=compiled(cols), status="ok", device=device, metrics=figures)


def test_it_is_off_when_timings_beside_it_are_unsteady_several_times_in_a_row(tmp_path, cold):
    zygote = Zygote(tmp_path / "worker.log", 60.0)
    builders = Precompiler(zygote, tmp_path / "ahead.log", [()], 1, [compiled(64), compiled(65)], 60.0)
    try:
        assert not any(
            builders.judge(timed("not_converged")) for _ in range(precompile.MOST_SUFFERING)
        )  # nobody compiles
        builders.advance()
        (pid,) = (builder.process.pid for builder in builders._builders)
        unsteady = [
            *["not_converged"] * (precompile.MOST_SUFFERING - 1),
            "ok",
            *["contended"] * (precompile.MOST_SUFFERING - 1),
        ]
        assert not any(builders.judge(timed(verdict)) for verdict in unsteady)
        assert not any(builders.judge(timed("not_converged", "cpu")) for _ in range(precompile.MOST_SUFFERING))
        verdicts = [*["contradicted"] * precompile.MOST_SUFFERING, "contradicted"]
        assert [builders.judge(timed(verdict)) for verdict in verdicts].index(True) == precompile.MOST_SUFFERING - 1
        assert builders.off
        deadline = time.monotonic() + 20
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            builders.advance()
        assert not Path(f"/proc/{pid}").exists()
        assert not builders.watched
    finally:
        builders.close()
        zygote.close()


def test_the_rows_say_that_it_is_off(tmp_path, cold, monkeypatch):
    monkeypatch.setattr(precompile, "SUFFERING", ("ok", "not_converged", "contended"))
    monkeypatch.setattr(precompile, "MOST_SUFFERING", 1)
    cases = [compiled(cols) for cols in (64, 65, 66, 67)]
    events = [*Local(**(LIMITS | {"precompile": 1})).run(cases, str(tmp_path / "worker.log"))]
    rows = [event for event in events if isinstance(event, Row)]
    off = [row.metrics.get("precompile_off", False) for row in rows]
    assert off == sorted(off)
    assert (off[0], off[-1]) == (False, True)
    assert [event.text for event in events if isinstance(event, Notice)] == [precompile.OFF]


def test_who_has_nothing_left_to_compile_gives_back_what_it_holds(tmp_path, cold, eventually):
    zygote = Zygote(tmp_path / "worker.log", 60.0)
    builders = Precompiler(zygote, tmp_path / "ahead.log", [()], 1, [compiled(64)], 60.0)
    try:
        assert eventually(lambda: builders.advance() or not builders._builders)
        assert "precompile_s" in builders.told(compiled(64))
    finally:
        builders.close()
        zygote.close()
