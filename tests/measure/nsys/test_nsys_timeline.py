"""Figures and tables from exports of nsys: made by hand with known answers, and recorded from real versions."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from runner.measure.nsys.export import read_report
from runner.measure.timeline import tables
from runner.timing.timeline import covered, whole

HERE = Path(__file__).parent


@pytest.fixture
def seen(tmp_path):
    """``seen(export)``: return the report that is read from it."""
    return lambda export: read_report(export.save(tmp_path / "report.sqlite"))


def all_tables(report):
    return tables.tables(report.calls, report.others)


def figures(report, *names):
    """Return the figures ``names``, which have no prefix of the tool."""
    found = tables.figures(report.calls, "nsys")
    return {name: found.get(f"nsys_{name}") for name in names}


def by(table, *names):
    """Return the lines of a table by the values of some columns."""
    return {tuple(line[name] for name in names) if names[1:] else line[names[0]]: line for line in table}


def test_the_figures_of_a_call_are_those_worked_out_by_hand(seen, training):
    assert figures(seen(training), "gpu_us", "kernels", "idle_us", "longest_gap_us", "launch_to_start_us") == {
        "gpu_us": 47.0,
        "kernels": 5,
        "idle_us": 16.0,
        "longest_gap_us": 11.0,
        "launch_to_start_us": pytest.approx((10 + 23 + 10 + 19 + 0) / 5),
    }


def test_kernels_are_those_of_the_calls_alone_with_their_launches(seen, training):
    lines = by(all_tables(seen(training))["kernels"], "kernel")
    assert {"gemm", "relu"} <= set(lines)
    assert not {"flush", "init"} & set(lines)  # which are in no call
    gemm = {"count": 2, "gpu_us": 40, "mean_us": 20, "min_us": 20, "max_us": 20}
    gemm |= {"share_pct": pytest.approx(100 * 40 / 50), "launch_us": 2.5, "launch_to_start_us": 16.5}
    assert lines["gemm"] == lines["gemm"] | gemm
    assert (lines["gemm"]["grid"], lines["relu"]["grid"]) == ("various", "132x1x1")
    assert lines["relu"]["block"] == "256x1x1"


def test_what_autograds_thread_launches_is_in_the_callers_range(seen, training):
    lines = by(all_tables(seen(training))["parts"], "part")
    assert list(lines) == ["call", "call/step_0", "call/step_0/forward", "call/step_0/backward", "define_model"]
    gpu = {name: tuple(line[one] for one in ("gpu_us", "gpu_busy_us", "gpu_span_us")) for name, line in lines.items()}
    assert gpu == {
        "define_model": (10, 10, 10),
        "call": (50, 47, 63),
        "call/step_0": (50, 47, 63),
        "call/step_0/forward": (40, 40, 40),
        "call/step_0/backward": (9, 9, 14),
    }
    assert [line["count"] for line in lines.values()] == [1] * 5
    assert [line["host_us"] for line in lines.values()] == [100, 85, 30, 45, 100]
    assert [line["kernels"] for line in lines.values()] == [5, 5, 2, 2, 1]


def test_calls_of_the_api_are_told_by_the_range_they_are_in(seen, training):
    lines = by(all_tables(seen(training))["api"], "api", "part")
    assert {key: (line["count"], line["host_us"]) for key, line in lines.items()} == {
        ("cudaDeviceSynchronize", "call"): (1, 8),
        ("cudaMemcpyAsync", "call/step_0"): (1, 3),
        ("cudaLaunchKernel", "call/step_0/forward"): (1, 3),
        ("cuLaunchKernelEx", "call/step_0/forward"): (1, 2),
        ("cudaLaunchKernel", "call/step_0/backward"): (1, 2),
        ("cudaMemsetAsync", "call/step_0/backward"): (1, 1),
    }


def test_copies_and_fills_have_their_bytes(seen, training):
    lines = by(all_tables(seen(training))["copies"], "copy", "part")
    assert lines["copy device to host", "call/step_0"]["bytes"] == 4
    assert lines["fill", "call/step_0/backward"] == lines["fill", "call/step_0/backward"] | {
        "count": 1,
        "bytes": 1000,
        "gpu_us": 1,
        "gbps": 1,
    }


def test_gaps_are_told_by_what_was_done_before_and_after(seen, training):
    gaps = all_tables(seen(training))["gaps"]
    assert [(line["after"], line["before"], line["count"], line["mean_us"]) for line in gaps] == [
        ("fill", "copy device to host", 1, 11),
        ("relu", "fill", 1, 5),
    ]


def test_a_graph_is_one_launch_and_its_kernels_are_told_apart(seen, export):
    export.range("call", 0, 100)
    export.api("cudaGraphLaunch_v10000", 10, 20, 5)
    for start in (26, 30, 40):
        export.kernel("node", start, start + 4, 5)
    found = figures(seen(export), "gpu_us", "kernels", "idle_us", "launch_to_start_us")
    assert found == {"gpu_us": 12.0, "kernels": 3, "idle_us": 6.0, "launch_to_start_us": 6.0}


def test_what_has_no_recorded_launch_is_in_the_range_of_its_own_start(seen, export):
    export.range("call", 0, 100)
    export.kernel("lone", 50, 60, 9)
    found = figures(seen(export), "gpu_us", "kernels", "idle_us", "launch_us", "launch_to_start_us")
    assert found == {"gpu_us": 10, "kernels": 1, "idle_us": 0, "launch_us": None, "launch_to_start_us": None}


def test_ranges_of_libraries_and_ranges_that_were_not_closed_are_left_out(seen, training):
    training.range("cub", 210, 215, domain=1)
    training.range("open", 450, None)
    names = " ".join(str(line["part"]) for line in all_tables(seen(training))["parts"])
    assert "cub" not in names
    assert "open" not in names


def test_what_a_reader_ought_to_know_is_a_note(seen, training):
    training.kernel("late", 480, 481, 404)  # which the second call's copy launched
    training.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", 600, 700)
    old = "Installed CUDA driver version (13.0) is not supported by this build of Nsight Systems."
    training.add("DIAGNOSTIC_EVENT", 2, old)
    training.add("DIAGNOSTIC_EVENT", 1, "Reached the size limit on recording trace events")  # merely information
    report = seen(training)
    assert tables.note(report.calls, {}) == "kernels, copies and fills of a call: 5 to 6, not the same in each call"
    assert list(report.notes(3)) == [
        "it saw 2 of 3 calls",
        "1 CUDA graphs were traced as a whole and do not count",
        old,
    ]


def test_a_table_without_lines_is_left_out(seen, training):
    training.rows["CUPTI_ACTIVITY_KIND_MEMCPY"].clear()
    training.rows["CUPTI_ACTIVITY_KIND_MEMSET"].clear()
    found = all_tables(seen(training))
    assert sorted(found) == ["api", "kernels", "parts"]
    assert [line["kernel"] for line in found["kernels"]] == ["gemm", "relu"]


def test_the_summary_has_figures_and_tables(seen, training, tmp_path):
    report = seen(training)
    head = tables.gpu_sentences(tables.figures(report.calls, "nsys"), "nsys")
    tables.write(tmp_path, [*head], all_tables(report), 3)
    text = (tmp_path / "summary.txt").read_text()
    for words in ("kernels, copies and fills of a call: 5, busy for 47 us", "call/step_0 ", "  and 2 more", "gemm"):
        assert words in text, text


def test_the_summary_has_si_prefixes(tmp_path):
    line = {"part": "call", "count": 1.0, "host_us": 31_500.0, "gpu_us": 2_340_000.0, "gpu_busy_us": 0.3712}
    tables.write(tmp_path, [], {"parts": [line]}, 3)
    last = (tmp_path / "summary.txt").read_text().splitlines()[-1]
    assert " ".join(last.split()) == "call 1 31.5 ms 2.34 s 0.3712 us"


@pytest.mark.parametrize("seed", range(20))
def test_sums_unions_spans_and_gaps_agree_whatever_overlaps(seen, export, seed):
    draw = random.Random(seed)
    for call in range(3):
        at = 1000 * call
        export.range("call", at, at + 1000)
        for index in range(draw.randint(1, 12)):
            start = at + draw.randint(0, 600)
            export.kernel(draw.choice("abc"), start, start + draw.randint(1, 200), 100 * call + index)
    report = seen(export)
    gaps = [line["idle_us"] * 3 for line in all_tables(report).get("gaps", [])]
    spans, busy, sums = (
        [of(call.work) for call in report.calls]
        for of in (whole, covered, lambda works: sum(work.us for work in works))
    )
    assert sum(spans) - sum(busy) == pytest.approx(sum(gaps))
    assert all(some <= whole + 1e-9 for some, whole in zip(busy, sums, strict=True))
    assert all(some <= whole + 1e-9 for some, whole in zip(busy, spans, strict=True))


def test_there_are_recorded_reports():
    assert {path.stem for path in HERE.glob("*.sql")} >= {"nvtx_2022_4", "nvtx_2023_4", "nvtx_2024_2"}


@pytest.mark.parametrize("recorded", sorted(HERE.glob("nvtx_*.sql")), ids=lambda path: path.stem)
def test_ranges_that_a_real_nsys_recorded_are_read(recorded, tmp_path):
    """Two threads make three calls of two steps each; a forward sleeps 2 ms, a backward 1 ms."""
    path = tmp_path / "report.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(recorded.read_text(encoding="utf-8"))
    connection.close()
    report = read_report(path)
    lines = by(tables.tables(report.calls, report.others)["parts"], "part")
    steps = [f"call/step_{step}{part}" for step in (0, 1) for part in ("", "/forward", "/backward")]
    assert [name for name in lines if name.startswith("call")] == ["call", *steps]
    assert not any("cub" in name for name in lines)
    assert len(report.calls) == 6
    for name in ("call", *steps):
        least = 2000 * ("backward" not in name) + 1000 * ("forward" not in name)
        least *= 2 if name == "call" else 1
        assert lines[name]["count"] == 1
        assert least < lines[name]["host_us"] < 3 * least
    assert (report.works, report.graphs) == (0, 0)
    if not recorded.stem.endswith("2022_4"):  # which says nothing of itself
        assert report.version.startswith(recorded.stem.removeprefix("nvtx_").replace("_", "."))
