"""Runs held against each other: which cases are the same, what a conclusion needs, and what the command prints."""

from __future__ import annotations

import csv
import io
import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
from rich.text import Text

from runner.cli import main
from runner.findings.differences import differences
from runner.findings.ratios import bounds, separate_ratio
from runner.findings.run import Run
from runner.findings.run_comparison import compare_runs, compare_values
from runner.records.case import CaseRecord, Choice
from runner.records.paired_rounds import PairedRounds
from runner.records.plan import Plan
from runner.records.row import Row
from runner.records.settings import Settings
from runner.store import run_folder
from runner.store.journal import Journal
from runner.timing.statistics import T_975

BENCHMARK = {"cold_l2": True, "buffer_sets": 10, "samples": 800}


def a_case(impl="triton", *, cols=8, seed=0, device="cuda", options=None, benchmark=None, replica=0, **workload):
    measure = Choice("benchmark", BENCHMARK | (benchmark or {}))
    fields = {"cols": cols, **workload}
    return CaseRecord(
        Choice("gelu", fields), Choice(impl, options or {}), (measure,), Settings(device, seed), replica=replica
    )


def timed(case, us, *, percent=0.3, **metrics):
    usual = {"converged": True, "samples": 800, "instrument": "graph_timestamps", "stat_pct": percent, "correct": True}
    column = "wall_us" if case.settings.device == "cpu" else "gpu_us"
    found = {column: us, "interval_pct": percent, "verdict": "ok", **usual, "gpu_uuid": "GPU-1"} | metrics
    return Row(case=case, status="ok", device="cpu" if case.settings.device == "cpu" else "NVIDIA H200", metrics=found)


def failed(case, status="error", reason="ValueError: no"):
    return Row(case=case, status=status, reason=reason, metrics={"correct": False} if status == "wrong" else {})


def a_run(rows, rounds=(), **facts):
    plan = Plan(cases=tuple(row.case for row in rows), name="gelu")
    return Run(Path("outputs/2025-01-31/10-11-12-gelu"), plan, rows, rounds, sessions=[facts] if facts else [])


def processes(times, **fields):
    return [timed(a_case(replica=at, **fields), us) for at, us in enumerate(times)]


def only_pair(a, b):
    (pair,) = compare_runs([a_run(a), a_run(b)], "AB")[0].pairs
    return pair


def draws(seed, count, sd):
    """``count`` runs of one case that take 100 us, with this standard deviation (a share) between processes."""
    random_number = random.Random(seed)
    return [100 * math.exp(random_number.gauss(0, sd)) for _ in range(count)]


def test_equal_cases_whose_processes_differ_by_more_than_their_intervals_are_not_called_different():
    """By their own intervals of 0.3 %, nearly all of these hundred pairs would be called different."""
    pairs, alone = [], []
    for seed in range(100):
        a, b = (processes(draws(seed + start, 3, 0.03)) for start in (0, 1000))
        pairs.append(only_pair(a, b))
        alone.append(separate_ratio(b[0], a[0]).word)
    assert {(pair.source, pair.processes) for pair in pairs} == {("replicas", (3, 3))}
    assert sum(word in ("faster", "slower") for word in alone) > 80
    assert sum(pair.word in ("faster", "slower") for pair in pairs) <= 5  # each pair is a table of its own


def test_five_percent_is_found_where_processes_differ_by_one():
    found = [
        only_pair(processes(draws(seed, 5, 0.01)), processes([1.05 * us for us in draws(100 + seed, 5, 0.01)]))
        for seed in range(20)
    ]
    assert [pair.word for pair in found].count("slower") >= 18
    assert "faster" not in [pair.word for pair in found]
    inside = [low <= 1.05 <= high for low, high in (bounds(pair.ratio) for pair in found)]
    assert inside.count(True) >= 17


@pytest.mark.parametrize(
    ("mine", "theirs", "word", "source"),
    [
        ({"separate_pct": 1.0}, {"separate_pct": 1.0}, "slower", "verify"),
        ({"separate_pct": 1.0}, {"separate_pct": 8.0}, "unclear", "verify"),  # the larger of both counts
        ({"separate_pct": 1.0}, {}, "unclear", "unknown"),
        ({}, {}, "unclear", "unknown"),
    ],
)
def test_one_process_each_needs_the_certificates_of_both(mine, theirs, word, source):
    pair = only_pair([timed(a_case(), 100.0, **mine)], [timed(a_case(), 105.0, **theirs)])
    assert (pair.word, pair.source) == (word, source)
    assert bool(pair.doubt) == (source == "unknown") == (bounds(pair.ratio) is None)
    assert pair.ratio.log == pytest.approx(math.log(1.05))


