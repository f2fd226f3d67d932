"""What a W&B run says, in grids that are not as plain as one axis of one workload."""

from dataclasses import replace
from pathlib import Path

import pytest

from runner.findings.run import Run
from runner.records.plan import Plan
from runner.report.wandb.content import Content


def content_of(rows, baseline=None):
    plan = Plan(cases=tuple(row.case for row in rows), name="x", baseline=baseline)
    return Content(Run(Path(), plan, rows))


VARIED = [(None, 20), ("anomaly", 50)]


def test_other_axes_become_part_of_a_lines_label(made):
    rows = [
        made.timed(made.case("gelu", "torch", {"dtype": dtype, "cols": cols, "rows": 2}, seed), cols * 1.0)
        for dtype in ("float32", "float16")
        for cols in (256, 128)
        for seed in (0, 1)
    ]
    content = content_of(rows)
    assert content.x("gelu") == "cols"  # the first axis is not a number
    assert content.title("gelu", "time_us") == "gelu: time (us) (rows=2)"
    labels = [f"torch, dtype={dtype}, seed={seed}" for dtype in ("float32", "float16") for seed in (0, 1)]
    assert content.charts("gelu")["time_us"] == {label: [(128.0, 128.0), (256.0, 256.0)] for label in labels}


def test_namesakes_are_told_apart_by_their_options(made):
    rows = [
        made.timed(made.case("gelu", "compiled", {"cols": cols}, of=of, mode="default"), 1.0)
        for of in ("naive", "torch")
        for cols in (1, 2)
    ]
    content = content_of(rows)
    assert set(content.charts("gelu")["time_us"]) == {"compiled(of=naive)", "compiled(of=torch)"}
    assert {"gelu/cols=1/speedup/compiled(of=torch)", "gelu/cols=2/speedup/compiled(of=naive)"} <= set(
        content.summary()
    )
    table = content.table()
    cells = [dict(zip(table["columns"], line, strict=True)) for line in table["data"]]
    assert {line["impl"] for line in cells} == {"compiled"}
    assert {line["implementation"] for line in cells} == {"compiled(of=naive)", "compiled(of=torch)"}


@pytest.mark.parametrize("field", ["dtype", "tf32"])
def test_no_chart_where_no_size_varies(made, field):
    values = {"dtype": ("float32", "float16"), "tf32": (True, False)}[field]
    rows = [made.timed(made.case("gelu", "torch", {"cols": 8, field: value}), 1.0) for value in values]
    content = content_of(rows)
    assert content.charts("gelu") == {}
    assert content.history("gelu") == []


def test_a_figure_nobody_has_is_not_charted(made):
    rows = [made.timed(made.case("gelu", "torch", {"cols": cols}), 1.0, flops=None) for cols in (1, 2)]
    assert set(content_of(rows).charts("gelu")) == {"time_us", "gbps"}


def test_a_single_case_is_summed_up_under_its_workload(made):
    content = content_of([made.timed(made.case("gelu", "torch", {"cols": 8}), 4.0)])
    summary = {"cases/total": 1, "cases/ok": 1, "cases/failed": 0}
    assert content.summary() == summary | {
        "gelu/fastest": "torch",
        "gelu/fastest_us": 4.0,
        "gelu/speedup/torch": 1.0,
        "gelu/best_us/torch": 4.0,
        "gelu/geomean_speedup/torch": 1.0,
    }  # and no win, since it has no rival


def test_points_that_differ_in_their_measurement_alone_do_not_share_a_key(made):
    cases = [made.case("gelu", "torch", {"cols": 8}).with_settings(time_wrong=flag) for flag in (False, True)]
    summary = content_of([made.timed(case, us) for case, us in zip(cases, (4.0, 5.0), strict=True)]).summary()
    keys = [f"gelu/time_wrong={flag}/fastest_us" for flag in ("false", "true")]
    assert [summary[key] for key in keys] == [4.0, 5.0]


