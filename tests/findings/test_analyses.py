"""The conclusion of an experiment: analyses of rows, where they are printed, and what mistakes are refused."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import pytest

from runner.cli import report, show
from runner.findings.conclusion import analyses, answers, check, conclude
from runner.findings.past import read_run
from runner.findings.run import Run
from runner.records.bad_input import BadInput
from runner.records.case import Choice
from runner.records.paired_rounds import PairedRounds
from runner.records.plan import Plan
from runner.records.row import Row
from runner.store import journal, run_folder

ROOT = Path(__file__).resolve().parents[2]


def run_of(rows, conclusion=(), rounds=()):
    plan = Plan(cases=tuple(row.case for row in rows), name="x", conclusion=tuple(conclusion))
    return Run(Path(), plan, rows, rounds)


@pytest.fixture
def answer(made):
    """``answer(rows, "growth", over=...)``: what that analysis says of the rows."""

    def asked(rows, name, rounds=(), **fields):
        return answers(run_of(rows, [Choice(name, fields)], rounds))

    return asked


@pytest.fixture
def sizes(made):
    """Rows of matmul whose time is flat at first and then grows with the third power."""

    def rows(**more):
        found = []
        for size, us in {64: 10.0, 128: 10.0, 256: 12.0, 512: 96.0, 1024: 768.0, 2048: 6144.0}.items():
            one = made.case("matmul", "torch", {"size": size, "m": size, "dtype": "float32"})
            found.append(made.timed(one, us, threads=1, interval_pct=0.2, **more))
        return found

    return rows


def test_growth_finds_where_a_time_is_flat_and_its_exponent(answer, sizes):
    (said,) = answer(sizes(), "growth", over="workload.size")
    assert said.startswith("matmul torch: from size=256 to 2048, time grows as size^3.00 (95 % interval 3.00 to 3.0")
    assert said.endswith("below, the exponents between neighbors are 0.00, 0.26, so it is flat up to size=256.")


def test_growth_tells_the_cost_of_one_more(answer, made):
    rows = [made.timed(made.case("mlp", "torch", {"steps": n}), 100.0 * n + 10, interval_pct=0) for n in (2, 3, 4, 5)]
    (said,) = answer(rows, "growth", over="workload.steps")
    assert "grows as steps^0.9" in said
    assert re.search(r"one more costs 100 us( \(± \S+ us\))?\.$", said)


def test_ranking_tells_each_gain_with_its_interval(answer, made):
    fields = {"rows": 8, "cols": 8, "dtype": "float32"}
    times = {"naive": 400.0, "torch": 100.0, "triton": 100.1}
    sure = {"samples": 20, "converged": True}
    rows = [made.timed(made.case("gelu", impl, fields), us, **sure) for impl, us in times.items()]
    (said,) = answer(rows, "ranking")
    assert said.startswith("gelu: naive 400 us; triton 100.1 us, 4.00x as fast (")
    assert "; torch 100 us, not told apart. From the first to the last: 4.00x as fast" in said


def test_ends_tells_where_an_implementation_is_out_of_memory_and_why(answer, made):
    cases = [made.case("attention", impl, {"length": n}) for impl in ("naive", "triton") for n in (1024, 4096, 8192)]
    rows = [made.timed(one, 3.0) for one in cases]
    for place in (1, 2):
        rows[place] = Row(case=cases[place], status="oom", reason="needs at least 512 MiB")
    assert answer(rows, "ends", over="workload.length") == [
        "attention naive: right up to length=1024; at 4096 oom: needs at least 512 MiB.",
        "attention triton: right up to length=8192; the largest here.",
    ]


def test_bend_tells_latency_rate_and_where_they_meet(answer, made):
    times = {1024: 10.0, 2**20: 20.0, 2**30: 4000.0}
    rows = [made.timed(made.case("all_reduce", "torch", {"bytes": size}), us) for size, us in times.items()]
    (said,) = answer(rows, "bend", over="workload.bytes")
    assert said == "all_reduce torch: 10 us at bytes=1024, 268 GB/s at 1073741824; the curve bends at about 2.56 MiB."


def test_effect_compares_the_values_of_a_field(answer, made):
    rows = [made.timed(made.case("mlp", "torch", {"print_loss": on}), us) for on, us in ((False, 100.0), (True, 150.0))]
    (said,) = answer(rows, "effect", field="workload.print_loss")
    assert said == "mlp torch: time is 100 us at print_loss=false; 150 us at true, 1.50x (1.48x to 1.52x)."


def test_effect_leaves_out_who_does_not_depend_on_the_field(answer, made):
    made_rows = [(impl, group) for impl in ("unquantized", "triton") for group in (0, 128)]
    rows = [made.timed(made.case("linear_int8", impl, {"group": group}), 100.0) for impl, group in made_rows]
    (said,) = answer(rows, "effect", field="workload.group", without="unquantized")
    assert said.startswith("linear_int8 triton: time is 100 us at group=0")


def test_orders_tells_where_another_figure_ranks_otherwise(answer, made):
    case, fields, sure = made.case, {"cols": 8}, {"samples": 20, "converged": True}
    rows = [
        made.timed(case("gelu", "torch", fields), 100.0, host_us=200.0, **sure),
        made.timed(case("gelu", "triton", fields), 90.0, host_us=300.0, **sure),
    ]
    first, second, missing = answer(rows, "orders", columns=("time_us", "host_us", "latency_us"))
    assert first == "gelu: by time triton < torch."
    assert second.startswith("gelu: by host_us torch < triton: triton and torch change places. Beside time: ")
    assert second.endswith(": torch +100 us, triton +210 us.")
    assert missing == "latency_us is not measured on a CPU."
    rows = [replace(row, metrics={**row.metrics, "peak_mem_bytes": 8 * place}) for place, row in enumerate(rows, 1)]
    _, second = answer(rows, "orders", columns=("time_us", "peak_mem_bytes"))
    assert second == "gelu: by peak_mem_bytes torch < triton: triton and torch change places."


@pytest.mark.parametrize("name", ["growth", "effect", "orders"])
def test_a_column_of_words_has_no_answer(answer, sizes, name):
    fields = {"columns": ("time_us", "verdict")} if name == "orders" else {"column": "verdict"}
    fields |= {"growth": {"over": "workload.size"}, "effect": {"field": "workload.size"}}.get(name, {})
    (said,) = answer(sizes(), name, **fields)
    assert said.startswith("verdict is not a number, so there is no ")


def test_waits_tells_who_computes_nothing_and_what_is_hidden(answer, made):
    idle = {"profile_ranks_idle": "rank 0 2.4 ms, rank 1 12 us", "profile_ranks_idle_pct": 24.6}
    case, fields = made.case, {"ranks": 2}
    rows = [
        made.timed(case("ring_attention", "ring", fields), 9.0, **idle, profile_overlap_pct=31.4),
        made.timed(case("ring_attention", "torch", fields), 9.0, **idle, profile_overlap_pct=None),
    ]
    began = "without computation: rank 0 2.4 ms, rank 1 12 us, 25 % of a call in the mean"
    assert answer(rows, "waits") == [
        f"ring_attention ring: {began}; 31 % of the time of collectives is hidden.",
        f"ring_attention torch: {began}; no collective ran.",
    ]


def test_passes_compares_times_with_the_traffic_of_each_step(answer, made):
    rows = [made.timed(made.case("softmax", impl, {"cols": 8}), us) for impl, us in (("naive", 80.0), ("torch", 20.0))]
    (said,) = answer(rows, "passes", impl="naive", steps=("sub", "exp"), passes=(3, 5))
    assert said.startswith(
        "softmax: naive makes 8 passes over memory, 4.0 times the minimum traffic; the fastest, torch,"
    )


def test_parts_are_those_of_the_baseline_and_add_up_to_a_call(answer, made):
    columns = {"profile_forward_us": 30.0, "profile_norms_us": 20.0, "profile_loss_us": 70.0}
    rows = [
        made.timed(made.case("mlp", impl, {}), us, profile_optimizer_step_us=8.0, **columns)
        for impl, us in (("torch", 100.0), ("triton", 50.0))
    ]
    said = "norms 20 us (20 %), loss 70 us (70 %), optimizer_step 8 us (8 %); together 98.0 % of its time."
    assert answer(rows, "parts") == [f"mlp torch: {said}"]
    (said,) = answer(rows[1:], "parts")
    assert said.endswith("together 196.0 % of its time, so torch.profiler's calls took longer than benchmark's.")


@pytest.mark.parametrize("verdict", ["contended", "fallback"])
def test_contended_times_have_no_exponent(answer, sizes, verdict):
    rows = sizes(samples=20, converged=True)
    doubted = [replace(row, metrics={**row.metrics, "verdict": verdict}) for row in rows]
    (said,) = answer(doubted, "growth", over="workload.size")
    assert said == f"matmul torch: no exponent of time over size: 6 of 6 times are {verdict}."
    (said,) = answer([*doubted[:4], *rows[4:]], "growth", over="workload.size")
    assert said == f"matmul torch: no exponent of time over size: 4 of 6 times are {verdict}."
    (said,) = answer([doubted[0], *rows[1:]], "growth", over="workload.size")
    assert "grows as size^3.00" in said
    assert said.endswith(f"so it is flat up to size=256. Left out, since {verdict}: size=64.")


def test_times_that_allow_any_exponent_have_none(answer, sizes):
    rows = [replace(row, metrics={**row.metrics, "interval_pct": 400.0}) for row in sizes()]
    (said,) = answer(rows, "growth", over="workload.size")
    assert said.startswith("matmul torch: no exponent of time over size: its 95 % interval would be ")
    small = [replace(row, metrics={**row.metrics, "interval_pct": 400.0}) for row in rows[:2]]
    (said,) = answer([*small, *sizes()[2:]], "growth", over="workload.size")
    assert "grows as size^3.00" in said
    assert "flat" not in said
    assert said.endswith("below, the times are too uncertain for an exponent.")


def test_an_exponent_is_no_more_certain_than_its_times(answer, made):
    """Four times that happen to lie on a line."""
    rows = [made.timed(made.case("mlp", "torch", {"steps": n}), 100.0 * n, interval_pct=20.0) for n in (2, 4, 8, 16)]
    (said,) = answer(rows, "growth", over="workload.steps")
    low, high = map(float, re.search(r"95 % interval (\S+) to (\S+)\)", said).groups())
    assert low < 0.9 < 1.1 < high


def test_the_ranking_uses_the_times_and_the_words_of_the_table(answer, made):
    """Separate times of one order, paired ones of another; and a wide interval is no factor."""
    fields = {"rows": 8, "cols": 8, "dtype": "float32"}
    times = {"torch": 100.0, "triton": 104.0}
    rows = [made.timed(made.case("gelu", impl, fields), us, min_us=us - 9) for impl, us in times.items()]
    batches = {row.case.key: [us] * 10 for row, us in zip(rows, (110.0, 104.0), strict=True)}
    rounds = [PairedRounds(batches, dict.fromkeys(batches, "graph_timestamps"))]
    (said,) = answer(rows, "ranking", rounds)
    assert re.fullmatch(r"gelu: torch 110 us; triton 104 us, 1\.058x as fast \(1\.05\dx to 1\.0[56]\dx\)\.", said)
    by_time, by_min = answer(rows, "orders", rounds, columns=("time_us", "min_us"))
    assert by_time == "gelu: by time triton < torch."
    assert by_min.startswith("gelu: by min_us torch < triton: triton and torch change places. ")
    contended = {"verdict": "contended", "cpu_wait_pct": 95.0}
    rows = [
        made.timed(made.case("gelu", impl, fields), us, **contended) for impl, us in (("torch", 539.0), ("naive", 1))
    ]
    assert answer(rows, "ranking") == ["gelu: torch 539 us; naive 1 us, at least 26.95x as fast."]
    rows = [made.timed(made.case("gelu", impl, fields), us, **contended) for impl, us in (("torch", 9.0), ("naive", 1))]
    assert answer(rows, "ranking") == ["gelu: torch 9 us; naive 1 us, not told apart."]


def test_effects_of_contended_times_allow_for_contention(answer, made):
    def rows(us, **figures):
        return [
            made.timed(made.case("mlp", "torch", {"on": on}), each, **figures) for on, each in ((1, 100.0), (2, us))
        ]

    (said,) = answer(rows(150.0, verdict="contended"), "effect", field="workload.on")
    assert said.endswith("at 2, 1.50x (0.563x to 4.00x). Some of these times are contended.")
    (said,) = answer(rows(1.0, verdict="contended", cpu_wait_pct=99.0), "effect", field="workload.on")
    assert said.endswith("1 us at 2, not told apart. Some of these times are contended.")


def absent(case, status="unsupported"):
    return Row(case=case, status=status, reason="torch sees no NVIDIA GPU here", device="cpu", phase="plan")


CPU = "not measured on a CPU"
ARGUMENTS = {
    "growth": {"over": "workload.cols"},
    "effect": {"field": "workload.cols"},
    "values": {"columns": ("n_kernels", "latency_us")},
    "orders": {"columns": ("time_us", "host_us")},
    "passes": {"impl": "naive", "steps": ("sub",), "passes": (2,)},
    "ends": {"over": "workload.cols"},
    "bend": {"over": "workload.cols"},
}


@pytest.mark.parametrize("name", sorted(analyses()))
def test_without_a_correct_time_every_analysis_says_how_the_cases_ended(answer, made, name):
    cases = [made.case("gelu", impl, {"cols": 8}) for impl in ("torch", "triton", "cuda")]
    rows = [made.timed(cases[0], 3.0, status="wrong"), absent(cases[1]), absent(cases[2])]
    (said,) = answer(rows, name, **ARGUMENTS.get(name, {}))
    assert said == "No case is correct and timed (1 wrong, 2 unsupported), so the question has no answer."


@pytest.mark.parametrize(
    ("name", "fields", "said"),
    [
        (
            "growth",
            {},
            "cols has only the value 8 in cases that are correct and timed, so there is no exponent of",
        ),
        ("growth", {"column": "latency_us"}, f"latency_us is {CPU}, so there is no exponent of latency_us over cols."),
        (
            "effect",
            {},
            "cols has only the value 8 in cases that are correct and timed, so there is no effect of",
        ),
        ("effect", {"column": "host_us"}, f"host_us is {CPU}, so there is no effect of cols on host_us."),
        (
            "effect",
            {"column": "by_hand_us"},
            "by_hand_us is known with measure=by_hand alone, which was not chosen, so",
        ),
        ("values", {}, f"n_kernels and latency_us are {CPU}."),
        ("values", {"columns": ("config",)}, "config is not known of any case that is correct and timed."),
        ("values", {"columns": ("profile_idle_us",)}, "profile_idle_us is known with measure=profile alone, which was"),
        ("waits", {}, "profile_ranks_idle is known with measure=profile alone, which was not chosen."),
        ("orders", {}, f"host_us is {CPU}."),
        (
            "orders",
            {"columns": ("time_us", "min_us")},
            "no problem has two implementations that are correct and timed, so",
        ),
        ("operations", {}, "no case was profiled (measure=[benchmark,profile]), so there is no share of operations."),
        ("parts", {}, "no case was profiled (measure=[benchmark,profile]), so there is no share of parts."),
        (
            "passes",
            {},
            "naive is not among the cases that are correct and timed (1 unsupported), so there",
        ),
        (
            "passes",
            {"impl": "cuda"},
            "cuda is not among the cases that are correct and timed (not in this run), so",
        ),
        ("roofline", {}, "the workload does not say how many operations and bytes it needs, so there is no"),
        (
            "bandwidth",
            {},
            "the workload does not say how many operations and bytes it needs, so there is no",
        ),
        ("ranking", {}, "gelu: only torch is correct and timed (1 unsupported): 10 us."),
    ],
)
def test_an_analysis_that_cannot_answer_says_why(answer, made, name, fields, said):
    cases = [made.case("gelu", impl, {"cols": 8}) for impl in ("torch", "naive")]
    rows = [made.timed(cases[0], 10.0, min_us=9.0, flops=None, bytes_min=None), absent(cases[1])]
    arguments = ARGUMENTS.get(name, {}) | fields
    (sentence,) = answer(rows, name, **arguments)
    assert sentence.startswith(said)
    assert sentence.endswith(".")


def test_a_field_that_no_implementation_has_two_values_of_is_named(answer, made):
    cases = [made.case("gelu", impl, {"cols": cols}) for impl, cols in (("torch", 8), ("naive", 16))]
    rows = [made.timed(case, 10.0) for case in cases]
    assert answer(rows, "effect", field="workload.cols") == [
        "no implementation is correct and timed at two values of cols, so there is no effect of cols on time."
    ]
    rows = [made.timed(made.case("gelu", "torch", {"cols": cols}), 10.0) for cols in (8, 16)]
    assert answer(rows, "growth", over="workload.cols") == [
        "gelu torch: no exponent of time over cols: it is known at 2 values, and 3 are needed."
    ]


def test_no_summary_names_a_factor_beside_a_tie(made):
    """Wide intervals: the fastest are tied, whatever their medians."""
    cases = [made.case("gelu", impl, {"cols": cols}) for cols in (8, 16) for impl in ("torch", "naive")]
    rows = [
        made.timed(case, us, verdict="contended") for case, us in zip(cases, (100.2, 100.0, 90.0, 90.2), strict=True)
    ]
    (found,) = conclude(run_of(rows)).findings
    assert found.summary == "gelu: at 2 of 2 the fastest are tied."


def test_what_several_analyses_lack_is_said_once(made):
    rows = [absent(made.case("gelu", "torch", {"cols": 8}))]
    asked = [Choice("ranking", {}), Choice("bandwidth", {})]
    assert len(answers(run_of(rows, asked))) == 1


def test_an_analysis_of_another_version_is_named(answer, made):
    rows = [made.timed(made.case("gelu", "torch", {"cols": 8}), 10.0)]
    assert answer(rows, "of_tomorrow")[0].startswith("conclusion: of_tomorrow: no such analysis")


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("growht", {}, "conclusion: growht: no such analysis; did you mean growth? One of: bandwidth,"),
        ("growth", {}, "conclusion.growth.over: missing; give it a value with conclusion.growth.over=..."),
        ("growth", {"over": "workload.colz"}, "conclusion.growth.over: workload.colz: no case has this field; did you"),
        ("growth", {"over": "workload.cols", "column": "tim"}, "columns: no such column 'tim'; did you mean"),
        ("effect", {"field": "workload.cols", "without": "unquantised"}, "conclusion.effect.without: unquantised: no "),
        ("values", {"columns": ("nope",)}, "columns: no such column 'nope'; "),
        ("ranking", {"over": "workload.cols"}, "conclusion.ranking.over: no such field; there are none"),
        ("operations", {"most": "x"}, "conclusion.operations.most: 'x' is not allowed; give a whole number"),
        ("growth", {"over": "workload.dtype"}, "conclusion.growth.over: workload.dtype=float32 is not a number above"),
        (
            "bend",
            {"over": "workload.tf32"},
            "conclusion.bend.over: workload.tf32=false is not a number above 0; ",
        ),
        ("passes", {"impl": "naive", "steps": ("exp", "sub"), "passes": (2,)}, "conclusion.passes.passes: give one nu"),
    ],
)
def test_a_mistake_is_one_line(made, name, fields, message):
    with pytest.raises(BadInput) as refusal:
        check(Choice(name, fields), [made.case("gelu", "torch", {"cols": 8, "dtype": "float32", "tf32": False})])
    assert str(refusal.value).startswith(message)


def test_an_analysis_may_leave_out_an_implementation_that_the_sweep_leaves_out(made):
    fields = {"field": "workload.cols", "without": "unquantized"}
    assert check(Choice("effect", fields), [made.case("linear_int8", "torch", {"cols": 8})])["without"] == "unquantized"


@pytest.fixture
def studied(tmp_path, sizes):
    """The folder of a run that has a question, ``lecture_gelu`` by its name."""
    folder, rows = tmp_path / "o" / "2026-01-31" / "10-11-12-x", sizes(samples=20, converged=True)
    folder.mkdir(parents=True)
    plan = Plan(cases=tuple(row.case for row in rows), name="x")
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
    assert "\nQuestion: How does it grow?\n- matmul torch: from size=256 to 2048, time grows as" in printed
    assert report.main(["md", str(studied), "--output", "x.md"]) == 0
    assert "**How does it grow?**\n\n- matmul torch: from size=256" in Path("x.md").read_text()


def test_the_page_of_a_study_gets_what_was_measured(studied, tmp_path):
    pytest.importorskip("vl_convert")
    spec = importlib.util.spec_from_file_location("study", ROOT / "docs" / "study.py")
    study = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(study)
    (tmp_path / "docs" / "studies").mkdir(parents=True)
    page = tmp_path / "docs" / "studies" / "x.md"
    page.write_text(f"# Kept\n\n{study.MARK}\n\nold\n")
    for _ in range(2):
        assert study.write(read_run(studied), tmp_path / "docs") == page
    text = page.read_text()
    assert text.startswith(
        f"# Kept\n\n{study.MARK}\n\n## Measured\n\ncpu, 2026-01-31.\n\n- matmul torch: from size=256"
    )
    assert "![x](../images/study-x.svg)" in text
    assert "old" not in text
    assert (tmp_path / "docs" / "images" / "study-x.svg").read_text().startswith("<svg")