@pytest.mark.parametrize("times", [(0.0, 0.0, 30.0), (0.0, 10.0, 10.1)])
def test_a_replica_with_a_time_of_0_has_no_spread(times):
    pair = only_pair(processes((10.0, 10.1, 10.2)), processes(times))
    assert (pair.word, pair.source, pair.doubt) == (
        "unclear",
        "unknown",
        "one replica cannot be told from an empty call in B",
    )


def test_two_processes_are_too_few_for_a_spread():
    assert only_pair(processes([100.0, 100.1]), processes([105.0, 105.1, 105.2])).source == "unknown"


@pytest.mark.parametrize(
    ("figures", "doubt"),
    [
        ({"verdict": "contended"}, "contended in B"),
        ({"verdict": "not_converged", "converged": False}, "not converged in B"),
        (
            {"verdict": "not_converged", "converged": False, "verdict_reason": "the time drifts by +4.0 %"},
            "drifting in B",
        ),
        ({"samples": 9}, "9 samples, fewer than 10 in B"),
        ({"verdict": "impossible"}, "impossible in B"),
    ],
)
def test_an_uncertain_time_has_no_conclusion_whatever_is_known_of_the_spread(figures, doubt):
    certified = {"separate_pct": 0.1}
    pair = only_pair([timed(a_case(), 100.0, **certified)], [timed(a_case(), 150.0, **certified | figures)])
    assert (pair.word, pair.source, pair.doubt) == ("unclear", "unknown", doubt)
    one, *others = processes([150.0, 150.1, 150.2])
    uncertain = replace(one, metrics={**one.metrics, **figures})
    assert only_pair(processes([100.0, 100.1, 100.2]), [uncertain, *others]).doubt == doubt


@pytest.mark.parametrize("count", [1, 3, pytest.param(5, marks=pytest.mark.long)])
def test_two_hundred_equal_cases_have_hardly_a_false_word(count):
    """One of ten tables of 200 pairs may have a word by chance, at 5 % for the whole table."""
    generator, tables, separate = random.Random(count), 10, 100 * T_975[9] * math.sqrt(2) * 0.01
    false = 0
    for _ in range(tables):
        runs = []
        for _ in range(2):
            rows = [
                timed(a_case(cols=cols, replica=at), 50 * math.exp(generator.gauss(0, 0.01)), separate_pct=separate)
                for cols in range(200)
                for at in range(count)
            ]
            runs.append(a_run(rows))
        words = [pair.word for pair in compare_runs(runs, "AB")[0].pairs]
        assert len(words) == 200
        false += any(word in ("faster", "slower") for word in words)
    assert false <= 1


def test_the_words_of_all_runs_of_a_table_are_corrected_together():
    """A difference that stands alone does not stand beside 400 others."""
    rows = [timed(a_case(cols=cols), 100.0, separate_pct=1.0) for cols in range(400)]
    slower = [timed(a_case(cols=0), 101.8, separate_pct=1.0)]
    assert compare_runs([a_run(rows), a_run(slower)], "AB")[0].pairs[0].word == "slower"
    found = compare_runs([a_run(rows), a_run(slower), a_run(rows)], "ABC")
    assert [(one.reference, one.name) for one in found] == [("A", "B"), ("A", "C")]
    assert found[0].pairs[0].word == "unclear"


def matched(mine, theirs):
    """How many pairs there are, and why cases are left out."""
    found = compare_runs([a_run(mine), a_run(theirs)], "AB")[0]
    return len(found.pairs), [left.doubt for left in found.left_out]


def test_what_only_says_how_exactly_to_measure_may_differ():
    case, like_it = a_case(device="cuda"), a_case(device="auto", benchmark={"samples": 80})
    other = replace(timed(like_it.with_settings(quick=True, time_wrong=True), 1.0), device="NVIDIA H100 80GB HBM3")
    assert matched([timed(case, 1.0)], [other]) == (1, [])


