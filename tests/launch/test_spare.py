"""On a GPU a worker takes seconds to be ready, so another one is, before it is needed."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from runner.launch import Ready, gpus
from runner.launch.gpus import Gpu
from runner.launch.slot import Slot
from runner.row import Row

USER = """
import json, os, time, torch

def begun():
    ticks = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19])
    return ticks / os.sysconf("SC_CLK_TCK")

first = True

def told(x):
    global first
    if first:
        first = False
        with open(TOLD, "a") as file:
            file.write(json.dumps([x.shape[1], os.getpid(), begun(), time.clock_gettime(time.CLOCK_BOOTTIME)]) + "\\n")
    return torch.nn.functional.gelu(x, approximate="tanh")

def dies(x):
    told(x)
    os._exit(3)
"""


@pytest.fixture
def launch(launch_user, tmp_path, monkeypatch):
    """Rows by size and the times a worker was ready, of cases (function, cols, replica) on a GPU that is none."""
    monkeypatch.setattr(gpus, "visible", lambda: [Gpu(0, "GPU-of-nobody", "none", 0, 0)])
    monkeypatch.setenv("KERNEL_RUNNER_LOCK_DIR", str(tmp_path))
    told = tmp_path / "told"

    def go(*cases):
        events = launch_user(f"TOLD = {str(told)!r}\n{USER}", *cases, device="auto")
        calls = [json.loads(line) for line in told.read_text().splitlines()]
        return [event for event in events if isinstance(event, Row)], sum(isinstance(e, Ready) for e in events), calls

    return go


def test_a_worker_that_dies_is_replaced_by_one_that_was_there_before(launch):
    rows, ready, calls = launch(("told", 64), ("dies", 48), ("told", 32))
    assert [row.status for row in rows] == ["ok", "crashed", "ok"]
    assert ready == 3
    (_, first, *_), (_, same, _, died), (_, second, begun, _), (_, third, _, _) = calls
    assert first == same
    assert len({first, second, third}) == 3
    assert begun <= died + 0.02  # both are known to 0.01 s


def test_a_grid_of_one_case_starts_no_second_worker(launch, monkeypatch):
    forks, fork = [], Slot._fork
    monkeypatch.setattr(Slot, "_fork", lambda self: forks.append(1) or fork(self))
    launch(("told", 64))
    assert len(forks) == 1


def test_a_spare_that_is_dead_is_not_taken(launch, monkeypatch):
    take = Slot._take_spare

    def killed(self):
        if self._spare:
            os.kill(self._spare.pid, signal.SIGKILL)
            time.sleep(0.05)
        return take(self)

    monkeypatch.setattr(Slot, "_take_spare", killed)
    rows, _, _ = launch(("told", 64), ("dies", 48), ("told", 32))
    assert [row.status for row in rows] == ["ok", "crashed", "ok"]


def test_none_is_left_when_the_grid_ends(launch):
    _, _, calls = launch(("told", 64), ("dies", 48), ("told", 32))
    assert not [pid for _, pid, *_ in calls if Path(f"/proc/{pid}").exists()]
