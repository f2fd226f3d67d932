"""What a ``Local`` on another machine says, and how it travels."""

from __future__ import annotations

import json
import os
import socket

import pytest

from runner.device import gpus
from runner.device.gpus import Gpu
from runner.execute import CannotStart, Notice, Ready, Started, shards
from runner.execute.local import Local
from runner.execute.shards import from_record, problems, serve, to_record
from runner.experiment.case import CaseRecord, Choice
from runner.experiment.results import Comparison, Row
from runner.store.fingerprint import Fingerprints

CASE, OTHER = (CaseRecord(Choice("gelu", {"cols": cols}), Choice("torch", {}), (), "auto", 0) for cols in (1, 2))
GPU = Gpu(1, "GPU-aa", "NVIDIA H200", 100, 7)
EVENTS = [
    Ready({"torch": "2.13"}, GPU),
    Ready({"torch": "2.13"}),
    Notice("GPU 1 is busy"),
    Started(CASE),
    Row(case=CASE, status="ok", device="NVIDIA H200", metrics={"gpu_us": 1.5}, fingerprint={"python": "3.11"}),
    Comparison({CASE.key: [1.0, 2.0]}, {CASE.key: "graph_timestamps"}),
    Comparison(reason="not compared"),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_comes_back_as_it_went(event):
    assert from_record(json.loads(json.dumps(to_record(event))), {CASE.key: CASE}) == event


@pytest.mark.parametrize("event", EVENTS[3:6], ids=lambda event: type(event).__name__)
def test_what_is_of_other_cases_is_left_out(event):
    assert from_record(to_record(event), {OTHER.key: OTHER}) is None


def test_a_machine_says_who_it_is_and_what_made_its_rows(monkeypatch):
    told = [
        Ready({"torch": "2.13"}, GPU),
        Notice("it is busy"),
        Started(CASE),
        Row(case=CASE, status="ok"),
        Comparison(),
    ]
    local = {"gpus": "all", "precompile": None} | dict.fromkeys(shards.Limits.__dataclass_fields__, 1.0)
    monkeypatch.setattr(gpus, "look", lambda: ([GPU], ""))
    monkeypatch.setattr(Local, "run", lambda self, cases, log: iter(told))
    ready, notice, started, row, rounds = serve(local, [CASE], "worker.log", 1, {"job": "7"})
    host = socket.gethostname()
    assert ready == Ready({"hostname": host, "job": "7", "torch": "2.13"}, GPU)
    assert notice.text == f"{host}: it is busy"
    assert row.fingerprint == Fingerprints().of(CASE)
    assert [started, rounds] == [told[2], told[4]]


def test_gpus_that_are_asked_for_and_are_not_there(monkeypatch):
    monkeypatch.setattr(gpus, "look", lambda: ([], "no NVIDIA driver answers here"))
    with pytest.raises(CannotStart, match="no NVIDIA driver answers here"):
        next(serve({}, [CASE], "worker.log", 1, {}))


def test_without_gpus_none_is_seen(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    local = {"gpus": 0, "precompile": None} | dict.fromkeys(shards.Limits.__dataclass_fields__, 1.0)
    monkeypatch.setattr(Local, "run", lambda self, cases, log: iter([Notice(os.environ["CUDA_VISIBLE_DEVICES"])]))
    (notice,) = serve(local, [CASE], "worker.log", 0, {})
    assert notice.text.endswith(": ")


def test_replicas_of_a_point_stay_together():
    again = CaseRecord(CASE.workload, CASE.impl, (), "auto", 0, replica=1)
    assert problems([CASE, OTHER, again]) == [[CASE, again], [OTHER]]
