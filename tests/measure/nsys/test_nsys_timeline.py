"""Exports of nsys → figures and tables, against timelines whose answer is known, and reports that real ones wrote."""

from __future__ import annotations

import csv
import random
import sqlite3
from pathlib import Path

import pytest

from runner.measure.nsys import tables
from runner.measure.nsys.tables import summary
from runner.measure.nsys.timeline import read

HERE = Path(__file__).parent


@pytest.fixture
def seen(tmp_path):
    """``seen(export)``: the timeline that is read from it."""
    return lambda export: read(export.save(tmp_path / "report.sqlite"))


def by(table, *names):
    """The lines of a table by the values of some columns."""
    return {tuple(line[name] for name in names) if names[1:] else line[names[0]]: line for line in table}


def test_the_figures_of_a_call_are_those_worked_out_by_hand(seen, training):
    assert tables.figures(seen(training)) == {
        "nsys_gpu_us": 47.0,
        "nsys_kernels": 5,
        "nsys_idle_us": 16.0,
        "nsys_launch_to_start_us": pytest.approx((10 + 23 + 10 + 19 + 0) / 5),
    }


def test_kernels_are_those_of_the_calls_alone_with_their_launches(seen, training):
    lines = by(tables.tables(seen(training))["kernels"], "kernel")
    assert list(lines) == ["gemm", "relu"]  # neither flush nor init, which are in no call
    gemm = {"count": 4, "per_call": 2, "total_us": 80, "mean_us": 20, "min_us": 20, "max_us": 20}
    gemm |= {"share_pct": pytest.approx(100 * 80 / 96, abs=1e-3), "launch_us": 2.5, "launch_to_start_us": 16.5}
    assert lines["gemm"] == lines["gemm"] | gemm
    assert (lines["gemm"]["grid"], lines["relu"]["grid"]) == ("varies", "132 x 1 x 1")
    assert lines["relu"]["block"] == "256 x 1 x 1"


def test_what_autograds_thread_launches_is_in_the_callers_range(seen, training):
    lines = by(tables.tables(seen(training))["ranges"], "range")
    assert list(lines) == ["call", "call/step_0", "call/step_0/forward", "call/step_0/backward", "define_model"]
    gpu = {name: tuple(line[f"gpu_{kind}_us"] for kind in ("sum", "busy", "span")) for name, line in lines.items()}
    assert gpu == {
        "define_model": (10, 10, 10),
        "call": (50, 47, 63),
        "call/step_0": (50, 47, 63),
        "call/step_0/forward": (40, 40, 40),
        "call/step_0/backward": (9, 9, 14),
    }
    assert [line["count"] for line in lines.values()] == [2, 2, 2, 2, 1]
    assert [line["host_us"] for line in lines.values()] == [100, 85, 30, 45, 100]
    assert [line["works"] for line in lines.values()] == [5, 5, 2, 2, 1]


def test_calls_of_the_api_are_told_by_the_range_they_are_in(seen, training):
    lines = by(tables.tables(seen(training))["api"], "api", "range")
    assert {key: (line["count"], line["total_us"]) for key, line in lines.items()} == {
        ("cudaDeviceSynchronize", "call"): (2, 16),
        ("cudaMemcpyAsync", "call/step_0"): (2, 6),
        ("cudaLaunchKernel", "call/step_0/forward"): (2, 6),
        ("cuLaunchKernelEx", "call/step_0/forward"): (2, 4),
        ("cudaLaunchKernel", "call/step_0/backward"): (2, 4),
        ("cudaMemsetAsync", "call/step_0/backward"): (2, 2),
    }


def test_copies_and_fills_have_their_bytes(seen, training):
    lines = by(tables.tables(seen(training))["copies"], "copy", "range")
    assert lines["copy device to host", "call/step_0"]["bytes"] == 8
    assert lines["fill", "call/step_0/backward"] == lines["fill", "call/step_0/backward"] | {
        "count": 2,
        "bytes": 2000,
        "total_us": 2,
        "gb_per_s": 1,
    }


def test_gaps_are_told_by_what_was_done_before_and_after(seen, training):
    gaps = tables.tables(seen(training))["gaps"]
    assert [(line["after"], line["before"], line["count"], line["mean_us"]) for line in gaps] == [
        ("fill", "copy device to host", 2, 11),
        ("relu", "fill", 2, 5),
    ]


def test_a_graph_is_one_launch_and_its_kernels_are_told_apart(seen, export):
    export.range("call", 0, 100)
    export.api("cudaGraphLaunch_v10000", 10, 20, 5)
    for start in (26, 30, 40):
        export.kernel("node", start, start + 4, 5)
    figures = tables.figures(seen(export))
    assert figures == {"nsys_gpu_us": 12.0, "nsys_kernels": 3, "nsys_idle_us": 6.0, "nsys_launch_to_start_us": 6.0}


