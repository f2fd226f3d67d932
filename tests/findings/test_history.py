"""`runner history`: a figure over runs and commits, and at which run it has a lasting change."""

from __future__ import annotations

import base64
import csv
import gzip
import io
import json
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from runner.cli import history as command
from runner.cli import main
from runner.findings.change_points import Point, Series, with_change_points
from runner.findings.history import read_history
from runner.records.bad_input import BadInput
from runner.records.case import CaseRecord, Choice
from runner.records.plain_text import encodable
from runner.records.plan import Plan
from runner.records.row import Row
from runner.records.settings import Settings
from runner.report.history import figure_text, history_chart
from runner.store import journal, run_folder

SOURCES = {"kernels/gelu/triton.py": "aaa", "torch": "2.8"}
GELU = {"rows": 8, "cols": 256, "dtype": "float32"}
NOTHING = "no lasting change"


def case(impl="triton", quick=False, samples=800, replica=0, workload="gelu", **fields):
    measure = Choice("benchmark", {"samples": samples, "cold_l2": True})
    known = GELU if workload == "gelu" else {}
    return CaseRecord(
        Choice(workload, {**known, **fields}),
        Choice(impl, {}),
        (measure,),
        Settings("auto", 0, quick=quick),
        replica=replica,
    )


def row(us, commit="a", separate=1.0, device="NVIDIA H200", of=None, fingerprint=SOURCES, **more):
    """A row of ``case()``, of 800 samples with an interval of 0.2 %."""
    figures = {"gpu_us": us, "low_us": 0.998 * us, "high_us": 1.002 * us, "interval_pct": 0.2, "stat_pct": 0.1}
    figures |= {"samples": 800, "converged": True, "separate_pct": separate, "verdict": "ok", "correct": True}
    figures |= {"commit": commit * 40, "dirty": False, "gpu_uuid": "GPU-1", "instrument": "graph_timestamps"} | more
    return Row(case=of or case(), status="ok", device=device, metrics=figures, fingerprint=fingerprint)


@pytest.fixture
def outputs(tmp_path):
    """``outputs([rows], [rows])``: a folder with these runs, one a day."""

    def make(*runs):
        for day, rows in enumerate(runs, 1):
            folder = tmp_path / "outputs" / f"2025-01-{day:02d}" / "10-11-12-gelu"
            folder.mkdir(parents=True)
            cases = tuple(one.case for one in rows)
            plan = Plan(cases=cases, name="gelu")
            run_folder.write_plan(folder, plan, cases)
            facts = {"commit": "f" * 40, "dirty": True, "worker": {"cpu": "A CPU"}}
            run_folder.write_environment(folder, facts)
            with journal.Journal(folder) as results:
                for one in rows:
                    results.row(one)
        return str(tmp_path / "outputs")

    return make


def changes(output_dir, *conditions, column="time_us"):
    """The places of the changes of each series, with what is said of them."""
    found = read_history(output_dir, conditions, column)
    return [[(place, series.verdict(one)) for place, one in series.changes.items()] for series in found.series]


def printed(capsys, *words):
    assert main(["history", *words]) == 0
    return capsys.readouterr().out


def test_the_first_commit_from_which_it_is_faster_for_good_is_marked(outputs, capsys):
    runs = [(10.0, "a"), (10.05, "b"), (9.96, "b"), (8.0, "c"), (8.03, "d")]
    out = printed(capsys, "workload=gelu", "impl=triton", f"output_dir={outputs(*([row(*one)] for one in runs))}")
    assert out.splitlines()[0] == "gelu: rows=8 cols=256 dtype=float32"
    assert "gelu triton on NVIDIA H200" in out
    marked = [line for line in out.splitlines() if "◀" in line]
    assert len(marked) == 1
    assert "2025-01-04 10:11:12  cccccccc" in marked[0]
    assert "8 us" in marked[0]
    assert "◀ faster: 0.80x the time" in marked[0]
    assert (
        "changed at cccccccc of 2025-01-04 10:11:12: faster: 0.80x the time "
        "(spread by verify; its sources are the same)" in out
    )


