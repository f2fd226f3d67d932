"""Processes that compile coming cases, and are stopped while a case is measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.device import processes
from runner.device.cache import cache_folder
from runner.device.gpus import Gpu
from runner.execute import Started, precompile
from runner.execute.local import Local
from runner.execute.precompile import Precompiler
from runner.execute.spawn import Zygote
from runner.records.case import CaseRecord, Choice
from runner.records.row import Row
from runner.records.settings import Settings

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
BENCHMARK |= {"race": False, "target_pct": 0.5, "target_cpu_pct": 2.0}
LIMITS = {"gpus": 0, "start_limit_s": 120, "build_limit_s": 60, "check_limit_s": 60, "measure_limit_s": 60}


def compiled(cols, **fields):
    values = {"of": "naive", "mode": "default", "dynamic": False, "fullgraph": False, "cold": False} | fields
    gelu = {"rows": 64, "cols": cols, "form": "tanh", "pass": "fwd"}
    gelu |= {"dtype": "float32", "tf32": False, "data": "normal", "layout": "contiguous"}
    return CaseRecord(
        Choice("gelu", gelu), Choice("compiled", values), (Choice("benchmark", BENCHMARK),), Settings("cpu", 0)
    )


@pytest.fixture(scope="module")
def inductor(tmp_path_factory):
    """An empty cache of Inductor, but for the headers of every program, of which compiling takes seconds."""
    headers = cache_folder("inductor") / "precompiled_headers"
    headers.mkdir(parents=True, exist_ok=True)
    folder = tmp_path_factory.mktemp("inductor")
    (folder / headers.name).symlink_to(headers)
    return folder


@pytest.fixture
def cold(inductor, monkeypatch):
    """Nothing of ``compiled`` is in the cache: give each test other columns."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(inductor))


def test_coming_cases_are_compiled_into_the_cache_that_their_worker_finds(tmp_path, cold):
    cases = [compiled(cols) for cols in (64, 65, 66, 67)]
    rows = [
        e for e in Local(**(LIMITS | {"precompile": 1})).run(cases, str(tmp_path / "worker.log")) if isinstance(e, Row)
    ]
    assert [row.status for row in rows] == ["ok"] * 4
    ahead = [row for row in rows if "precompile_s" in row.metrics]
    assert ahead
    assert all(row.metrics["compile_cached"] for row in ahead)


def test_cases_that_no_cache_keeps_are_not_compiled():
    torch = CaseRecord(compiled(64).workload, Choice("torch", {}), (), Settings("cpu", 0))
    triton = CaseRecord(compiled(64).workload, Choice("triton", {}), (), Settings("cpu", 0))
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
def test_the_number_of_processes_depends_on_cores_memory_and_cases(asked, cores, cases, gib, count):
    gpus = [Gpu(index, f"GPU-{index}", "", size * 2**30, 0) for index, size in enumerate(gib)]
    assert precompile.process_count(asked, cores, cases, gpus) == count


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture
def zygote(tmp_path):
    found = Zygote()
    found.begin(tmp_path / "worker.log", [], [], 60.0)
    yield found
    found.close()


def test_processes_are_stopped_while_their_gpu_measures(tmp_path, cold, eventually, zygote):
    precompiler = Precompiler(zygote, tmp_path / "precompile.log", [()], 1, [compiled(72)])
    precompiler.advance()
    (pid,) = processes.children(zygote.process.pid)
    precompiler.pause_for([()])
    assert eventually(lambda: state(pid) == "T")
    precompiler.pause_for([])
    assert eventually(lambda: state(pid) in "RS")
    zygote.close()
    assert not Path(f"/proc/{pid}").exists()


def test_a_process_with_no_case_left_frees_its_memory(tmp_path, cold, eventually, zygote):
    precompiler = Precompiler(zygote, tmp_path / "precompile.log", [()], 1, [compiled(80)])
    precompiler.advance()
    (pid,) = processes.children(zygote.process.pid)
    assert eventually(lambda: precompiler.advance() or not precompiler.watched)
    assert eventually(lambda: state(pid) == "Z"), "its memory is free"
    row = precompiler.observe(Row(case=compiled(80), status="ok"))
    assert row.metrics["precompile_s"] > 0


def test_processes_leave_the_gpu_to_a_case_that_found_too_little_memory(tmp_path, cold, eventually, zygote):
    precompiler = Precompiler(zygote, tmp_path / "precompile.log", [()], 1, [compiled(88)])
    precompiler.advance()
    (pid,) = processes.children(zygote.process.pid)
    assert precompiler.make_room(())
    assert eventually(lambda: state(pid) == "Z"), "its memory is free"
    precompiler.advance()
    assert not precompiler.watched, "none begins before the case has its row"
    assert not precompiler.make_room(()), "the case is not run a third time"
    precompiler.observe(Row(case=compiled(64), status="ok"))
    precompiler.advance()
    assert eventually(lambda: precompiler.advance() or not precompiler.watched)
    assert precompiler.observe(Row(case=compiled(88), status="ok")).metrics["precompile_s"] > 0


def test_a_case_that_a_worker_has_is_not_compiled(tmp_path, cold, zygote):
    precompiler = Precompiler(zygote, tmp_path / "precompile.log", [()], 1, [compiled(64)])
    precompiler.observe(Started(compiled(64)))
    precompiler.advance()
    assert not precompiler.watched
