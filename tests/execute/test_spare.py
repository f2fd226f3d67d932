"""The spare worker: on a GPU a start takes seconds, so the next worker starts before it is needed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from runner.device import gpus
from runner.device.gpus import Gpu
from runner.execute import Ready, device_queue
from runner.records.row import Row

USER = """
import json, os, time, torch

def begun():
    ticks = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19])
    return ticks / os.sysconf("SC_CLK_TCK")

noted = set()  # a worker imports this file once

def told(x, name="told"):
    if (name, x.shape[1]) not in noted:
        noted.add((name, x.shape[1]))
        with open(TOLD, "a") as file:
            file.write(json.dumps([x.shape[1], os.getpid(), begun(), time.clock_gettime(time.CLOCK_BOOTTIME)]) + "\\n")
    return torch.nn.functional.gelu(x, approximate="tanh")

def keeps(x):  # like a module that keeps its tensors on a GPU
    import runner.worker
    runner.worker.Worker._left_bytes = lambda self: 2**30
    return told(x, "keeps")

def too_much(x):
    told(x, "too_much")
    raise MemoryError

def dies(x):
    told(x, "dies")
    os._exit(3)
"""


@pytest.fixture
def launch(launch_user, tmp_path, monkeypatch):
    """Run a grid on a fake GPU; its rows, the number of workers that were ready, and what each function noted."""
    monkeypatch.setattr(gpus, "visible", lambda: [Gpu(0, "GPU-of-nobody", "none", 0, 0)])
    monkeypatch.setenv("KERNEL_RUNNER_LOCK_DIR", str(tmp_path))
    told = tmp_path / "told"

    def go(*cases, **more):
        events = launch_user(f"TOLD = {str(told)!r}\n{USER}", *cases, device="auto", **more)
        calls = [json.loads(line) for line in told.read_text().splitlines()]
        return [event for event in events if isinstance(event, Row)], sum(isinstance(e, Ready) for e in events), calls

    return go


@pytest.fixture
def workers(monkeypatch):
    """The workers that were started, each with whether it was to calibrate its instruments."""
    started, real = [], device_queue.WorkerProcess

    def fork(*given, like, **more):
        started.append((real(*given, like=like, **more), like is not None))
        return started[-1][0]

    monkeypatch.setattr(device_queue, "WorkerProcess", fork)
    return started


def test_a_worker_that_dies_is_replaced_by_the_spare_one(launch):
    rows, ready, calls = launch(("told", 64), ("told", 56), ("dies", 48), ("told", 32))
    assert [row.status for row in rows] == ["ok", "ok", "crashed", "ok"]
    assert ready == 3
    (_, first, *_), (_, same, *_), (_, dead, _, died), (_, second, begun, _), (_, third, *_) = calls
    assert first == same == dead
    assert len({first, second, third}) == 3
    assert begun <= died + 0.02  # the resolution of both is 0.01 s


def test_a_grid_of_one_case_starts_no_second_worker(launch, workers):
    launch(("told", 64))
    assert len(workers) == 1


def test_only_the_first_worker_calibrates(launch, workers):
    launch(("told", 64), ("told", 56), ("dies", 48), ("told", 32))
    (_, first), *others = workers
    assert first
    assert not any(asked for _, asked in others)


@pytest.mark.parametrize(("gib", "count"), [(80, 2), (8, 1), (0, 2)])
def test_a_gpu_with_little_memory_has_no_spare(launch, workers, monkeypatch, gib, count):
    monkeypatch.setattr(gpus, "visible", lambda: [Gpu(0, "GPU-of-nobody", "none", gib * 2**30, 0)])
    launch(("told", 64), ("told", 32))
    assert len(workers) == count


def test_a_dead_spare_costs_no_case(launch, workers, gone):
    def on_row():
        if len(workers) == 2:
            spare, _ = workers[1]
            os.kill(spare.pid, signal.SIGKILL)
            assert gone(spare.pid)
            workers.append(None)

    rows, _, _ = launch(("told", 64), ("told", 56), ("dies", 48), ("told", 32), on_row=on_row)
    assert [row.status for row in rows] == ["ok", "ok", "crashed", "ok"]
    assert len(workers) > 3


def test_a_worker_that_keeps_memory_gets_no_further_problem(launch):
    rows, ready, calls = launch(("told", 64), ("keeps", 48), ("told", 48), ("told", 32))
    assert [(row.status, row.metrics["attempt"]) for row in rows] == [("ok", 1)] * 4
    assert ready == 2
    assert [pid == calls[0][1] for _, pid, *_ in calls] == [True, True, True, False]


def test_an_oom_is_tried_in_a_fresh_process_only_if_the_old_one_kept_memory(launch):
    rows, _, _ = launch(("told", 64), ("too_much", 48))
    assert [(row.status, row.metrics["attempt"]) for row in rows] == [("ok", 1), ("oom", 1)]
    rows, _, _ = launch(("told", 64), ("keeps", 48), ("too_much", 48))
    assert [(row.status, row.metrics["attempt"]) for row in rows] == [("ok", 1), ("ok", 1), ("oom", 2)]


def test_no_worker_is_left_when_the_grid_ends(launch):
    _, _, calls = launch(("told", 64), ("dies", 48), ("told", 32))
    assert not [pid for _, pid, *_ in calls if Path(f"/proc/{pid}").exists()]
