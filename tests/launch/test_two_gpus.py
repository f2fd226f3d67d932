"""Two GPUs under one launcher: who does what, and what becomes of it when one of them goes.

They are stand-ins: only their names are there, and the cases run on the CPU, each in the process of its GPU.
"""

from __future__ import annotations

import uuid

import pytest

from runner.launch import CannotStart, Notice, Ready, gpus, slot
from runner.launch.gpus import Gpu
from runner.launch.worker_process import Gone
from runner.rounds import Rounds
from runner.row import Row

NAMES = [f"GPU-{uuid.uuid4()}" for _ in range(2)]  # anew each time: their locks are files that others may look at
USER = f"""
import os, torch

def right(x): return torch.nn.functional.gelu(x, approximate="tanh")
def other(x): return right(x)
def dies_on_1(x):
    if os.environ["CUDA_VISIBLE_DEVICES"] == {NAMES[1]!r}: os.abort()
    return right(x)
"""
SIZES = (64, 32, 16, 8)


@pytest.fixture
def launch(launch_user, monkeypatch):
    """Events of a grid of the functions above on both."""
    found = [Gpu(index, name, "a stand-in", 80 * 2**30, 0) for index, name in enumerate(NAMES)]
    monkeypatch.setattr(gpus, "visible", lambda limit_s=20.0: found)
    return lambda *cases: launch_user(USER, *cases, device="auto", gpus="all")


@pytest.fixture
def workers(monkeypatch):
    """How many workers a GPU gives, by its index; as many as are wanted where nothing is said."""
    left: dict[int, int] = {}
    real = slot.WorkerProcess

    def fork(source, log_path, gpu, *, measures):
        left[gpu.index] = left.get(gpu.index, 1000) - 1
        if left[gpu.index] < 0:
            raise Gone("it fell off the bus")
        return real(source, log_path, gpu, measures=measures)

    monkeypatch.setattr(slot, "WorkerProcess", fork)
    return left


def of(kind, events):
    return [event for event in events if isinstance(event, kind)]


def places(rows):
    """(index, UUID) of each row's GPU, by its size."""
    found: dict[int, set] = {}
    for row in rows:
        place = row.metrics["gpu_index"], row.metrics["gpu_uuid"]
        found.setdefault(row.case.workload.fields["cols"], set()).add(place)
    return found


def test_both_work_and_the_cases_of_one_size_stay_together(launch):
    events = launch(*((name, cols) for cols in SIZES for name in ("right", "other")))
    rows = of(Row, events)
    assert [row.status for row in rows] == ["ok"] * 8, [row.reason for row in rows]
    assert {ready.gpu.uuid for ready in of(Ready, events)} == set(NAMES)
    assert all(len(some) == 1 for some in places(rows).values())
    assert set.union(*places(rows).values()) == {(0, NAMES[0]), (1, NAMES[1])}
    assert sum(bool(rounds.batches_us) for rounds in of(Rounds, events)) == len(SIZES)


def test_what_gives_no_worker_is_out_of_service_and_the_other_does_its_cases(launch, workers):
    workers[1] = 0
    events = launch(*(("right", cols) for cols in SIZES))
    assert [row.status for row in of(Row, events)] == ["ok"] * 4
    assert set.union(*places(of(Row, events)).values()) == {(0, NAMES[0])}
    (notice,) = of(Notice, events)
    assert notice.text == f"GPU 1 ({NAMES[1]}) is out of service, others do its work: it fell off the bus"


def test_what_goes_amid_a_point_leaves_the_rest_of_it_to_the_other(launch, workers):
    workers[1] = 1
    events = launch(*((name, cols) for cols in SIZES[:2] for name in ("dies_on_1", "right", "other")))
    rows = of(Row, events)
    assert len(rows) == 6
    (crashed,) = [row for row in rows if row.status != "ok"]
    assert (crashed.status, crashed.metrics["gpu_index"]) == ("crashed", 1)
    assert str(crashed.case.impl.fields["path"]).endswith(":dies_on_1")
    assert {row.metrics["gpu_index"] for row in rows if row is not crashed} == {0}
    assert len(of(Notice, events)) == 1


def test_where_none_is_left_it_is_said(launch, workers):
    workers |= {0: 0, 1: 0}
    with pytest.raises(CannotStart, match="no worker could be started: it fell off the bus"):
        launch(*(("right", cols) for cols in SIZES))