@pytest.mark.parametrize(
    ("times", "places"),
    [
        ([10, 10, 12, 12], [2]),
        ([10, 12, 10, 10], []),  # not a lasting one
        ([10, 12, 10, 12], []),
        ([10, 10, 10, 12], [3]),  # the newest run
        ([10, 12, 12, 12], [1]),
        ([10, 10, 8, 8, 6, 6], [2, 4]),
        ([10, 10.05, 9.97, 10.02], []),
        ([10, 10.15, 10, 10.15], []),
        ([10, 10, 10.2, 12], [3]),  # the third run differs by more than the fourth's spread, not by more than its own
        ([10], []),
        ([10, 0, 12], [2]),  # a call that cannot be told from an empty one is not judged
    ],
)
def test_all_later_runs_differ_from_all_earlier_ones_by_more_than_the_spread(outputs, times, places):
    (found,) = changes(outputs(*([row(float(us), separate=3.0)] for us in times)))
    assert [place for place, _ in found] == places


def test_the_level_before_a_change_is_the_one_since_the_last_change(outputs):
    (found,) = changes(outputs(*([row(us)] for us in (10.0, 10.0, 5.0, 5.0, 2.0))))
    assert found == [(2, "faster: 0.50x the time"), (4, "faster: 0.40x the time")]


def test_the_spread_comes_from_replicas_or_verify_or_runs_of_one_commit_or_nothing_is_marked(outputs, tmp_path):
    def replicas(us, commit):
        return [row(us * (1 + 0.001 * n), commit, None, of=case(replica=n)) for n in range(3)]

    def source(*runs):
        out = outputs(*runs)
        (series,) = read_history(out, []).series
        Path(out).rename(tmp_path / f"{len(list(tmp_path.iterdir()))}")
        return [one.source for one in series.changes.values()] or series.note

    assert source(replicas(10.0, "a"), replicas(12.0, "b")) == ["replicas"]
    assert source([row(10.0)], [row(12.0, "b")]) == ["verify"]
    same = [[row(us, "a", None)] for us in (10.0, 10.1, 9.95, 10.05)]
    assert source(*same, [row(12.0, "b", None)]) == ["runs of one commit"]
    assert source(*same, [row(10.2, "b", None)]) == ""  # not beyond their scatter
    unknown = source([row(10.0, "a", None)], [row(12.0, "b", None)])
    assert unknown.startswith("no change can be marked: how much two runs differ is not known; it takes 3 replicas")
    dirty = [[row(us, "a", None, dirty=True)] for us in (10.0, 10.1, 9.95, 10.05)]
    assert source(*dirty, [row(12.0, "b", None)]).startswith("no change can be marked")  # its files may have differed


