"""Two GPUs under one launcher: how cases are distributed, also when one GPU fails.

The GPUs are fake: the cases run on the CPU, in the worker of their GPU.
"""

from __future__ import annotations

import time
import uuid
from datetime import datetime

import pytest

from runner.device import gpus
from runner.device.gpus import Gpu
from runner.execute import CannotStart, Notice, Ready, device_queue, local
from runner.execute.spawn import Gone
from runner.records.case import CaseRecord
from runner.records.paired_rounds import PairedRounds
from runner.records.row import Row

NAMES = [f"GPU-{uuid.uuid4()}" for _ in range(2)]  # new ones each time, since the files of their locks stay
USER = f"""
import os, time, torch

def right(x): return torch.nn.functional.gelu(x, approximate="tanh")
def other(x): return right(x)
def dies_on_1(x):
    if os.environ["CUDA_VISIBLE_DEVICES"] == {NAMES[1]!r}: os.abort()
    return right(x)
def dies_late_on_1(x):
    if os.environ["CUDA_VISIBLE_DEVICES"] == {NAMES[1]!r}: time.sleep(4)
    return dies_on_1(x)
"""
SIZES = (64, 32, 16, 8)


@pytest.fixture
def launch(launch_user, monkeypatch):
    """Run a grid of the functions above on both; its events."""
    found = [Gpu(index, name, "a stand-in", 80 * 2**30, 0) for index, name in enumerate(NAMES)]
    monkeypatch.setattr(gpus, "visible", lambda limit_s=20.0: found)
    return lambda *cases, **more: launch_user(USER, *cases, device="auto", gpus="all", **more)


@pytest.fixture
def workers(monkeypatch):
    """How many workers can be started on a GPU, by its index; no limit without an entry."""
    left: dict[int, int] = {}
    real = device_queue.WorkerProcess

    def fork(source, log_path, gpus, **more):
        left[gpus[0].index] = left.get(gpus[0].index, 1000) - 1
        if left[gpus[0].index] < 0:
            raise Gone("it fell off the bus")
        return real(source, log_path, gpus, **more)

    monkeypatch.setattr(device_queue, "WorkerProcess", fork)
    return left


def of(kind, events):
    return [event for event in events if isinstance(event, kind)]


def places(rows):
    """Return (index, UUID) of the rows' GPUs, by size."""
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
    assert sum(bool(rounds.batches_us) for rounds in of(PairedRounds, events)) == len(SIZES)


def test_a_gpu_without_workers_is_out_of_service_and_the_other_runs_its_cases(launch, workers):
    workers[1] = 0
    events = launch(*(("right", cols) for cols in SIZES))
    assert [row.status for row in of(Row, events)] == ["ok"] * 4
    assert set.union(*places(of(Row, events)).values()) == {(0, NAMES[0])}
    (notice,) = of(Notice, events)
    assert notice.text == f"GPU 1 ({NAMES[1]}) is out of service, others do its work: it fell off the bus"


def test_a_gpu_that_fails_amid_a_problem_leaves_its_rest_to_the_other(launch, workers):
    workers[1] = 1
    events = launch(*((name, cols) for cols in SIZES[:2] for name in ("dies_on_1", "right", "other")))
    rows = of(Row, events)
    assert len(rows) == 6
    (crashed,) = [row for row in rows if row.status != "ok"]
    assert (crashed.status, crashed.metrics["gpu_index"]) == ("crashed", 1)
    assert str(crashed.case.impl.fields["path"]).endswith(":dies_on_1")
    assert {row.metrics["gpu_index"] for row in rows if row is not crashed} == {0}
    assert len(of(Notice, events)) == 1


def test_a_gpu_that_fails_when_the_other_is_done_leaves_its_rest_to_it(launch, workers):
    workers[1] = 1
    rows = of(Row, launch(*((name, cols) for cols in SIZES[:2] for name in ("dies_late_on_1", "right"))))
    assert sorted(row.status for row in rows) == ["crashed", "ok", "ok", "ok"]
    assert {row.metrics["gpu_index"] for row in rows if row.status == "ok"} == {0}


def test_a_worker_that_dies_slowly_delays_no_other_gpu(launch, monkeypatch):
    has_ended, others = device_queue.WorkerProcess.has_ended, []
    longest = time.monotonic() + 60

    def slowly(self):
        return has_ended(self) and (len(others) == 3 or time.monotonic() > longest)

    monkeypatch.setattr(device_queue.WorkerProcess, "has_ended", slowly)
    rows = of(Row, launch(*(("dies_on_1", cols) for cols in SIZES), on_row=lambda: others.append(1)))
    assert [row.metrics["gpu_index"] for row in rows] == [0, 0, 0, 1]
    assert rows[-1].status == "crashed"


def test_cases_on_the_cpu_run_one_at_a_time_and_on_no_gpu(launch):
    rows = of(Row, launch(*(("right", cols, 0, device) for device in ("cpu", "auto") for cols in SIZES[:2])))
    spans = [(row.metrics["started_at"], row.metrics["wall_s"]) for row in rows if row.case.settings.device == "cpu"]
    (first, took_s), (second, _) = [(datetime.fromisoformat(at).timestamp(), wall_s) for at, wall_s in spans]
    assert second - first > took_s - 0.002
    assert [row.metrics.get("gpu_index") for row in rows[:2]] == [None, None]
    assert {row.metrics["gpu_index"] for row in rows[2:]} == {0, 1}


def test_replicas_of_one_problem_need_one_gpu(launch, monkeypatch):
    locked, acquire_all = [], local.acquire_all
    monkeypatch.setattr(local, "acquire_all", lambda gpus, say: locked.extend(gpus) or acquire_all(gpus, say))
    launch(*(("right", SIZES[0], replica) for replica in range(2)))
    assert [gpu.index for gpu in locked] == [0]


@pytest.mark.parametrize("given", ["all", 0])
def test_a_case_of_two_ranks_locks_and_sees_both_by_default_too(launch_user, launch, monkeypatch, given):
    source = "import os\ndef sees(x):\n    raise ValueError(os.environ['CUDA_VISIBLE_DEVICES'])"
    monkeypatch.setattr(CaseRecord, "ranks", property(lambda case: 1 + case.workload.fields["cols"] // 64))
    pair, trio = of(Row, launch_user(source, ("sees", 64), ("sees", 128), device="auto", gpus=given))
    assert ",".join(NAMES) in pair.reason
    assert (pair.metrics["gpu_index"], pair.metrics["gpu_uuid"]) == (0, ",".join(NAMES))
    assert (trio.status, trio.reason) == (
        "unsupported",
        f"needs 3 GPUs, one for each rank; launcher.gpus={given} provides 2",
    )


def test_if_no_gpu_is_left_the_error_says_why(launch, workers):
    workers |= {0: 0, 1: 0}
    with pytest.raises(CannotStart, match="no worker could be started: it fell off the bus"):
        launch(*(("right", cols) for cols in SIZES))
