"""Charts, the written conclusion, and the command of a case, from the rows of made-up and of small runs."""

from __future__ import annotations

import re
import shlex
import struct
from argparse import Namespace
from pathlib import Path

import pytest

from runner.cli.report import main
from runner.config import plan
from runner.findings.conclusion import conclude
from runner.findings.past import read_run
from runner.records.bad_input import BadInput
from runner.records.case import CaseRecord, Choice
from runner.records.settings import Settings
from runner.report import reproduce
from runner.report.charts import charts
from runner.report.images import report_images


@pytest.fixture
def run(tmp_path, made, made_up):
    """``run(rows)`` or ``run(count=..., only=...)``: a run read from a folder."""

    def build(rows=None, name="12-00-00-mine", **of):
        folder = made.finished(tmp_path / "outputs" / "2026-01-31" / name, rows or made_up.rows(**of))
        return read_run(folder)

    return build


KINDS = ("time", "rate", "speedup", "memory")


def by_name(found):
    return {chart.name: chart for chart in found}


def test_each_workload_and_type_has_its_time_its_rate_and_its_speedup_against_the_size(run):
    found = charts([run(only="matmul", hostile=False)])
    assert [chart.name for chart in found] == [
        *(f"matmul-{kind}-dtype={dtype}" for dtype in ("bfloat16", "float32") for kind in KINDS),
        "roofline-NVIDIA-H200-bfloat16",
        "roofline-NVIDIA-H200-float32",
    ]
    time = by_name(found)["matmul-time-dtype=bfloat16"]
    assert {point["size"] for point in time.data} == {256, 512, 1024, 2048, 4096, 8192}
    assert {point["implementation"] for point in time.data} == {"naive", "torch", "compiled", "triton", "cuda"}
    assert all(point["time_low"] < point["time"] < point["time_high"] < 1 for point in time.data)
    assert time.spec["encoding"]["x"]["scale"]["type"] == "log"
    memory = by_name(found)["matmul-memory-dtype=bfloat16"]
    assert all(point["memory"] > 0 and "memory_low" not in point for point in memory.data)


def test_the_rate_is_that_which_limits_the_workload(run):
    found = charts([run(count=60, hostile=False)])
    kinds = {chart.group: chart.title for chart in found if chart.kind == "rate"}
    assert "bandwidth" in kinds["gelu"]
    matmul = charts([run(only="matmul", hostile=False, name="13-00-00-other")])
    assert all("operations" in chart.title for chart in matmul if chart.kind == "rate")


def test_a_roofline_has_the_peak_that_its_rows_were_compared_with(run, made_up):
    found = by_name(charts([run(only="matmul", hostile=False)]))["roofline-NVIDIA-H200-bfloat16"]
    limit = found.spec["layer"][0]["data"]["values"]
    assert max(point["rate"] for point in limit) == pytest.approx(made_up.TFLOPS["bfloat16"] * 1e12)
    assert limit[0]["rate"] / limit[0]["intensity"] == pytest.approx(made_up.COPY_GBPS * 1e9)
    assert all(point["rate"] <= made_up.TFLOPS["bfloat16"] * 1e12 for point in found.data)


def test_a_roofline_names_the_sizes_that_all_its_cases_have(run, made_up):
    rows = list(made_up.rows(only="matmul", hostile=False))
    (found,) = [
        chart
        for chart in charts([run([row for row in rows if row.case.workload == rows[0].case.workload])])
        if chart.kind == "roofline"
    ]
    fields = rows[0].case.workload.fields
    assert found.subtitle.startswith("matmul: ")
    assert fields.keys() >= {"size", "dtype"}
    assert all(f"{name}={fields[name]}" in found.subtitle for name in ("size", "dtype"))


def test_there_is_no_roofline_without_a_measured_peak(folder):
    assert {chart.kind for chart in charts([read_run(folder)])} <= {*KINDS}


def test_wrong_and_failed_cases_are_not_drawn(folder):
    drawn = [
        (chart.group, point["implementation"], point["size"])
        for chart in charts([read_run(folder)])
        for point in chart.data
    ]
    assert ("gelu", "naive", 256) in drawn
    assert ("gelu", "naive", 1000) not in drawn  # wrong
    assert ("matmul", "compiled", 1024) not in drawn  # failed


