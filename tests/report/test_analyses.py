"""The conclusion of an experiment: analyses of rows, where they are printed, and what mistakes are refused."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import pytest

from runner.cli import report, show
from runner.experiment.case import Choice, Plan
from runner.experiment.schema import BadInput
from runner.report import conclusion, past
from runner.report.derive import Run
from runner.store import journal, run_folder

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def answer(make):
    """``answer(rows, "growth", over=...)``: what that analysis says of the rows."""

    def asked(rows, name, **fields):
        cases = [row.case for row in rows]
        run = Run(Path(), rows, [], None, (), [], 0, cases=cases, conclusion=[Choice(name, fields)])
        return conclusion.answers(run)

    return asked


@pytest.fixture
def sizes(make):
    """Rows of matmul whose time is flat at first and then grows with the third power."""

    def rows(**more):
        found = []
        for size, us in {64: 10.0, 128: 10.0, 256: 12.0, 512: 96.0, 1024: 768.0, 2048: 6144.0}.items():
            one = make.case("matmul", "torch", {"size": size, "m": size, "dtype": "float32"})
            found.append(make.timed(one, us, threads=1, **more))
        return found

    return rows


def test_growth_finds_where_a_time_is_flat_and_its_exponent(answer, sizes):
    (said,) = answer(sizes(), "growth", over="workload.size")
    assert said.startswith("matmul torch: from size=256 to 2048, time_us grows as size^3.00 (95 % interval 3.00 to 3.0")
    assert said.endswith("below, the exponents between neighbors are 0.00, 0.26, so it is flat up to size=256.")


def test_growth_tells_the_cost_of_one_more(answer, make):
    rows = [make.timed(make.case("mlp", "torch", {"steps": n}), 100.0 * n + 10) for n in (2, 3, 4, 5)]
    (said,) = answer(rows, "growth", over="workload.steps")
    assert "grows as steps^0.9" in said
    assert said.endswith("one more costs 100 us (± 0 us).")


def test_ranking_tells_each_gain_with_its_interval(answer, make):
    fields = {"rows": 8, "cols": 8, "dtype": "float32"}
    times = {"naive": 400.0, "torch": 100.0, "triton": 100.1}
    sure = {"samples": 20, "converged": True}
    rows = [make.timed(make.case("gelu", impl, fields), us, **sure) for impl, us in times.items()]
    (said,) = answer(rows, "ranking")
    assert said.startswith("gelu: naive 400 us; triton 100.1 us, 4.00x as fast (")
    assert "; torch 100 us, not told apart. From the first to the last: 4.00x as fast" in said


def test_effect_compares_the_values_of_a_field(answer, make):
    rows = [make.timed(make.case("mlp", "torch", {"print_loss": on}), us) for on, us in ((False, 100.0), (True, 150.0))]
    (said,) = answer(rows, "effect", field="workload.print_loss")
    assert said == "mlp torch: time_us is 100 us at print_loss=false; 150 us at true, 1.50x (1.48x to 1.52x)."


def test_orders_tells_where_another_figure_ranks_otherwise(answer, make):
    case, fields = make.case, {"cols": 8}
    rows = [
        make.timed(case("gelu", "torch", fields), 100.0, host_us=200.0),
        make.timed(case("gelu", "triton", fields), 90.0, host_us=300.0),
    ]
    first, second = answer(rows, "orders", columns=("time_us", "host_us", "latency_us"))
    assert first == "gelu: by time_us triton < torch."
    assert second.startswith("gelu: by host_us torch < triton: triton and torch change places. Beside time_us: ")
    assert second.endswith(": torch +100 us, triton +210 us.")


def test_passes_compares_times_with_the_traffic_of_each_step(answer, make):
    rows = [make.timed(make.case("softmax", impl, {"cols": 8}), us) for impl, us in (("naive", 80.0), ("torch", 20.0))]
    (said,) = answer(rows, "passes", impl="naive", steps=("sub", "exp"), passes=(3, 5))
    assert said.startswith(
        "softmax: naive makes 8 passes over memory, 4.0 times the minimum traffic; the fastest, torch,"
    )


def test_an_analysis_without_figures_says_so(answer, make):
    rows = [make.timed(make.case("gelu", "torch", {"cols": 8}), 10.0)]
    for name in ("growth", "effect"):
        field = {"growth": "over", "effect": "field"}[name]
        (said,) = answer(rows, name, **{field: "workload.cols"})
        assert said == f"{name}({field}=workload.cols): no correct case of this run has the figures that it needs"
    assert answer(rows, "of_tomorrow")[0].startswith("conclusion: of_tomorrow: no such analysis")


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("growht", {}, "conclusion: growht: no such analysis; did you mean growth? One of: bandwidth,"),
        ("growth", {}, "conclusion.growth.over: missing; give it a value with conclusion.growth.over=..."),
        ("growth", {"over": "workload.colz"}, "conclusion.growth.over: workload.colz: no case has this field; did you"),
        ("growth", {"over": "workload.cols", "column": "tim"}, "columns: no such column 'tim'; did you mean"),
        ("values", {"columns": ("nope",)}, "columns: no such column 'nope'; "),
        ("ranking", {"over": "workload.cols"}, "conclusion.ranking.over: no such field; there are none"),
        ("operations", {"most": "x"}, "conclusion.operations.most: 'x' is not allowed; give a whole number"),
    ],
)
def test_a_mistake_is_one_line(make, name, fields, message):
    with pytest.raises(BadInput) as refusal:
        conclusion.check(Choice(name, fields), [make.case("gelu", "torch", {"cols": 8})])
    assert str(refusal.value).startswith(message)


@pytest.fixture
def studied(tmp_path, sizes):
    """The folder of a run that has a question, ``lecture_gelu`` by its name."""
    folder, rows = tmp_path / "o" / "2026-01-31" / "10-11-12-x", sizes(samples=20, converged=True)
    folder.mkdir(parents=True)
    none = Choice("none", {})
    plan = Plan(cases=tuple(row.case for row in rows), name="x", baseline=None, output_dir="o", launcher=none, log=())
    asked = [Choice("growth", {"over": "workload.size"})]
    run_folder.write_plan(folder, replace(plan, question="How does it grow?", conclusion=tuple(asked)), plan.cases)
    run_folder.write_environment(folder, {"command": "python -m runner", "started": "2026-01-31T10:11:12+0000"})
    with journal.Journal(folder) as results:
        for row in rows:
            results.row(row)
    return folder


def test_a_past_run_says_the_same_in_every_report(studied, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert show.main([str(studied)]) == 0
    printed = capsys.readouterr().out
    assert "\nQuestion: How does it grow?\n- matmul torch: from size=256 to 2048, time_us grows as" in printed
    assert report.main(["md", str(studied), "--output", "x.md"]) == 0
    assert "**How does it grow?**\n\n- matmul torch: from size=256" in Path("x.md").read_text()


def test_a_folder_of_an_older_version_has_no_question(studied):
    plan = studied / run_folder.PLAN
    plan.write_text(re.sub(r',"question":.*?\](?=,"choices")', "", plan.read_text(), count=1))
    run = past.read(studied)
    assert (run.question, run.conclusion, conclusion.answers(run)) == (None, [], [])


def test_the_page_of_a_study_gets_what_was_measured(studied, tmp_path):
    pytest.importorskip("vl_convert")
    spec = importlib.util.spec_from_file_location("study", ROOT / "docs" / "study.py")
    study = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(study)
    (tmp_path / "docs" / "studies").mkdir(parents=True)
    page = tmp_path / "docs" / "studies" / "x.md"
    page.write_text(f"# Kept\n\n{study.MARK}\n\nold\n")
    for _ in range(2):
        assert study.write(past.read(studied), tmp_path / "docs") == page
    text = page.read_text()
    assert text.startswith(
        f"# Kept\n\n{study.MARK}\n\n## Measured\n\ncpu, 2026-01-31.\n\n- matmul torch: from size=256"
    )
    assert "![x](../images/study-x.svg)" in text
    assert "old" not in text
    assert (tmp_path / "docs" / "images" / "study-x.svg").read_text().startswith("<svg")
