"""What differs between implementations by a profiler: in a run's report, in ``show`` and in ``report html``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runner import cli
from runner.findings.past import read_run
from runner.measure import write_csv
from runner.measure.ncu import report
from runner.records.case import CaseRecord, Choice
from runner.records.row import Row
from runner.records.settings import Settings

RAW = (Path(__file__).parents[1] / "measure" / "ncu" / "raw.csv").read_text(encoding="utf-8")


@pytest.fixture
def profiled(made, tmp_path):
    """The folder of a run whose implementations launched one kernel each that ncu has profiled on an H200."""

    def build(*impls, reference="torch", **metrics):
        rows = []
        for place, impl in enumerate(impls):
            measures = (Choice("ncu", {"reference": reference}), Choice("inspect", {"reference": reference}))
            case = CaseRecord(Choice("softmax", {"cols": 8}), Choice(impl, {}), measures, Settings("auto", 0))
            file = f"files/{case.key}/ncu/kernels.csv"
            profile = report.NcuProfile(report.kernels(RAW)[place : place + 1], [], "", {})
            figures = profile.columns() | {"kernel_registers": 32, "kernel_spill_bytes": 8 * place, **metrics}
            rows.append(Row(case=case, status="ok", device="NVIDIA H200", metrics=figures, files=(file,)))
        folder = made.finished(tmp_path / "outputs" / "2025-02-01" / "00-00-00-ncu", rows)
        for place, row in enumerate(rows):
            lines = report.NcuProfile(report.kernels(RAW)[place : place + 1], [], "", {}).lines()
            (folder / row.files[0]).parent.mkdir(parents=True)
            write_csv(folder / row.files[0], lines)
        return folder

    return build


def line(text, title):
    """The words behind ``title`` in the table."""
    return next(one for one in text.splitlines() if one.startswith(f"  {title} ")).split(title)[1].split()


def test_a_table_has_what_differs_from_the_reference_and_its_multiple(profiled, capsys):
    folder = profiled("triton", "torch")  # the reference comes first, whatever its place in the grid
    assert cli.main(["show", str(folder)]) == 0
    ncu, inspect = capsys.readouterr().out.partition("what differs from torch")[2].split("what differs from torch")
    assert ncu.splitlines()[1].split() == ["torch", "triton"]
    assert line(ncu, "time") == ["269.4", "us", "129.1", "us", "0.48x"]
    assert line(ncu, "GPU memory traffic")[-1].endswith("x")
    assert line(ncu, "occupancy is limited by") == ["warps", "registers"]
    assert "the same: kernels 1, grid (16384, 1, 1)" in ncu
    assert line(inspect, "spills per thread") == ["8", "B", "0", "B", "0.00x"]
    assert "the same: registers per thread 32" in inspect


def test_the_page_of_a_report_has_it_too(profiled, tmp_path):
    folder = profiled("torch", "triton")
    assert cli.main(["report", "md", str(folder), "--output", str(tmp_path / "page.md")]) == 0
    assert "softmax: ncu, what differs from torch" in (tmp_path / "page.md").read_text()
    pytest.importorskip("vl_convert")
    assert cli.main(["report", "html", str(folder), "--output", str(tmp_path / "page.html")]) == 0
    assert "softmax: inspect, what differs from torch" in (tmp_path / "page.html").read_text()


def test_where_there_is_nothing_to_compare_it_says_why(profiled, made, capsys):
    folder = profiled("torch", "triton", reference="compiled")
    cli.main(["show", str(folder)])
    assert "softmax: ncu\n  nothing to compare: compiled has no row" in capsys.readouterr().out
    rows = [
        replace(
            row, case=replace(row.case, measures=(Choice("ncu", {"reference": "torch"}),)), metrics=metrics, files=()
        )
        for row, metrics in zip(
            read_run(folder).rows, ({"not_measured": "ncu: it is missing"}, {"ncu_gpu_us": 1.0}), strict=True
        )
    ]
    cli.main(["show", str(made.finished(folder.with_name("00-00-01-ncu"), rows))])
    assert "  nothing to compare: torch: ncu: it is missing" in capsys.readouterr().out
