"""``quick=true``: values of their own for the fields of each measurement; what the command line gives counts more."""

from __future__ import annotations

import json
import sys

import pytest
import yaml

from runner.cli import help
from runner.config import composer, plan
from runner.findings.lines import derive_lines
from runner.findings.names import Names
from runner.records.bad_input import BadInput
from runner.records.case import CaseRecord
from runner.records.options import CONF, option_class
from runner.records.row import Row
from runner.records.schema import build
from runner.report.case_table import styled_table

CASE = ["workload=gelu", "impl=torch"]


def cases(*words: str) -> tuple[CaseRecord, ...]:
    return plan([*CASE, *words]).cases


def benchmark(case: CaseRecord) -> dict[str, object]:
    return dict(next(one for one in case.measures if one.name == "benchmark").fields)


@pytest.fixture
def declared() -> dict[str, object]:
    return yaml.safe_load((CONF / "measure" / "benchmark.yaml").read_text())


@pytest.mark.parametrize("path", sorted((CONF / "measure").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_quick_values_of_each_measurement_are_allowed_ones(path):
    values = yaml.safe_load(path.read_text())
    name, quick = values.pop("name"), values.pop("quick", {})
    build(option_class("measure", name), values | quick, name)


def test_a_quick_case_has_the_quick_values_and_a_key_of_its_own(declared):
    (usual,), (quick,) = cases(), cases("quick=true")
    assert benchmark(quick) == benchmark(usual) | declared["quick"]
    assert (quick.settings.quick, usual.settings.quick) == (True, False)
    assert quick.key != usual.key
    assert quick.problem != usual.problem


def test_what_the_command_line_gives_counts_more_wherever_it_stands(declared):
    for words in (["measure.benchmark.samples=321", "quick=true"], ["quick=true", "measure.benchmark.samples=321"]):
        (case,) = cases(*words)
        assert benchmark(case)["samples"] == 321
        assert benchmark(case)["max_s"] == declared["quick"]["max_s"]


def test_also_if_it_is_the_usual_value_or_an_axis(declared):
    (case,) = cases("quick=true", f"measure.benchmark.samples={declared['samples']}")
    assert benchmark(case)["samples"] == declared["samples"]
    found = cases("quick=true", "measure.benchmark.samples=50,60", "default_axes=false", "-m")
    assert [benchmark(case)["samples"] for case in found] == [50, 60]


def test_a_sweep_may_hold_both():
    quick, usual = cases("quick=true,false", "default_axes=false", "-m")
    assert (quick.settings.quick, usual.settings.quick) == (True, False)
    assert benchmark(quick)["samples"] < benchmark(usual)["samples"] == benchmark(*cases())["samples"]


def test_a_heading_names_quick_and_not_what_it_changes():
    both = cases("quick=true,false", "default_axes=false", "-m")
    assert [Names(both).heading(case) for case in both] == ["gelu quick=true", "gelu quick=false"]
    more = cases("quick=true,false", "measure.benchmark.samples=50,60", "default_axes=false", "-m")
    assert Names(more).heading(more[0]) == "gelu quick=true measure.benchmark.samples=50"


def test_a_case_with_all_values_given_is_quick_all_the_same(declared):
    given = [f"measure.benchmark.{name}={json.dumps(declared[name])}" for name in declared["quick"]]
    (case,), (usual,) = cases("quick=true", *given), cases()
    assert case.measures == usual.measures
    assert case.key != usual.key


def test_quick_is_kept_in_the_record_and_absent_from_that_of_other_cases():
    (usual,), (quick,) = cases(), cases("quick=true")
    assert CaseRecord.from_record(json.loads(json.dumps(quick.to_record()))) == quick
    assert "quick" not in usual.to_record()  # so that their keys are those from before there was quick
    assert quick.flat_settings["quick"] is True


def test_a_measurement_without_quick_values_and_one_of_the_users_own(tmp_path):
    (case,) = cases("quick=true", "measure=profile")
    assert case.measures == cases("measure=profile")[0].measures
    (tmp_path / "measure").mkdir()
    text = (CONF / "measure" / "profile.yaml").read_text()
    (tmp_path / "measure" / "mine.yaml").write_text(f"{text}quick: {{active: 2, shapes: true}}\n")
    (case,) = cases("quick=true", "measure=[benchmark,mine]", "--config-dir", str(tmp_path))
    fields = next(one.fields for one in case.measures if one.name == "profile")
    assert (fields["active"], fields["shapes"]) == (2, True)


def test_an_experiment_may_ask_for_it_and_a_quick_value_may_be_given(tmp_path, declared):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nquick: true\n")
    (case,) = cases("+experiment=mine", "--config-dir", str(tmp_path), "measure.benchmark.quick.samples=55")
    assert (case.settings.quick, benchmark(case)["samples"]) == (True, 55)
    assert benchmark(case)["max_s"] == declared["quick"]["max_s"]


def test_cfg_shows_the_values_that_count(capsys, monkeypatch, declared):
    monkeypatch.setattr(sys, "argv", ["runner"])
    with pytest.raises(SystemExit, match=r"^0$"):
        plan([*CASE, "quick=true", "measure.benchmark.max_s=0.1", "--cfg", "job"])
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["quick"] is True
    assert shown["measure"]["benchmark"]["samples"] == declared["quick"]["samples"]
    assert shown["measure"]["benchmark"]["max_s"] == 0.1


@pytest.mark.parametrize("word", ["3", "yes please", "null"])
def test_another_value_is_refused(word):
    with pytest.raises(BadInput, match=r"^quick: .* is not allowed; give true or false$"):
        cases(f"quick={word}")


def test_quick_values_that_are_none_are_refused():
    with pytest.raises(BadInput, match=r"^measure\.benchmark\.quick: 3 is not allowed; give fields"):
        cases("quick=true", "measure.benchmark.quick=3")
    with pytest.raises(BadInput, match=r"^measure\.benchmark\.smaples: no such field"):
        cases("quick=true", "+measure.benchmark.quick.smaples=3")


def test_the_table_says_it():
    """Also where only some of its rows are quick; and in every format of ``show``, which has the same notes."""
    usual, quick = (
        Row(case=one, status="ok", device="cpu", metrics={"wall_us": 1.0}) for one in (*cases(), *cases("quick=true"))
    )
    for rows, said in (([usual], False), ([quick], True), ([usual, quick], True)):
        text = styled_table(derive_lines(rows, None), Names([row.case for row in rows]), 120).plain
        assert ("quick: wider intervals" in text) is said


def test_a_shell_completes_it():
    with composer([]) as (compose, _):
        assert help.complete(compose, "python -m runner quick=") == ["quick=true", "quick=false"]
        assert help.complete(compose, "python -m runner qui") == ["quick="]
        assert "measure.benchmark.samples=" in help.complete(compose, "python -m runner measure.benchmark.s")
        assert not any(".quick." in one for one in help.complete(compose, "python -m runner measure.benchmark."))