def test_equal_runs_are_rarely_called_different_and_a_tenth_is_found():
    """Two separate times of a call differ by less than ``separate_pct`` in 95 of 100 cases: the noise here."""
    chance, separate = random.Random(1), 1.0
    sd = separate / 100 / 1.96 / 2**0.5

    def series(count, step=0.0):
        rows = [
            row(10 * (1 + chance.gauss(0, sd)) * (1 + step * (place >= count // 2)), separate=separate)
            for place in range(count)
        ]
        points = [Point(f"2025-01-01/{n}", [one], one, "a", one.time_us, 0.2) for n, one in enumerate(rows)]
        return Series(case(), "NVIDIA H200", "time_us", points)

    alone = [one for count in (2, 3, 5, 10) for _ in range(100) for one in with_change_points([series(count)])]
    alarms = sum(bool(one.changes) for one in alone)
    assert alarms <= 0.05 * len(alone)
    together = with_change_points([series(4) for _ in range(200)])
    assert sum(bool(one.changes) for one in together) <= 1
    stepped = with_change_points([series(8, step=0.1) for _ in range(50)])
    assert [[*each.changes] for each in stepped] == [[4]] * 50


def test_a_series_is_one_case_on_one_kind_of_device(outputs, capsys):
    def run(us):
        return [
            row(us),
            row(2 * us, of=case(dtype="bfloat16")),
            row(4 * us, of=case("torch")),
            replace(row(5 * us, device="cpu", of=case(cols=8)), metrics={**row(5 * us).metrics, "threads": 4}),
        ]

    out = outputs(run(10.0), [row(10.01, device="NVIDIA H100")], [row(10.02, of=case(samples=80))])
    found = read_history(out, [])
    assert {found.heading(one): len(one.points) for one in found.series} == {
        "gelu cols=256 dtype=float32 triton on NVIDIA H200": 2,  # how many samples is no other case
        "gelu cols=256 dtype=bfloat16 triton on NVIDIA H200": 1,
        "gelu cols=256 dtype=float32 torch on NVIDIA H200": 1,
        "gelu cols=8 dtype=float32 triton on A CPU, 4 threads": 1,
        "gelu cols=256 dtype=float32 triton on NVIDIA H100": 1,
    }
    assert len(read_history(out, ["impl=torch"]).series) == 1
    assert len(read_history(out, ["dtype=float32", "workload.cols=256", "device=NVIDIA H200"]).series) == 2
    assert "one run: nothing to compare" in printed(capsys, "impl=torch", f"output_dir={out}")


def test_a_field_by_which_one_run_has_several_cases_tells_series_apart(outputs):
    both = [row(10.0), row(20.0, of=case(samples=80))]
    found = read_history(outputs([row(10.0)], both, both), [])
    assert {found.heading(one): [point.value for point in one.points] for one in found.series} == {
        "gelu measure.benchmark.samples=800 triton on NVIDIA H200": [10.0, 10.0, 10.0],
        "gelu measure.benchmark.samples=80 triton on NVIDIA H200": [20.0, 20.0],
    }


def test_a_quick_run_is_a_point_of_the_same_series_and_makes_no_change_point(outputs, capsys):
    quick = [row(20.0, of=case(quick=True))]
    out = outputs([row(10.0)], [row(10.02)], quick, [row(8.0, "b")], quick)
    (series,) = read_history(out, []).series
    assert [(point.value, point.quick, point.log is None) for point in series.points] == [
        (10.0, False, False),
        (10.02, False, False),
        (20.0, True, True),
        (8.0, False, False),
        (20.0, True, True),
    ]
    assert [(place, series.verdict(one)) for place, one in series.changes.items()] == [(3, "faster: 0.80x the time")]
    text = printed(capsys, f"output_dir={out}")
    assert [line.endswith("  quick") for line in text.splitlines() if line.startswith("  2025")] == [0, 0, 1, 0, 1]
    assert "○ 2 of 5 runs are not judged: quick" in text
    records = json.loads(printed(capsys, f"output_dir={out}", "--format", "json"))
    assert [record["quick"] for record in records] == [False, False, True, False, True]
    assert [len(one.points) for one in read_history(out, ["quick=true"]).series] == [2]
    assert [len(one.points) for one in read_history(out, ["quick=false"]).series] == [3]
    assert [len(one.points) for one in read_history(out, ["commit=b*,status=ok"]).series] == [1]


def test_what_else_changed_is_said(outputs):
    newer = {**SOURCES, "kernels/gelu/triton.py": "bbb", "torch": "2.9"}
    (series,) = read_history(
        outputs([row(10.0)], [row(8.0, "b", fingerprint=newer, gpu_uuid="GPU-2")]), ["workload=gelu"]
    ).series
    (change,) = series.changes.values()
    assert change.also == "kernels/gelu/triton.py changed, torch 2.8 → 2.9, another GPU of the kind"


def test_uncertain_times_are_shown_and_not_judged(outputs, capsys):
    runs = [[row(10.0)], [row(10.0)], [row(14.0, verdict="contended")], [row(10.0)]]
    out = printed(capsys, f"output_dir={outputs(*runs)}")
    assert NOTHING in out
    assert "○ 1 of 4 runs are not judged: contended" in out
    assert sum("●" in line for line in out.splitlines()) == 3


def test_runs_without_a_time_are_shown_with_their_status(outputs, capsys):
    failed = Row(case=case(), status="error", reason="ValueError: no", device="NVIDIA H200", phase="build")
    out = printed(capsys, f"output_dir={outputs([row(10.0)], [failed], [row(8.0, 'c')])}")
    assert [line.split()[-1] for line in out.splitlines() if line.startswith("  2025-01-02")] == ["error"]
    assert "changed at cccccccc of 2025-01-03 10:11:12: faster" in out


def test_the_commit_is_the_rows_own(outputs, capsys):
    own = row(10.0, "c", dirty=True)
    old = replace(own, metrics={name: value for name, value in own.metrics.items() if name not in ("commit", "dirty")})
    out = printed(capsys, f"output_dir={outputs([own], [old])}")
    shown = [line.split()[2:4] for line in out.splitlines() if line.startswith("  2025")]
    assert [shown[0][0], " ".join(shown[1])] == ["cccccccc*", "no commit"]


def test_another_column_is_judged_by_runs_of_one_commit(outputs):
    latencies = [("a", 5.0), ("a", 5.1), ("a", 4.9), ("b", 9.0), ("b", 9.1)]
    out = outputs(*([row(10.0, commit, latency_us=us, latency_pct=1.0)] for commit, us in latencies))
    assert changes(out, column="latency_us") == [[(3, "slower: 1.81x the time")]]
    assert changes(out, column="time_us") == [[]]
    with pytest.raises(BadInput, match=r"^columns=speedup: it compares cases of one run; "):
        read_history(out, [], "speedup")
    with pytest.raises(BadInput, match=r"^workload=gelu: no run has a figure for wall_us$"):
        read_history(out, ["workload=gelu"], "wall_us")
    with pytest.raises(BadInput, match="no such column 'latency'"):
        read_history(out, [], "latency")


def test_the_formats_have_a_record_per_run(outputs, capsys):
    out = outputs([row(10.0)], [row(8.0, "b")])
    words = ["workload=gelu", f"output_dir={out}"]
    records = json.loads(printed(capsys, *words, "--format", "json"))
    assert [(one["commit"], one["time_us"], one["change"]) for one in records] == [
        ("aaaaaaaa", 10.0, ""),
        ("bbbbbbbb", 8.0, "faster: 0.80x the time"),
    ]
    assert records[1]["low"] < 8.0 < records[1]["high"]
    assert (records[1]["workload.cols"], records[1]["device"], records[1]["spread"]) == (256, "NVIDIA H200", "verify")
    table = list(csv.DictReader(io.StringIO(printed(capsys, *words, "--format", "csv"))))
    assert [one["time_us"] for one in table] == ["10.0", "8.0"]
    assert "| 2025-01-02 10:11:12 | bbbbbbbb | 8 us | 0.2 % | ok | faster: 0.80x the time |" in printed(
        capsys, *words, "--format", "md"
    )


def test_images_are_written(outputs, capsys, tmp_path):
    pytest.importorskip("vl_convert")
    png, svg = tmp_path / "h.png", tmp_path / "h.svg"
    out = f"output_dir={outputs([row(10.0)], [row(8.0, 'b')])}"
    for path in (png, svg):
        assert printed(capsys, out, "--output", str(path)) == ""
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    drawn = svg.read_text()
    assert "faster: 0.80x the time" in drawn
    assert "2025-01-02 10:11:12 bbbbbbbb" in drawn
    assert "●" not in drawn
    assert printed(capsys, out, "--output", str(tmp_path / "h.txt")) == ""
    assert (tmp_path / "h.txt").read_text() == printed(capsys, out)
    with pytest.raises(BadInput, match="cannot be written"):
        command.main([out, "--output", str(svg / "h.svg")])
    with pytest.raises(BadInput, match="--format png is not text; add --output PATH"):
        command.main([out, "--format", "png"])
    (run,) = Path(out.removeprefix("output_dir=")).glob("2025-01-01/*")
    with pytest.raises(BadInput, match="the run has written it"):
        command.main([out, "--output", str(run / "table.md")])


def test_a_page_has_what_changed_a_chart_of_each_case_and_the_table(outputs, capsys, tmp_path):
    pytest.importorskip("vl_convert")
    out = f"output_dir={outputs([row(10.0)], [row(8.0, 'b')])}"
    assert printed(capsys, out, "--output", str(tmp_path / "h.html")) == ""
    text = (tmp_path / "h.html").read_text()
    assert "faster: 0.80x the time" in text
    charts = json.loads(gzip.decompress(base64.b64decode(re.search(r'id="data">(\S+)<', text)[1])))
    (chart,) = charts
    points = chart["spec"]["layer"][0]["data"]["values"]
    assert [(point["run"], point["value"]) for point in points] == [
        ("2025-01-01 10:11:12 aaaaaaaa", 10.0),
        ("2025-01-02 10:11:12 bbbbbbbb", 8.0),
    ]
    assert "<th scope=row" in text
    assert 'href="#environment"' not in text


def test_runs_of_one_second_stay_apart_in_the_image(outputs):
    out = outputs([row(10.0)], [row(10.0)])
    first, second = sorted(Path(out).glob("*/*"))
    second.rename(first.with_name(f"{first.name}-2"))
    found = read_history(out, [])
    (panel,) = history_chart(found)["vconcat"]
    assert len({one["run"] for one in panel["layer"][0]["data"]["values"]}) == 2


def test_names_of_users_cannot_break_a_line(outputs):
    evil = case("file", cols=4)
    evil = replace(evil, impl=Choice("file", {"path": "a\n\x1b[31m<script>.py:f"}))
    found = read_history(outputs([row(10.0, of=evil), row(9.0)]), [])
    text = figure_text(found, 100).plain
    assert "\x1b" not in text


def test_an_encoding_without_lines_gets_plain_signs(outputs):
    found = read_history(outputs([row(10.0)], [row(8.0, "b")], [row(8.1, "b", verdict="contended")]), [])
    text = encodable(figure_text(found, 100).plain, "ascii")
    assert "?" not in text
    assert "< faster: 0.80x the time" in text


def test_the_plot_is_within_its_width_and_noise_does_not_fill_it(outputs):
    found = read_history(outputs([row(10.0)], [row(10.001)], [row(9.999)]), [])
    for width in (20, 80, 400):
        lines = figure_text(found, width).plain.splitlines()
        plots = [line for line in lines if "●" in line]
        assert len({line.index("●") for line in plots}) <= 3
        assert max(map(len, plots)) <= max(width, 80)


def test_a_pattern_names_workloads_and_implementations(outputs):
    out = outputs([row(10.0)], [row(8.0)])
    assert [len(series.points) for series in read_history(out, ["workload=ge*", "impl=tri*"]).series] == [2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["workload=softmax"], "workload=softmax: no row has it; one of: gelu"),
        (["workload=gelu", "impl=tritn"], "impl=tritn: no row has it; did you mean triton? One of: triton"),
        (["cols=7"], "cols=7: no row has it; one of: 256"),
        (["colz=7"], "colz: no such column; did you mean cols? rows.csv has them all"),
        (["gelu"], "gelu: not an argument of history; write workload=gelu impl=triton; one of: "),
        (["output_dir=nowhere"], "nowhere: there is no run; measure something first, or give output_dir=..."),
        (["--colum=x", "--format=yaml"], "argument --format: invalid choice: 'yaml'"),
    ],
)
def test_a_mistake_is_one_line(outputs, capsys, words, message):
    out = outputs([row(10.0)])
    assert main(["history", f"output_dir={out}", *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert shown.err.startswith(f"runner: {message.replace('OUT', out)}")


def test_what_cannot_be_read_is_left_out_and_said(outputs, capsys):
    out = outputs([row(10.0)], [row(10.0)], [row(10.0)])
    folders = sorted(Path(out).glob("*/*"))
    newer = folders[0] / journal.NAME
    newer.write_text(newer.read_text().replace('"format":1', '"format":99'))
    with open(folders[1] / journal.NAME, "a") as file:
        file.write('{"record":"row","case":{"workload":{"name":"gelu"},"impl":{"name":"triton"}},"key":"x"\n')
    assert main(["history", "workload=gelu", "impl=triton", f"output_dir={out}"]) == 0
    shown = capsys.readouterr()
    assert sum("●" in line for line in shown.out.splitlines()) == 2
    first, second = shown.err.splitlines()
    assert first.startswith(f"runner: left out: {folders[0]}: this run has format 99")
    assert second == "runner: left out: records that are damaged or cut off: 1"


def test_it_reads_only_and_needs_no_torch(outputs):
    out = outputs([row(10.0)], [row(8.0, "b")])
    before = {path: path.read_bytes() for path in Path(out).rglob("*") if path.is_file()}
    script = (
        "import sys; from runner.cli import main; code = main(sys.argv[1:]); sys.exit(code or 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "history", f"output_dir={out}"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert before == {path: path.read_bytes() for path in Path(out).rglob("*") if path.is_file()}
