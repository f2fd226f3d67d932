"""A ``Local`` on another machine, and how its events reach the parent."""

from __future__ import annotations

import os
import socket

import pytest

from runner.device import gpus
from runner.device.gpus import Gpu
from runner.device.used_paths import ALL, FILES
from runner.execute import CannotStart, Limits, Notice, Ready, Started
from runner.execute.local import Local
from runner.execute.shards import gpus_needed, local, problems, serve
from runner.execute.slurm_parts import Part, PartJournal, event_of
from runner.records.case import CaseRecord, Choice
from runner.records.paired_rounds import PairedRounds
from runner.records.row import Row
from runner.records.settings import Settings
from runner.store.fingerprint import Fingerprints

CASE, OTHER = (
    CaseRecord(Choice("gelu", {"cols": cols}), Choice("torch", {}), (), Settings("auto", 0)) for cols in (1, 2)
)
LIMITS = Limits(start_limit_s=1.0, build_limit_s=1.0, check_limit_s=1.0, measure_limit_s=1.0)
GPU = Gpu(1, "GPU-aa", "NVIDIA H200", 100, 7)
EVENTS = [
    Ready({"torch": "2.13"}, GPU),
    Ready({"torch": "2.13"}),
    Notice("GPU 1 is busy"),
    Started(CASE),
    Row(case=CASE, status="ok", device="NVIDIA H200", metrics={"gpu_us": 1.5}, fingerprint={"python": "3.11"}),
    PairedRounds({CASE.key: [1.0, 2.0]}, {CASE.key: "graph_timestamps"}),
    PairedRounds(reason="not compared"),
]


def test_an_event_is_read_as_it_was_written_unless_it_is_of_another_case(tmp_path):
    with PartJournal(tmp_path) as mine:
        for event in EVENTS:
            mine.write(event)
    session, *records = Part(tmp_path).new_records()
    assert [event_of(record, {CASE.key: CASE}) for record in records] == EVENTS
    assert event_of(session, {CASE.key: CASE}) is None
    of_others = [event_of(record, {OTHER.key: OTHER}) for record in records]
    assert of_others == [*EVENTS[:3], None, None, None, EVENTS[6]]


def test_events_get_the_host_and_rows_their_fingerprint(monkeypatch):
    told = [
        Ready({"torch": "2.13"}, GPU),
        Notice("it is busy"),
        Started(CASE),
        Row(case=CASE, status="ok", fingerprint={FILES: ALL}),
        PairedRounds(),
    ]
    monkeypatch.setattr(gpus, "query_gpus", lambda: ([GPU], ""))
    monkeypatch.setattr(Local, "run", lambda self, cases, log: iter(told))
    ready, notice, started, row, rounds = serve(local(LIMITS, 1), [CASE], "worker.log", {"job": "7"})
    host = socket.gethostname()
    assert ready == Ready({"hostname": host, "job": "7", "torch": "2.13"}, GPU)
    assert notice.text == f"{host}: it is busy"
    assert row.fingerprint == Fingerprints().of(CASE)
    assert [started, rounds] == [told[2], told[4]]


def test_a_machine_without_the_gpus_that_are_asked_for_cannot_start(monkeypatch):
    monkeypatch.setattr(gpus, "query_gpus", lambda: ([], "no NVIDIA driver answers here"))
    with pytest.raises(CannotStart, match="no NVIDIA driver answers here"):
        next(serve(local(LIMITS, 1), [CASE], "worker.log", {}))


def test_on_the_cpu_no_gpu_is_visible(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(Local, "run", lambda self, cases, log: iter([Notice(os.environ["CUDA_VISIBLE_DEVICES"])]))
    (notice,) = serve(local(LIMITS, 0), [CASE], "worker.log", {})
    assert notice.text.endswith(": ")


def test_replicas_of_a_problem_stay_together():
    again = CaseRecord(CASE.workload, CASE.impl, (), Settings("auto", 0), replica=1)
    assert problems([CASE, OTHER, again]) == [[CASE, again], [OTHER]]


@pytest.mark.parametrize(
    ("ranks", "device", "least", "needed"),
    [((1,), "auto", 1, 1), ((2, 4), "auto", 1, 4), ((2,), "auto", 8, 8), ((2,), "auto", 0, 0), ((2,), "cpu", 1, 0)],
)
def test_a_shard_has_a_gpu_for_each_rank_of_its_cases(ranks, device, least, needed):
    cases = [
        CaseRecord(Choice("all_reduce", {"ranks": count}), Choice("torch", {}), (), Settings(device, 0))
        for count in ranks
    ]
    assert gpus_needed(cases, least) == needed