@pytest.mark.parametrize(
    ("case", "reasons"),
    [
        (a_case(cols=16), ["only in A", "only in B"]),
        (a_case("torch"), ["only in A", "only in B"]),
        (a_case(seed=1), ["only in A: seed is 0 in A, 1 in B", "only in B: seed is 0 in A, 1 in B"]),
        (
            a_case(form="tanh"),
            [f"only in {side}: workload.form is tanh in B alone" for side in "AB"],
        ),
        (
            a_case(benchmark={"cold_l2": False}),
            [f"only in {side}: measure.benchmark.cold_l2 is true in A, false in B" for side in "AB"],
        ),
    ],
)
def test_other_cases_are_left_out_and_the_reason_says_how_they_differ(case, reasons):
    assert matched([timed(a_case(), 1.0)], [timed(case, 1.0)]) == (0, reasons)


def test_on_a_cpu_the_settings_of_a_gpu_do_not_count():
    mine, theirs = a_case(device="cpu"), a_case(device="cpu", benchmark={"cold_l2": False})
    assert matched([timed(mine, 1.0)], [timed(theirs, 1.0)]) == (1, [])


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_else_is_measured_makes_no_other_case(device):
    case = a_case(device=device)
    more = replace(case, measures=(*case.measures, Choice("profile", {"cold_l2": True}), Choice("memory", {})))
    assert matched([timed(case, 1.0)], [timed(more, 1.0)]) == (1, [])


def test_cases_of_another_kind_of_device_are_others():
    count, reasons = matched([timed(a_case(device="cpu"), 1.0)], [timed(a_case(), 1.0)])
    assert (count, len(reasons)) == (0, 2)
    assert "device is cpu in A, cuda in B" in reasons[0]


@pytest.mark.parametrize(
    ("mine", "theirs", "reason"),
    [
        (timed(a_case(), 1.0), failed(a_case()), "error in B: ValueError: no"),
        (failed(a_case()), failed(a_case()), "error in A and B: ValueError: no"),
        (failed(a_case(), "wrong", "far off"), timed(a_case(), 1.0), "wrong in A: far off"),
        (timed(a_case(), 1.0, verdict="wrong"), timed(a_case(), 1.0), "wrong in the timed calls in A"),
        (timed(a_case(), 0.0), timed(a_case(), 1.0), "a time of 0 in A"),
        (
            timed(a_case(), 1.0),
            timed(a_case(), 1.0, instrument="cuda_events"),
            "timed by graph_timestamps in A and by cuda_events in B",
        ),
    ],
)
def test_cases_without_comparable_times_are_left_out_by_name(mine, theirs, reason):
    found = compare_runs([a_run([mine]), a_run([theirs])], "AB")[0]
    assert not found.pairs
    (left,) = found.left_out
    assert (left.problem, left.implementation, left.doubt) == ("gelu", "triton", reason)


def test_cases_of_one_run_that_differ_in_how_exactly_they_are_measured_are_told_apart():
    few, many = (a_case(benchmark={"samples": count}) for count in (80, 800))
    both = [timed(few, 1.0), timed(many, 2.0)]
    found = compare_runs([a_run(both), a_run(both)], "AB")[0]
    names = [f"gelu measure.benchmark.samples={count} triton" for count in (80, 800)]
    assert [(pair.name, pair.ratio.log) for pair in found.pairs] == [(name, 0.0) for name in names]
    found = compare_runs([a_run(both), a_run([timed(few, 1.0)])], "AB")[0]
    assert [pair.name for pair in found.pairs] == names[:1]
    assert [(pair.name, pair.doubt) for pair in found.left_out] == [(names[1], "only in A")]


def file_case(path, **fields):
    return a_case("file", options={"path": path}, **fields)


def test_a_function_in_another_folder_is_the_same_if_it_is_the_only_one_of_its_name():
    mine, theirs = [timed(file_case("old/k.py:f"), 1.0)], [timed(file_case("new/k.py:f"), 1.0)]
    assert matched(mine, theirs) == (1, [])
    assert differences(a_run(mine), a_run(theirs)) == ["file: old/k.py:f in A, new/k.py:f in B"]
    assert matched(mine, [timed(file_case("new/k.py:g"), 1.0)])[0] == 0
    assert matched(mine, [*theirs, timed(file_case("newer/k.py:f"), 1.0)])[0] == 0


