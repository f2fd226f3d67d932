"""What becomes of a row whose measurements cannot observe, fail, or keep files."""

from __future__ import annotations

import pytest

from runner.measure import CannotMeasure
from runner.records.case import CaseRecord, Choice
from runner.records.row import Row
from runner.records.settings import Settings
from runner.worker import Worker
from runner.worker.problem import ProblemState

GELU = {
    "rows": 8,
    "cols": 8,
    "form": "tanh",
    "pass": "fwd",
    "dtype": "float32",
    "tf32": False,
    "data": "normal",
    "layout": "contiguous",
}


class Times:
    def measure(self, call, context):
        return {"wall_us": 1.0}


class NoTool:
    def measure(self, call, context):
        raise CannotMeasure("there is no tool; install one")


class Fails:
    def measure(self, call, context):
        raise RuntimeError("what it did not expect\nand more")


class Keeps:
    def measure(self, call, context):
        (context.folder / "of.csv").write_text("a,b\n1,2\n")
        assert context.case.workload.name == "gelu"
        return {"config": f"beside {context.figures['wall_us']} us on {context.device}"}


@pytest.fixture
def row(monkeypatch, tmp_path):
    def observed(*measures, files=tmp_path):
        monkeypatch.setattr(ProblemState, "measures", [measure() for measure in measures])
        chosen = tuple(Choice(measure.__name__.lower(), {}) for measure in measures)
        return Worker(files=files).run(
            CaseRecord(Choice("gelu", GELU), Choice("torch", {}), chosen, Settings("cpu", 0))
        )[0]

    return observed


@pytest.mark.parametrize("order", [(Times, NoTool), (NoTool, Times)])
def test_a_missing_tool_costs_its_own_figures_only(row, order):
    found = row(*order)
    assert (found.status, found.reason, found.metrics["wall_us"]) == ("ok", "", 1.0)
    assert found.metrics["not_measured"] == "notool: there is no tool; install one"


def test_a_case_of_which_nothing_could_be_observed_is_unsupported(row):
    found = row(NoTool)
    assert found.status == "unsupported"
    assert "there is no tool; install one" in found.reason


def test_an_error_after_a_time_leaves_the_time(row):
    found = row(Times, Fails)
    assert (found.status, found.metrics["wall_us"]) == ("ok", 1.0)
    assert found.metrics["not_measured"] == "fails: RuntimeError: what it did not expect"
    assert row(Fails, Times).status == "error"


def test_files_are_named_and_lie_in_a_folder_of_the_case(row, tmp_path):
    found = row(Times, Keeps)
    (file,) = found.files
    assert file == str(tmp_path / found.case.key / "keeps" / "of.csv")
    assert found.metrics["config"] == "beside 1.0 us on cpu"
    assert Row.from_record(found.to_record()) == found


@pytest.mark.parametrize("where", ["nowhere", "a file"])
def test_without_a_folder_what_keeps_files_says_so(row, tmp_path, where):
    (tmp_path / "a file").write_text("")
    found = row(Times, Keeps, files=None if where == "nowhere" else tmp_path / "a file")
    assert found.status == "ok"
    assert found.metrics["not_measured"].startswith("keeps: ")
    assert found.files == ()


def test_what_the_phases_took_is_told(row):
    metrics = row(Times).metrics
    parts = [metrics[name] for name in ("inputs_s", "build_s", "check_s", "measure_s")]
    assert all(0 <= part <= metrics["wall_s"] for part in parts)
    assert metrics["check_s"] > 0
