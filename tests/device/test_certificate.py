"""A certificate is found again under the same facts, and under no others."""

from __future__ import annotations

import json
from datetime import datetime

import pytest

from runner import __version__
from runner.device import identity

FACTS = {"uuid": "4f1c-aa", "gpu": "NVIDIA H200", "driver": "580.1", "torch": "2.13.0"}
FINDINGS = [
    {"name": "spin of 5 us", "found": "5.02 us", "bar": "within 0.3 us", "passed": True},
    {"name": "A/A", "found": "3 of 20 called different", "bar": "at most 1", "passed": False},
]


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_the_record_says_what_was_found_on_what_when_and_by_which_version():
    record = json.loads(identity.certify(FACTS, "cuda", FINDINGS).read_text())
    taken = datetime.fromisoformat(record.pop("taken"))
    assert taken.tzinfo is not None
    assert abs((datetime.now(taken.tzinfo) - taken).total_seconds()) < 60
    assert record == {
        "identity": FACTS,
        "runner_version": __version__,
        "device": "cuda",
        "findings": FINDINGS,
        "passed": 1,
        "of": 2,
    }


def test_its_summary_names_what_failed():
    assert identity.certificate_summary(FACTS) is None
    identity.certify(FACTS, "cuda", FINDINGS)
    summary = identity.certificate_summary(FACTS)
    assert summary.keys() == {"taken", "passed", "of", "failed"}
    assert (summary["passed"], summary["of"], summary["failed"]) == (1, 2, ["A/A"])


def test_the_last_one_counts():
    identity.certify(FACTS, "cuda", FINDINGS)
    identity.certify(FACTS, "cuda", FINDINGS[:1])
    assert identity.certificate_summary(FACTS)["failed"] == []


@pytest.mark.parametrize("name", FACTS)
def test_another_driver_gpu_or_library_has_none(name):
    identity.certify(FACTS, "cuda", FINDINGS)
    assert identity.certificate_summary(FACTS | {name: "other"}) is None


def test_another_version_of_the_runner_has_none(monkeypatch):
    identity.certify(FACTS, "cuda", FINDINGS)
    monkeypatch.setattr(identity, "__version__", "0.0.1")
    assert identity.certificate_summary(FACTS) is None


def test_a_disk_that_will_not_have_it_does_no_harm(home):
    (home / "kernel-runner").write_text("a file where the folder should be")
    assert identity.certify(FACTS, "cuda", FINDINGS) is None
    assert identity.certificate_summary(FACTS) is None


def test_a_cpu_is_known_by_its_model_and_what_runs_on_it(monkeypatch):
    facts = identity.cpu_identity()
    assert facts["uuid"].startswith("cpu-")
    assert facts["cores"].isdigit()
    assert all(isinstance(value, str) for value in facts.values())
    assert identity.cpu_identity() == facts
    monkeypatch.setattr(identity, "cpu_model", lambda: "Another CPU")
    assert identity.cpu_identity()["uuid"] != facts["uuid"]
