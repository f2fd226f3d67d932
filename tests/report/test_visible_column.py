"""A column that is declared to be shown is shown everywhere, without a word about it anywhere else."""

from __future__ import annotations

import pytest

from runner.api.bench import Timing
from runner.findings.history import read_history
from runner.findings.past import read_run
from runner.measure import by_hand
from runner.records.columns import COLUMNS, Column
from runner.report.history import figure_text, history_chart
from runner.report.terminal import terminal_report
from runner.report.to_html import page
from runner.report.wandb.content import Content

JOLTS = Column("uJ", "jolts of a call", "lower", "jolts_pct").shown("jolts", place=4, summary=1, charted=True)


@pytest.fixture(params=["of any row", "of a measurement"])
def folder(request, made, tmp_path, monkeypatch):
    """A run with the declared column, of which nothing but its declaration and its values is known."""
    declared = COLUMNS if request.param == "of any row" else by_hand.COLUMNS
    monkeypatch.setitem(declared, "jolts_uj", JOLTS)
    rows = [
        made.timed(made.case("gelu", "torch", {"cols": cols}), cols * 2.0, jolts_uj=cols * 100.0, jolts_pct=0.5)
        for cols in (8, 16)
    ]
    return made.finished(tmp_path / "2025-01-31" / "10-11-12-run", rows)


def test_a_declared_column_is_in_the_terminal_the_page_wandb_bench_and_history(folder):
    run = read_run(folder)
    table = terminal_report(run, 200)[0].plain
    assert "time ±95 % jolts speed-up" in " ".join(table.split())
    assert "32 us 1.0 % 1.6 mJ 1 (base)" in " ".join(table.split())
    assert "<td data-v=1600>1.6 mJ" in page([run])
    assert "<dt>jolts<dd>jolts of a call" in page([run])

    content = Content(run)
    assert content.title("gelu", "jolts_uj") == "gelu: jolts (uJ) ()"
    assert content.charts("gelu")["jolts_uj"] == {"torch": [(8.0, 800.0), (16.0, 1600.0)]}

    assert "jolts 1.6 mJ" in repr(Timing.of(run.rows[1], ()))

    history = read_history(str(folder.parents[1]), ["cols=16"], "jolts_uj")
    assert history.series[0].points[0].percent == 0.5
    drawn = " ".join(figure_text(history, 120).plain.split())
    assert "1.6 mJ 0.5 %" in drawn
    assert history_chart(history)["vconcat"][0]["layer"][1]["encoding"]["y"]["title"] == "jolts_uj"