def test_a_git_revision_is_the_one_that_was_typed():
    rows = [[timed(a_case(options={"rev": f"main@{digit * 40}"}), 1.0)] for digit in "12"]
    assert matched(*rows) == (1, [])
    reason = "several cases differ only in the commit of their revision"  # the branch moved, and the run was resumed
    assert matched([*rows[0], *rows[1]], rows[1]) == (0, [reason] * 2)


def test_what_differs_between_the_environments_is_said():
    worker = {"cpu": "AMD EPYC", "gpu": {"driver": "580.1"}}
    mine = {"hostname": "one", "packages": {"torch": "2.12.0", "triton": "3.6.0"}, "worker": worker}
    theirs = {
        **mine,
        "packages": {"torch": "2.13.0", "triton": "3.6.0"},
        "worker": {**worker, "gpu": {"driver": "590.2"}},
    }
    theirs["worker"].pop("cpu")
    rows = [timed(a_case(), 1.0, sm_clock_mhz=1980.0), timed(a_case("torch"), 1.0, sm_clock_mhz=1970.0)]
    others = [
        replace(row, device="NVIDIA H100", metrics={**row.metrics, "gpu_uuid": "GPU-2", "sm_clock_mhz": 1755.0})
        for row in rows
    ]
    digests = [{"kernels/gelu/triton.py": text, "models/gelu.py": "same", "torch": text} for text in "ab"]
    sides = [
        [replace(row, fingerprint=digest) for row in some] for some, digest in zip((rows, others), digests, strict=True)
    ]
    assert differences(a_run(sides[0], **mine), a_run(sides[1], **theirs)) == [
        "GPU: NVIDIA H200 in A, NVIDIA H100 in B",
        "card: GPU-1 in A, GPU-2 in B",
        "driver: 580.1 in A, 590.2 in B",
        "CPU: AMD EPYC in A, none known in B",
        "torch: 2.12.0 in A, 2.13.0 in B",
        "clock of the multiprocessors (median): 1.975 GHz in A, 1.755 GHz in B",
        "sources that differ: kernels/gelu/triton.py",
    ]
    assert differences(a_run(rows, **mine), a_run(rows, **mine)) == []


def test_inputs_settings_replicas_and_threads_that_differ_are_said():
    mine = [timed(a_case(device="cpu"), 1.0, threads=1)]
    theirs = processes([1.0, 1.0], device="cpu", benchmark={"samples": 80})
    theirs = [replace(row, metrics={**row.metrics, "threads": 4}) for row in theirs]
    others = [timed(a_case(device="cpu", seed=5), 1.0, threads=1)]
    assert differences(a_run(mine), a_run(theirs)) == [
        "CPU threads: 1 in A, 4 in B",
        "processes per case: 1 in A, 2 in B",
        "measure.benchmark.samples: 800 in A, 80 in B",
    ]
    assert differences(a_run(mine), a_run(others)) == ["seed: 0 in A, 5 in B"]


def by_dtype(**more):
    return [
        timed(a_case(impl, cols=cols, dtype=dtype, **more), us * cols, separate_pct=0.5)
        for impl, us in (("torch", 1.0), ("triton", 0.9))
        for cols in (8, 16)
        for dtype, us in (("float32", 2 * us), ("bfloat16", us))
    ]


@pytest.mark.parametrize("field", ["dtype", "workload.dtype"])
def test_cases_that_differ_in_one_field_alone_are_paired(field):
    (found,) = compare_values(a_run(by_dtype()), field)
    assert (found.reference, found.name, found.left_out) == ("float32", "bfloat16", [])
    assert {(pair.problem, pair.implementation) for pair in found.pairs} == {
        (f"gelu cols={cols}", impl) for cols in (8, 16) for impl in ("torch", "triton")
    }
    assert {(pair.word, pair.source) for pair in found.pairs} == {("faster", "verify")}
    (turned,) = compare_values(a_run(by_dtype()), field, "bfloat16")
    assert {pair.word for pair in turned.pairs} == {"slower"}


