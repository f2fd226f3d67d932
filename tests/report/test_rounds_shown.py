"""Times of paired rounds in what a run leaves: the page, Markdown, LaTeX, charts, flat records, the W&B table."""

from __future__ import annotations

import re
from argparse import Namespace

import pytest

from runner.findings.flat import flat_records
from runner.findings.past import read_run
from runner.records.paired_rounds import PairedRounds
from runner.report import to_md
from runner.report.case_table import case_table
from runner.report.charts import charts
from runner.report.fastest_table import fastest_records, fastest_table
from runner.report.table import latex_of
from runner.report.wandb.content import Content
from runner.store import journal


@pytest.fixture
def run(tmp_path, made):
    """A run with two cases that were in paired rounds, and one that was not."""
    fields = {"rows": 8, "cols": 64, "dtype": "float32"}
    times = {"torch": 400.0, "triton": 190.0, "naive": 900.0}
    rows = [made.timed(made.case("gelu", impl, fields), us, low_us=1.0, high_us=1e4) for impl, us in times.items()]
    folder = made.finished(tmp_path / "2026-01-31" / "10-11-12-x", rows)
    batches = {row.case.key: [us] * 10 for row, us in zip(rows, (300.0, 150.0), strict=False)}
    with journal.Journal(folder) as results:
        results.rounds(PairedRounds(batches, dict.fromkeys(batches, "perf_counter")))
    return read_run(folder)


def test_every_table_has_the_times_of_the_rounds(run, tmp_path):
    to_md.report([run], Namespace(output=tmp_path / "x.md"))
    for text in ((tmp_path / "x.md").read_text(), latex_of(case_table(run, run.lines))):
        assert all(time in text for time in ("300 us", "150 us")), text
        assert re.search(r"#\S* 900 us", text), text
        assert "measured alone" in text
        assert not any(time in text for time in ("400 us", "190 us")), text
    assert [row[2] for row in fastest_table(run, run.lines).rows] == ["150 us"]


def test_charts_draw_them(run):
    (time,) = [chart for chart in charts([run]) if chart.kind == "time"]
    drawn = {point["implementation"]: point["time"] for point in time.data}
    assert drawn == {"torch": pytest.approx(300e-6), "triton": pytest.approx(150e-6), "naive": pytest.approx(900e-6)}
    (low, high) = next((one["time_low"], one["time_high"]) for one in time.data if one["implementation"] == "torch")
    assert 299e-6 < low <= 300e-6 <= high < 301e-6


def test_the_page_sorts_by_the_time_that_it_shows(run):
    pytest.importorskip("vl_convert")
    from runner.report.to_html import page

    text = page([run])
    assert "<td data-v=300>300 us" in text
    assert "<td data-v=900># 900 us" in text


def test_records_keep_the_time_measured_alone_and_have_both(run):
    expected = [(400.0, pytest.approx(300.0)), (190.0, pytest.approx(150.0)), (900.0, None)]
    assert [(each["time_us"], each["paired_time_us"]) for each in flat_records(run.lines)] == expected
    table = Content(run).table()
    places = [table["columns"].index(name) for name in ("time_us", "paired_time_us")]
    assert [tuple(line[place] for place in places) for line in table["data"]] == expected
    (fastest,) = fastest_records(run, run.lines)
    assert (fastest["time_us"], fastest["paired_time_us"]) == expected[1]