def test_what_else_varies_is_a_column(made):
    one = made.case("gelu", "torch", {"cols": 8})
    cases = [
        replace(one.with_settings(debug=aid), measures=(replace(one.measures[0], fields={"samples": n}),))
        for aid, n in VARIED
    ]
    table = content_of([made.timed(case, 1.0) for case in cases]).table()
    found = [
        [cells[table["columns"].index(name)] for cells in table["data"]]
        for name in ("debug", "measure.benchmark.samples")
    ]
    assert list(zip(*found, strict=True)) == VARIED


def test_cases_that_are_tied_are_the_fastest_together(made):
    figures = {"samples": 20, "converged": True}
    cases = [made.timed(made.case("gelu", name, {"cols": 8}), us, **figures) for name, us in (("a", 6.01), ("b", 6.0))]
    said = content_of(cases).summary()
    assert (said["gelu/fastest"], said["gelu/fastest_us"]) == ("a, b", 6.0)


def test_speedups_are_against_the_baseline_asked_for(made):
    rows = [made.timed(made.case("gelu", name, {"cols": 8}), us) for name, us in (("naive", 6.0), ("torch", 2.0))]
    assert content_of(rows, "naive").summary()["gelu/speedup/torch"] == pytest.approx(3.0)


def test_a_workloads_field_named_as_a_column_keeps_both(made):
    rows = [made.timed(made.case("gelu", "torch", {"status": "solid", "cols": 8}), 1.0)]
    table = content_of(rows).table()
    line = dict(zip(table["columns"], table["data"][0], strict=True))
    assert (line["workload.status"], line["status"]) == ("solid", "ok")


def test_a_column_of_mixed_values_becomes_text(made):
    rows = [made.timed(made.case("gelu", "torch", {"layout": value}), 1.0) for value in (1, "rows", True, None)]
    table = content_of(rows).table()
    assert [cells[table["columns"].index("workload.layout")] for cells in table["data"]] == ["1", "rows", "True", None]


def test_no_rows_make_an_empty_page():
    content = content_of([])
    assert (content.table()["data"], content.summary()) == ([], {"cases/total": 0, "cases/failed": 0})


def test_the_roofline_has_the_measured_peak_beside_each_implementation(made):
    rows = [
        made.timed(made.case("gelu", name, {"cols": 8}), us, flops=8_000_000, bytes_min=1_000_000, **percent)
        for name, us, percent in (("naive", 4.0, {}), ("torch", 2.0, {"pct_of_measured_peak": 50.0}))
    ]
    content = content_of(rows)
    assert content.roofline() == {
        "gelu naive": [(8.0, pytest.approx(2.0))],
        "gelu torch": [(8.0, pytest.approx(4.0))],
        "measured peak": [(8.0, pytest.approx(8.0))],
    }
    assert [set(record) for record in content.roofline_history()] == [
        {"roofline/intensity", f"roofline/{name}"} for name in ("gelu naive", "gelu torch", "measured peak")
    ]
    assert content_of(rows[:1]).roofline() == {}


def test_figures_that_sort_runs_are_by_implementation(made):
    times = {"naive": (8.0, 4.0), "torch": (2.0, 4.0)}
    rows = [
        made.timed(made.case("gelu", name, {"cols": cols}), us, samples=20, converged=True)
        for name, some in times.items()
        for cols, us in zip((1, 2), some, strict=True)
    ]
    said = content_of(rows).summary()
    assert said["gelu/geomean_speedup/naive"] == pytest.approx(0.5)  # of 0.25 and 1
    assert (said["gelu/best_us/naive"], said["gelu/best_us/torch"]) == (4.0, 2.0)
    assert said["gelu/fastest_in/torch"] == 2  # tied in one
    assert said["fastest"] == "torch"


def test_a_wrong_result_has_no_best_time(made):
    rows = [made.timed(made.case("gelu", "naive", {"cols": 8}), 4.0, "wrong")]
    assert not {key for key in content_of(rows).summary() if "best_us" in key or "fastest" in key}