def test_paired_rounds_are_used_where_the_run_has_them():
    cases = [a_case("compiled", options={"mode": mode}) for mode in ("default", "max-autotune")]
    rows = [timed(case, us, verdict="contended") for case, us in zip(cases, (10.0, 15.0), strict=True)]
    batches = {
        case.key: [us + 1e-3 * (at % 2) for at in range(10)] for case, us in zip(cases, (10.0, 8.0), strict=True)
    }
    rounds = PairedRounds(batches_us=batches, instruments={case.key: "graph_timestamps" for case in cases})
    (found,) = compare_values(a_run([*rows, timed(a_case("torch"), 9.0)], [rounds]), "impl.mode")
    assert [(left.implementation, left.doubt) for left in found.left_out] == [("torch", "no field impl.mode")]
    (pair,) = found.pairs
    assert (pair.word, pair.source) == ("faster", "paired rounds")
    assert math.exp(pair.ratio.log) == pytest.approx(0.8, rel=1e-3)
    assert pair.row.time_us / pair.reference.time_us == pytest.approx(math.exp(pair.ratio.log))
    far = [rows[0], timed(cases[1], 40.0, verdict="contended")]
    (pair,) = compare_values(a_run(far, [rounds]), "impl.mode")[0].pairs
    assert (pair.word, pair.source) == ("unclear", "unknown")
    assert pair.doubt.startswith("1.25x as fast in paired rounds, 0.250x by separate times")


def test_the_working_tree_is_a_revision_too():
    main = a_case(options={"rev": f"main@{'0a' * 20}"})
    (found,) = compare_values(
        a_run([timed(main, 2.0, separate_pct=0.1), timed(a_case(), 1.0, separate_pct=0.1)]), "rev"
    )
    assert (found.reference, found.name) == ("main", "worktree")
    assert [pair.word for pair in found.pairs] == ["faster"]


def test_other_fields_than_those_of_a_workload_and_copies():
    rows = [timed(a_case(seed=seed), 1.0 + seed, separate_pct=0.1) for seed in (0, 1)]
    assert compare_values(a_run(rows), "seed")[0].pairs[0].word == "slower"
    kinds = [timed(a_case(device="cpu"), 50.0), timed(a_case(), 1.0)]
    assert compare_values(a_run(kinds), "device")[0].pairs[0].source == "unknown"
    squares = [timed(a_case(cols=size, size=size), float(size), separate_pct=0.1) for size in (8, 16, 32)]
    found = compare_values(a_run(squares), "size")
    assert [(one.name, len(one.pairs)) for one in found] == [("16", 1), ("32", 1)]


def folder(tmp_path, name, rows, **facts):
    """The folder of a run, as the runner leaves it."""
    found = tmp_path / "outputs" / "2025-01-31" / f"10-11-12-{name}"
    found.mkdir(parents=True)
    run_folder.write_environment(found, {"started": "2025-01-31T10:11:12+0000", **facts})
    with Journal(found) as journal:
        journal.begin()
        for row in rows:
            journal.row(row)
    return str(found)


@pytest.fixture
def two(tmp_path):
    """Two runs: B is slower at one size, and has other sizes and a failure."""
    mine = [timed(a_case(cols=cols), 10.0 * cols, separate_pct=0.5) for cols in (8, 16, 32)]
    theirs = [timed(a_case(cols=8), 88.0, separate_pct=0.5), timed(a_case(cols=16), 160.0, separate_pct=0.5)]
    theirs += [failed(a_case(cols=32)), timed(a_case(cols=64), 640.0)]
    packages = ({"packages": {"torch": version}} for version in ("2.12.0", "2.13.0"))
    return [
        folder(tmp_path, name, rows, **facts) for name, rows, facts in zip("ab", (mine, theirs), packages, strict=True)
    ]


def test_the_command_says_what_differs_then_the_table_then_what_is_left_out(two, capsys):
    assert main(["compare", *two]) == 0
    text = capsys.readouterr().out
    order = [
        f"A: {two[0]}, 2025-01-31 10:11, NVIDIA H200",
        "torch: 2.12.0 in A, 2.13.0 in B",
        "gelu cols=8",
        "triton            80 us    88 us   1.100   0.7 %   slower",
        "spread from verify (2): two times of one call",
        "corrected for 2 comparisons",
        "left out, error in B: ValueError: no: gelu cols=32 triton",
        "left out, only in B: gelu cols=64 triton",
        "2 compared: 1 slower, 1 same; 2 left out",
    ]
    places = [text.find(line) for line in order]
    assert -1 not in places, text
    assert places == sorted(places), text