def test_several_runs_are_told_apart_by_their_dashes(run):
    two = [run(only="matmul", name="12-00-00-a"), run(only="matmul", name="12-00-00-b", scale=1.1)]
    time = by_name(charts(two))["matmul-time-dtype=float32"]
    assert {point["run"] for point in time.data} == {"12-00-00-a", "12-00-00-b"}
    assert time.spec["layer"][0]["encoding"]["strokeDash"]["field"] == "run"


def test_a_single_problem_is_drawn_as_bars(run, made):
    rows = [made.timed(made.case("gelu", impl, {"cols": 8}), us) for impl, us in {"torch": 2.0, "naive": 5.0}.items()]
    time = charts([run(rows)])[0]
    assert time.spec["layer"][0]["mark"]["type"] == "bar"
    assert time.spec["encoding"]["y"]["sort"] == ["torch", "naive"]


def test_an_axis_has_units_and_a_legend_only_what_is_drawn(run, tmp_path):
    folder = run(only="matmul", hostile=False).folder
    assert main(["svg", str(folder), "--output", str(tmp_path / "images")]) == 0
    time = (tmp_path / "images" / "matmul-time-dtype=float32.svg").read_text()
    texts = set(re.findall(r"<text[^>]*>([^<]*)</text>", time))
    assert {"5 us", "10 us", "1 ms", "time", "NVIDIA H200"} <= texts
    assert "triton" in texts
    assert "cuda" not in texts  # it does not exist in float32
    rate = (tmp_path / "images" / "matmul-rate-dtype=bfloat16.svg").read_text()
    assert "100 TFLOP/s" in rate
    assert "cuda" in rate


def test_an_image_names_the_device_and_the_fields_that_are_the_same(folder):
    subtitles = {chart.group: chart.whole()["title"]["subtitle"] for chart in charts([read_run(folder)])}
    assert subtitles == {"gelu": ["cpu · rows=8 dtype=float32"], "matmul": ["cpu · dtype=float32 tf32=true"]}


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_images_are_drawn_without_a_browser(run, tmp_path, capsys, ending):
    folder = run(only="matmul", count=24).folder
    assert main([ending, str(folder), "--output", str(tmp_path / "images")]) == 0
    printed = capsys.readouterr().out.split()
    files = sorted((tmp_path / "images").iterdir())
    assert sorted(printed) == [str(file) for file in files]
    assert {file.suffix for file in files} == {f".{ending}"}
    assert len(files) == len(charts([read_run(folder)]))
    for content in (file.read_bytes() for file in files):
        if ending == "png":
            assert content.startswith(b"\x89PNG")
            assert min(struct.unpack(">II", content[16:24])) > 600
        else:
            assert content.startswith(b"<svg")
            assert b"<script" not in content