def test_what_has_no_recorded_launch_is_in_the_range_of_its_own_start(seen, export):
    export.range("call", 0, 100)
    export.kernel("lone", 50, 60, 9)
    figures = tables.figures(seen(export))
    assert figures == {"nsys_gpu_us": 10.0, "nsys_kernels": 1, "nsys_idle_us": 0.0}  # and nothing of waiting


def test_ranges_of_libraries_and_ranges_that_were_not_closed_are_left_out(seen, training):
    training.range("cub", 210, 215, domain=1)
    training.range("open", 450, None)
    names = " ".join(str(line["range"]) for line in tables.tables(seen(training))["ranges"])
    assert "cub" not in names
    assert "open" not in names


def test_what_a_reader_ought_to_know_is_a_note(seen, training):
    training.kernel("late", 480, 481, 404)  # which the second call's copy launched
    training.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", 600, 700)
    old = "Installed CUDA driver version (13.0) is not supported by this build of Nsight Systems."
    training.add("DIAGNOSTIC_EVENT", 2, old)
    training.add("DIAGNOSTIC_EVENT", 1, "Reached the size limit on recording trace events")  # merely information
    assert list(seen(training).notes(3)) == [
        "it saw 2 of 3 calls",
        "calls had from 5 to 6 kernels, copies and fills",
        "1 CUDA graphs were traced as a whole, and are in no figure",
        old,
    ]


def test_a_table_is_a_file_unless_it_is_empty(seen, training, tmp_path):
    training.rows["CUPTI_ACTIVITY_KIND_MEMCPY"].clear()
    training.rows["CUPTI_ACTIVITY_KIND_MEMSET"].clear()
    tables.write(tables.tables(seen(training)), tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.csv")) == ["api.csv", "kernels.csv", "ranges.csv"]
    with open(tmp_path / "kernels.csv", newline="") as lines:
        assert [line["kernel"] for line in csv.DictReader(lines)] == ["gemm", "relu"]


def test_the_summary_has_figures_tables_and_the_command(seen, training):
    timeline = seen(training)
    one = tables.figures(timeline) | {"nsys_slowdown": 1.25, "nsys_note": "mind the gap"}
    text = summary("head", one, tables.tables(timeline), 100.0, 80.0, "nsys profile python")
    for words in (
        "47.00 us  in 5 kernels, copies and fills",
        "1.25 x the 80.00 us",
        "call/step_0/backward",
        "mind the gap",
    ):
        assert words in text, text
    assert "recorded by: nsys profile python\n" in text


@pytest.mark.parametrize("seed", range(20))
def test_sums_unions_spans_and_gaps_agree_whatever_overlaps(seen, export, seed):
    draw = random.Random(seed)
    for call in range(3):
        at = 1000 * call
        export.range("call", at, at + 1000)
        for index in range(draw.randint(1, 12)):
            start = at + draw.randint(0, 600)
            export.kernel(draw.choice("abc"), start, start + draw.randint(1, 200), 100 * call + index)
    timeline = seen(export)
    gaps = [line["total_us"] for line in tables.tables(timeline).get("gaps", [])]
    spans, busy, sums = (
        [of(works) for works in timeline.of_call()]
        for of in (tables.span_us, tables.union_us, lambda works: sum(map(tables._us, works)))
    )
    assert sum(spans) - sum(busy) == pytest.approx(sum(gaps))
    assert all(some <= whole + 1e-9 for some, whole in zip(busy, sums, strict=True))
    assert all(some <= whole + 1e-9 for some, whole in zip(busy, spans, strict=True))


def test_there_are_recorded_reports():
    assert {path.stem for path in HERE.glob("*.sql")} >= {"nvtx_2022_4", "nvtx_2023_4", "nvtx_2024_2"}


@pytest.mark.parametrize("recorded", sorted(HERE.glob("nvtx_*.sql")), ids=lambda path: path.stem)
def test_ranges_that_a_real_nsys_recorded_are_read(recorded, tmp_path):
    """Three calls of two steps, from each of two threads; 2 ms asleep forward, and 1 ms backward."""
    path = tmp_path / "report.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(recorded.read_text(encoding="utf-8"))
    connection.close()
    timeline = read(path)
    lines = by(tables.tables(timeline)["ranges"], "range")
    steps = [f"call/step_{step}{part}" for step in (0, 1) for part in ("", "/forward", "/backward")]
    assert [name for name in lines if name.startswith("call")] == ["call", *steps]
    assert not any("cub" in name for name in lines)
    assert len(timeline.calls) == 6
    for name in ("call", *steps):
        least = 2000 * ("backward" not in name) + 1000 * ("forward" not in name)
        least *= 2 if name == "call" else 1
        assert lines[name]["count"] == 6
        assert least < lines[name]["host_us"] < 3 * least
    assert (timeline.works, timeline.apis, timeline.graphs) == ([], [], 0)
    if not recorded.stem.endswith("2022_4"):  # which says nothing of itself
        assert timeline.version.startswith(recorded.stem.removeprefix("nvtx_").replace("_", "."))