def test_other_formats_have_the_same(two, capsys, tmp_path):
    assert main(["compare", *two, "--format", "json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [record.get("word") or record["left_out"] for record in records] == [
        "slower",
        "same",
        "error in B: ValueError: no",
        "only in B",
    ]
    assert records[0]["ratio_low"] < records[0]["ratio"] < records[0]["ratio_high"]
    out = tmp_path / "found.csv"
    assert main(["compare", *two, "--words", "same", "--output", str(out)]) == 0
    lines = list(csv.DictReader(io.StringIO(out.read_text())))
    assert [(line["workload.cols"], line["word"]) for line in lines] == [("16", "same"), ("32", ""), ("64", "")]
    assert main(["compare", *two, "--format", "md", "--where", "cols=8"]) == 0
    page = capsys.readouterr().out
    assert "| triton | 80 us | 88 us | 1.100 | 0.7 % | slower |" in page
    assert "cols=16" not in page


def test_three_runs_stand_beside_each_other_or_below_if_it_is_narrow(two, tmp_path, capsys, monkeypatch):
    third = folder(tmp_path, "c", [timed(a_case(cols=8), 72.0, separate_pct=0.5)])
    assert main(["compare", *two, third]) == 0
    wide = capsys.readouterr().out
    assert "1.100 ±0.7 % slower   0.900 ±0.7 % faster" in wide
    out = tmp_path / "found.txt"
    assert main(["compare", *two, third, "--output", str(out), "--words", "faster"]) == 0
    assert "cols=16" not in out.read_text().partition("ratio: time")[0]
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "64")
    assert main(["compare", *two, third]) == 0
    narrow = Text.from_ansi(capsys.readouterr().out).plain
    table = narrow[narrow.index("implementation") : narrow.index("spread from")]
    assert [line.split()[-2:] for line in table.splitlines() if "implementation" in line] == [["B", "is"], ["C", "is"]]
    assert max(map(len, table.splitlines())) <= 64


def test_the_command_with_a_field_of_one_run(tmp_path, capsys):
    run = folder(tmp_path, "types", by_dtype())
    assert main(["compare", run, "--by", "dtype"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("bfloat16 compared with float32 (dtype)\n")
    assert "4 compared: 4 faster; 0 left out" in text


def test_a_damaged_journal_is_read_as_far_as_it_can_be(two, capsys):
    with open(Path(two[1]) / "rows.jsonl", "a", encoding="utf-8") as journal:
        journal.write('{"record":"row","case"')
    assert main(["compare", *two]) == 0
    said = "1 record of its journal cannot be read: damaged or cut off"
    assert capsys.readouterr().err == f"runner: {two[1]}: {said}\n"


MISTAKES = {
    "no run": ([], "give two runs or more"),
    "one run": (["{a}"], "give two runs or more"),
    "twice the same": (["{a}", "{a}/"], "a run is given twice"),
    "no such folder": (["{a}", "nowhere"], "nowhere: there is no such folder"),
    "by with two": (["{a}", "{b}", "--by", "dtype"], "--by compares the cases of one run"),
    "a reference of runs": (["{a}", "{b}", "--reference", "A"], "--reference names a value of the field of --by"),
    "an unknown field": (["{a}", "--by", "colls"], "--by colls: no such field varies in this run; did you mean cols?"),
    "a constant field": (["{a}", "--by", "seed"], "--by seed: seed is 0 in all cases"),
    "an unknown value": (["{a}", "--by", "cols", "--reference", "9"], "workload.cols has no such value"),
    "an unknown word": (["{a}", "{b}", "--words", "slow"], "'slow' is not a conclusion; did you mean slower?"),
    "an override": (["{a}", "{b}", "columns=time_us"], "columns: not an argument of compare; "),
    "over a file of a run": (["{a}", "{b}", "--output", "{a}/rows.csv"], "the run has written it; give another path"),
    "no time": (["{a}", "{failed}"], "it holds no time to compare (1 case: 1 error)"),
    "a newer format": (["{a}", "{newer}"], "this version of the runner reads format 1; update the runner"),
}


@pytest.mark.parametrize(("words", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_line_and_exit_code_2(two, tmp_path, capsys, words, message):
    names = {"a": two[0], "b": two[1], "failed": folder(tmp_path, "failed", [failed(a_case())])}
    names["newer"] = folder(tmp_path, "newer", [timed(a_case(), 1.0)])
    journal = Path(names["newer"]) / "rows.jsonl"
    journal.write_text(journal.read_text().replace('"format":1', '"format":99'))
    assert main(["compare", *(word.format(**names) for word in words)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