def test_a_report_lands_in_the_folder_of_the_run_and_never_over_a_file_of_its_own(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder, other = run(count=12, name="12-00-00-mine").folder, run(count=12, name="12-00-00-other").folder
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    for form, name in {"html": "report.html", "md": "report.md"}.items():
        with pytest.raises(BadInput, match="the run has written it"):
            main([form, str(folder), "--output", str(folder / "rows.jsonl")])
        for _ in range(2):  # a report is replaced
            assert main([form, str(folder)]) == 0
            assert capsys.readouterr().out == f"{folder / name}\n"
    assert main(["svg", str(folder)]) == 0
    assert {*folder.rglob("*.svg")} == {*(folder / "report-svg").iterdir()} != set()
    assert before.items() <= {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}.items()
    assert main(["md", str(folder), str(other)]) == 0
    assert Path(capsys.readouterr().out.splitlines()[-1]).parent == Path()


def test_a_run_without_any_time_has_no_images_but_a_conclusion(run, made):
    case = made.case("gelu", "torch", {"cols": 8})
    failed = made.timed(case, 1.0, status="wrong", max_abs_err=1.0)
    empty = run([failed])
    with pytest.raises(BadInput, match="nothing to draw"):
        report_images([empty], Namespace(output=None), "png")
    found = conclude(empty)
    assert [finding.summary for finding in found.findings] == [
        "gelu: no correct result has a time, so none is the fastest."
    ]
    assert found.failures == ["gelu torch: wrong: 3 of 8192 elements beyond tolerance"]


def test_the_conclusion_says_where_the_fastest_changes(run, made):
    times = {64: (4.0, 2.0), 128: (5.0, 4.0), 256: (6.0, 8.0), 512: (7.0, 16.0)}
    rows = [
        made.timed(made.case("gelu", impl, {"cols": cols}), us, samples=20, converged=True)
        for cols, both in times.items()
        for impl, us in zip(("torch", "triton"), both, strict=True)
    ]
    found = conclude(run(rows))
    (gelu,) = found.findings
    assert gelu.summary.startswith("gelu: triton is the fastest at 2 of 4 problems and torch is the fastest at 2 of 4")
    (sizes,) = gelu.details
    assert (
        "triton is the fastest from cols=64 to 128, 1.25x to 2.00x as fast as the next, torch (95 % interval" in sizes
    )
    assert "; torch is the fastest from cols=256 to 512, 1.33x to 2.29x as fast as the next, triton" in sizes
    assert sizes.endswith("The fastest changes once.")
    assert found.unclear == []


def test_the_conclusion_says_from_where_to_where_the_fastest_is_not_compared(run, made):
    doubtful = {64: {}, 128: {"verdict": "contended"}, 256: {}, 512: {}}
    rows = [
        made.timed(made.case("gelu", impl, {"cols": cols}), us, **{"samples": 20, "converged": True} | figures)
        for cols, figures in doubtful.items()
        for impl, us in (("torch", 4.0), ("triton", 3.0))
    ]
    (sizes,) = conclude(run(rows)).findings[0].details
    assert re.sub(r", 1.33x[^;]*(?=[;.])", "", sizes) == (
        "triton is the fastest at cols=64; triton has the shortest time, but is not compared with every other at "
        "cols=128; triton is the fastest from cols=256 to 512."
    )


def test_the_conclusion_calls_none_the_fastest_without_a_rival(run, made):
    rows = [made.timed(made.case("gelu", "torch", {"cols": cols}), 2.0) for cols in (64, 128, 256)]
    (gelu,) = conclude(run(rows)).findings
    assert gelu.summary == "gelu: torch has no other to compare with at 3 of 3 problems."
    assert [*gelu.details] == ["torch has no other to compare with from cols=64 to 256."]
    (single,) = conclude(run(rows[:1], "12-00-01-one")).findings
    assert single.summary == "gelu: torch has no other to compare with."
    rows += [made.timed(made.case("gelu", "naive", {"cols": 64}), 9.0, samples=20, converged=True)]
    (gelu,) = conclude(run(rows, "12-00-02-two")).findings
    assert "torch has no other to compare with at 2 of 3 problems" in gelu.summary


def test_the_conclusion_says_what_is_unclear_and_why(run, made):
    rows = [
        made.timed(made.case("gelu", impl, {"cols": 8}), us, **{"samples": 20, "converged": True} | more)
        for impl, us, more in (
            ("torch", 10.0, {}),
            ("near", 10.2, {"interval_pct": 5.0}),
            ("odd", 15.0, {"converged": False}),
        )
    ]
    unclear = conclude(run(rows)).unclear
    assert any("gelu near" in one and "the interval of their ratio includes both" in one for one in unclear)
    assert any("gelu odd" in one and "only a factor above 2, and above what" in one for one in unclear)


COMMANDS = [
    ["workload=gelu", "impl=naive"],
    [
        "workload=softmax",
        "workload.cols=1000",
        "workload.dtype=bfloat16",
        "impl=compiled",
        "impl.mode=max-autotune",
        "seed=7",
    ],
    [
        "workload=gelu",
        "impl=torch",
        "device=cpu",
        "measure=[benchmark,memory]",
        "measure.benchmark.max_s=0.1",
        "quick=true",
    ],
    ["workload=matmul", "workload.size=64", "impl=torch", "measure.benchmark.target_cpu_pct=3", "time_wrong=true"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_the_command_of_a_case_composes_that_case(words):
    (case,) = plan(words).cases
    command = shlex.split(reproduce.command(case))
    assert command[:3] == ["python", "-m", "runner"]
    assert plan(command[3:]).cases == (case,)
    assert len(command) <= 3 + len(words) + 1  # only what differs from the defaults


def test_the_command_quotes_what_hydra_and_the_shell_would_read_otherwise():
    path = "my kernels/it's.py:f"
    case = CaseRecord(
        Choice("gelu", {}), Choice("file", {"path": path}), (Choice("benchmark", {}),), Settings("auto", 0)
    )
    (word,) = [word for word in shlex.split(reproduce.command(case)) if word.startswith("impl.path=")]
    assert word == r"impl.path='my kernels/it\'s.py:f'"
