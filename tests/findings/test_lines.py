"""What follows from rows and rounds: speed-ups with their intervals, words, and several processes as one."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from runner.api import frame
from runner.findings.lines import derive_lines
from runner.findings.names import Names
from runner.findings.notes import footnotes, row_notes
from runner.findings.replicas import merge_replicas
from runner.findings.run import Run
from runner.records.case import CaseRecord, Choice
from runner.records.figures import times as factor
from runner.records.paired_rounds import PairedRounds
from runner.records.plan import Plan
from runner.records.row import Row
from runner.records.settings import Settings
from runner.report.case_table import styled_table, table_of
from runner.store.journal import Journal


def row(impl, us, *, cols=8, replica=0, percent=0.5, status="ok", **metrics):
    case = CaseRecord(
        Choice("gelu", {"cols": cols}),
        Choice(impl, {}),
        (Choice("benchmark", {}),),
        Settings("cpu", 0),
        replica=replica,
    )
    certain = {"converged": True, "samples": 20, "separate_pct": 0.1}
    timed = {"gpu_us": us, "interval_pct": percent, "correct": True} | certain | metrics if us is not None else {}
    return Row(case=case, status=status, reason="" if status == "ok" else "it broke", metrics=timed)


@pytest.mark.parametrize("verdict", ["impossible", "contradicted"])
def test_a_time_that_cannot_be_true_never_gets_the_star(verdict):
    found = derive_lines([row("torch", 10.0), row("naive", 30.0), row("triton", 1.0, verdict=verdict)], None)
    assert [line.row.case.impl.name for line in found if line.fastest == "yes"] == ["torch"]
    assert found[2].speedup == pytest.approx(10.0)


def rounds(*pairs):
    return PairedRounds(
        batches_us={one.case.key: [us * (1 + 1e-4 * (i % 2)) for i in range(10)] for one, us in pairs},
        instruments={one.case.key: "graph_timestamps" for one, _ in pairs},
    )


def by_impl(lines):
    return {line.row.case.impl.name: line for line in lines}


def test_speed_ups_are_of_the_rounds_where_there_are_some():
    torch, triton = row("torch", 100.0), row("triton", 90.0)
    found = by_impl(derive_lines([torch, triton], None, [rounds((torch, 100.0), (triton, 80.0))]))
    assert found["triton"].speedup == pytest.approx(1.25)
    assert found["triton"].speedup_low < 1.25 < found["triton"].speedup_high
    assert (found["triton"].vs_baseline, found["triton"].paired, found["triton"].fastest == "yes") == (
        "faster",
        True,
        True,
    )
    assert (found["torch"].speedup, found["torch"].vs_baseline) == (1.0, None)


def wrong(impl, us):
    return row(impl, us, status="wrong", correct=False, verdict="wrong")


def test_what_is_wrong_is_not_said_to_be_faster():
    torch, broken = row("torch", 100.0), wrong("triton", 50.0)
    for compared in ([], [rounds((torch, 100.0), (broken, 50.0))]):
        found = by_impl(derive_lines([torch, broken], None, compared))
        line = found["triton"]
        assert (line.speedup, line.vs_baseline, line.paired, line.time_us) == (None, None, None, 50.0)
        assert found["torch"].fastest == "only"


def test_the_default_base_is_right():
    rows = [wrong("torch", 10.0), row("naive", 30.0), row("triton", 20.0)]
    found = by_impl(derive_lines(rows, None))
    assert [name for name, line in found.items() if line.baseline] == ["naive"]
    assert found["triton"].speedup == pytest.approx(1.5)
    assert not any(line.baseline for line in derive_lines([wrong("torch", 10.0), wrong("naive", 30.0)], None))


def test_a_base_that_was_asked_for_is_the_base_though_it_is_wrong():
    found = by_impl(derive_lines([wrong("torch", 10.0), row("triton", 20.0)], "torch"))
    assert (found["torch"].baseline, found["torch"].speedup) == (True, 1.0)
    assert found["triton"].speedup == pytest.approx(0.5)


def test_without_rounds_they_are_of_the_times_and_their_intervals():
    found = by_impl(derive_lines([row("torch", 100.0, percent=3.0), row("triton", 98.0, percent=3.0)], None))
    assert found["triton"].speedup == pytest.approx(100 / 98)
    assert (found["triton"].vs_baseline, found["triton"].paired) == ("unclear", False)


SEPARATE = "gelu triton: the speed-up compares two separate times, not paired rounds"
UNCERTAIN = f"{SEPARATE}; one of them is contended, not converged"
FALSE = f"{SEPARATE}; one of the two may be false, or did not run as requested: see its verdict"


@pytest.mark.parametrize(
    ("figures", "vs_baseline", "says"),
    [
        ({}, "faster", SEPARATE),
        ({"samples": 9}, "unclear", UNCERTAIN),
        ({"converged": False}, "unclear", UNCERTAIN),
        ({"verdict": "contended"}, "unclear", UNCERTAIN),
        ({"verdict": "fallback"}, "unclear", FALSE),
        ({"separate_pct": None}, "unclear", UNCERTAIN),
        ({"separate_pct": 15.0}, "unclear", SEPARATE),
    ],
)
@pytest.mark.parametrize("worse", ["torch", "triton"])
def test_separate_times_have_a_word_if_both_are_certain_and_the_machine_repeats_itself(
    figures, vs_baseline, says, worse
):
    rows = [row(impl, us, **figures if impl == worse else {}) for impl, us in (("torch", 100.0), ("triton", 90.0))]
    found = derive_lines(rows, None)
    line = by_impl(found)["triton"]
    assert (line.vs_baseline, line.paired, line.speedup) == (vs_baseline, False, pytest.approx(100 / 90))
    assert (line.speedup_low is None) == (says == FALSE)
    notes = styled_table(found, Names([one.case for one in rows]), 130).plain.splitlines()
    assert [note for note in notes if note.startswith(says)]


def test_a_table_has_the_figures_of_measurements_in_place_of_a_time_or_behind_it():
    first, second = (row(impl, None) for impl in ("torch", "triton"))
    parts = replace(second.case, measures=(Choice("parts", {"calls": 3}),))
    rows = [replace(first, metrics={}), replace(second, case=parts, metrics={"step_us": 12.5, "parts_pct": 101.0})]
    table = table_of(derive_lines(rows, None), Names([each.case for each in rows]))
    assert table.heads[1:3] == ["step_us", "parts_pct"]
    assert table.rows[1][1:3] == ("12.5 us", "101 %")
    timed = table_of(derive_lines([row("torch", 1.0), rows[1]], None), Names([first.case, parts]))
    assert timed.heads[1] == "time"
    assert timed.heads[-3:] == ["step_us", "parts_pct", "verdict"]
    summarized = replace(rows[1], files=("files/1/parts/summary.txt",))  # the summary is below the table
    assert "step_us" not in table_of(derive_lines([row("torch", 1.0), summarized], None), Names([parts])).heads


def test_times_in_paired_rounds_need_no_certificate():
    torch, triton = (row(impl, 100.0, separate_pct=None, converged=False) for impl in ("torch", "triton"))
    found = derive_lines([torch, triton], None, [rounds((torch, 100.0), (triton, 80.0))])
    assert by_impl(found)["triton"].vs_baseline == "faster"
    assert SEPARATE not in styled_table(found, Names([torch.case, triton.case]), 130).plain


@pytest.mark.parametrize(("where", "vs_baseline"), [("GPU-a", "faster"), ("GPU-b", None)])
def test_times_of_two_gpus_are_shown_beside_each_other_and_not_judged(where, vs_baseline):
    rows = [row("torch", 100.0, gpu_uuid="GPU-a"), row("triton", 90.0, gpu_uuid=where)]
    found = by_impl(derive_lines(rows, None))
    assert (found["triton"].speedup, found["triton"].vs_baseline) == (pytest.approx(100 / 90), vs_baseline)


def test_a_case_outside_of_the_rounds_is_compared_by_its_time():
    torch, triton, late = row("torch", 100.0), row("triton", 90.0), row("cuda", 50.0)
    found = by_impl(derive_lines([torch, triton, late], None, [rounds((torch, 100.0), (triton, 80.0))]))
    assert (found["cuda"].speedup, found["cuda"].paired) == (pytest.approx(2.0), False)


def test_a_time_of_nothing_has_no_speed_up_and_costs_the_others_none():
    """A null call less what its instrument reads of nothing: a batch of it may be below 0, and has no logarithm."""
    torch, nothing, triton = row("torch", 5.0), row("nothing", 0.0, percent=None), row("triton", 4.0)
    found = by_impl(
        derive_lines([torch, nothing, triton], None, [rounds((torch, 5.0), (nothing, -0.02), (triton, 4.0))])
    )
    assert (found["nothing"].speedup, found["nothing"].vs_baseline, found["nothing"].tflops) == (None, None, None)
    assert (found["triton"].speedup, found["triton"].vs_baseline) == (pytest.approx(1.25), "faster")
    (line,) = derive_lines([row("nothing", 0.0, percent=None, replica=i) for i in range(2)], None)
    assert (line.time_us, line.between_pct, line.row.metrics["interval_pct"]) == (0.0, None, None)


def test_the_error_is_told_beside_the_baselines():
    rows = [row("torch", 1.0, max_abs_err=2e-7), row("triton", 1.0, max_abs_err=6e-7)]
    assert by_impl(derive_lines(rows, None))["triton"].err_ratio == pytest.approx(3)


def test_the_words_of_one_table_are_judged_together():
    """A difference that is just beyond doubt alone is not, as one of forty."""
    few, many = ([row("torch", 100.0, cols=c) for c in range(n)] for n in (1, 40))
    slower = [
        replace(r, case=replace(r.case, impl=Choice("triton", {})), metrics=r.metrics | {"gpu_us": 101.3}) for r in many
    ]
    assert derive_lines([*few, slower[0]], None)[1].vs_baseline == "slower"
    assert {line.vs_baseline for line in derive_lines([*many, *slower], None)} == {None, "unclear"}


def test_several_processes_are_one_line_with_their_own_interval():
    rows = [row("torch", us, replica=i) for i, us in enumerate((99.0, 100.0, 101.0))]
    (line,) = derive_lines(rows, None)
    assert (line.time_us, line.replicas) == (pytest.approx(100.0), 3)
    assert line.between_pct == pytest.approx(1.0)
    assert line.row.metrics["interval_pct"] == pytest.approx(4.303 / 3**0.5, rel=0.05)
    assert line.row.metrics["low_us"] < 99


def test_what_an_instrument_cannot_see_is_seen_by_no_number_of_processes():
    rows = [row("torch", 21.7, replica=i, percent=18.4, stat_pct=0.5) for i in range(9)]
    (line,) = derive_lines(rows, None)
    assert line.row.metrics["interval_pct"] == pytest.approx(18.4, rel=0.01)


def test_rounds_of_several_processes_are_pooled():
    torch, triton = ([row(impl, us, replica=i) for i in range(3)] for impl, us in (("torch", 100.0), ("triton", 80.0)))
    each = [rounds((t, 100.0), (k, us)) for t, k, us in zip(torch, triton, (78.0, 80.0, 82.0), strict=True)]
    found = by_impl(derive_lines([*torch, *triton], None, each))
    assert found["triton"].speedup == pytest.approx(1.25, abs=0.01)
    assert found["triton"].speedup_high / found["triton"].speedup > 1.05


def test_a_process_in_which_a_case_failed_speaks_for_it():
    merged = merge_replicas([row("torch", 100.0), row("torch", None, replica=1, status="crashed")])
    assert (merged.status, merged.reason) == ("crashed", "it broke")
    untimed = [row("torch", None), row("torch", None, replica=1, status="error"), row("torch", None, replica=2)]
    assert merge_replicas(untimed).status == "error"
    assert merge_replicas(untimed[::2]).status == "ok"


def test_a_case_that_failed_in_one_process_has_no_speed_up_from_the_others():
    torch = [row("torch", 100.0, replica=i) for i in range(2)]
    broken = [row("triton", 80.0), row("triton", None, replica=1, status="crashed")]
    found = by_impl(derive_lines([*torch, *broken], None, [rounds((torch[0], 100.0), (broken[0], 80.0))]))
    assert (found["triton"].row.status, found["triton"].speedup, found["triton"].vs_baseline) == ("crashed", None, None)


def test_a_process_whose_timed_calls_were_wrong_speaks_for_the_case():
    said = {"verdict": "wrong", "verdict_reason": "in the timed calls: y"}
    rows = [row("torch", 9.0), row("torch", 11.0, replica=1, status="wrong", **said | {"correct": False})]
    (line,) = derive_lines(rows, None)
    assert (line.row.status, line.row.reason, line.time_us, line.fastest == "yes") == ("wrong", "it broke", 10.0, False)
    assert line.row.metrics["correct"] is False
    assert line.row.metrics["verdict"] == "wrong"


def test_the_gravest_doubt_of_all_processes_is_the_cases():
    doubts = ("launch_bound", "impossible", "ok", "not_converged")
    rows = [row("torch", 1.0, replica=i, verdict=word, verdict_reason=word) for i, word in enumerate(doubts)]
    merged = merge_replicas(rows).metrics
    assert (merged["verdict"], merged["verdict_reason"]) == ("impossible", "impossible")


@pytest.mark.parametrize(("us", "word"), [((100.0, 130.0), "not_converged"), ((100.0, 100.01), "ok")])
def test_processes_that_differ_by_more_than_was_asked_have_not_converged(us, word):
    asked = (Choice("benchmark", {"target_pct": 0.5}),)
    rows = [row("torch", each, replica=i, percent=0.3, verdict="ok", verdict_reason="") for i, each in enumerate(us)]
    merged = merge_replicas([replace(one, case=replace(one.case, measures=asked)) for one in rows]).metrics
    assert merged["verdict"] == word
    assert ("since 2 processes differ" in merged["verdict_reason"]) == (word != "ok")


def test_the_doubt_of_one_process_is_that_of_all():
    rows = [row("torch", 1.0, verdict="ok"), row("torch", 1.0, replica=1, verdict="power_capped", verdict_reason="hot")]
    assert merge_replicas(rows).metrics["verdict"] == "power_capped"


def test_a_time_without_an_interval_still_has_a_speed_up_and_no_word():
    found = by_impl(derive_lines([row("torch", 6.0, percent=None), row("triton", 2.0, percent=None)], None))
    assert (found["triton"].speedup, found["triton"].vs_baseline) == (3.0, None)


def test_cases_with_few_checked_calls_are_counted():
    rows = [row("torch", 1.0, cols=n, checked_calls=n) for n in (0, 4, 5, 20)]
    (said,) = row_notes([*rows, row("torch", 1.0)], Names([each.case for each in rows]))
    assert said == "in 2 of 5 cases the outputs of fewer than 5 timed calls were checked; see checked_calls"


def test_times_of_zeros_are_labelled():
    case = CaseRecord(
        Choice("gelu", {"data": "zeros"}), Choice("torch", {}), (Choice("benchmark", {}),), Settings("cpu", 0)
    )
    zeros = Row(case=case, status="ok", metrics={"gpu_us": 1.0, "correct": True})
    (said,) = row_notes([zeros], Names([case]))
    assert said == "data=zeros: 1 of 1 times are for zeros; a GPU may be faster on them than on data"


def varied():
    """The grid of ``seed=0,1 measure.benchmark.cold_l2=true,false``, the second alone with a list of its own."""
    one = row("torch", 1.0)
    nsys = Choice("nsys", {"args": ("--stats",)})
    for seed, cold, more in ((0, True, ()), (1, False, (nsys,))):
        measures = (Choice("benchmark", {"cold_l2": cold, "samples": 20}), *more)
        yield replace(one, case=replace(one.case.with_settings(seed=seed), measures=measures))


def test_points_that_differ_beside_the_workload_are_told_apart():
    rows = list(varied())
    names = Names([one.case for one in rows])
    assert [names.heading(one.case) for one in rows] == [
        "gelu seed=0 measure=[benchmark] measure.benchmark.cold_l2=true",
        "gelu seed=1 measure=[benchmark,nsys] measure.benchmark.cold_l2=false",
    ]
    assert Names([rows[0].case]).heading(rows[0].case) == "gelu"
    assert Names([rows[0].case]).case(rows[0].case) == "gelu torch"


@pytest.mark.parametrize(
    ("products", "axes"),
    [
        ([(8, 8, 8), (16, 16, 16)], ["size"]),
        ([(8, 16, 8), (8, 16, 32)], ["k"]),
        ([(8, 8, 8), (16, 8, 16)], ["m"]),
        ([(8, 8, 8), (8, 16, 32)], ["n", "k"]),
    ],
)
def test_fields_that_repeat_others_are_no_axes(products, axes):
    """The size of a matrix product is null where m, n and k differ."""
    sizes = [{"size": m if m == n == k else None, "m": m, "n": n, "k": k} for m, n, k in products]
    cases = [CaseRecord(Choice("matmul", fields), Choice("torch", {}), (), Settings("cpu", 0)) for fields in sizes]
    names = Names(cases)
    assert names.axes == {"matmul": axes}
    assert None not in names.constants["matmul"].values()


def test_a_frame_has_a_column_for_each_of_what_differs():
    rows = [Row.from_record(json.loads(json.dumps(one.to_record()))) for one in varied()]
    table = frame.frame(derive_lines(rows, None))
    assert list(table["measure.benchmark.cold_l2"]) == [True, False]
    assert list(table["measure"]) == ["[benchmark]", "[benchmark,nsys]"]
    assert not {"measure.benchmark.samples", "debug", "measure.nsys.args"} & set(table.columns)


def variants():
    """Two of one implementation, at two sizes; the table tells them apart by ``of``."""
    for cols in (8, 16):
        for of, us in (("naive", 3.0), ("torch", 5.0)):
            one = row("compiled", us * cols, cols=cols)
            yield replace(one, case=replace(one.case, impl=Choice("compiled", {"of": of, "mode": "default"})))


def test_a_frame_calls_an_implementation_as_the_table_does():
    table = frame.frame(derive_lines(variants(), None))
    wide = table.pivot(index="workload.cols", columns="implementation", values="time_us")
    assert wide.to_dict("list") == {"compiled(of=naive)": [24.0, 48.0], "compiled(of=torch)": [40.0, 80.0]}
    with pytest.raises(ValueError, match="duplicate"):  # where pivot_table would have taken means
        table.pivot(index="workload.cols", columns="impl", values="time_us")


@pytest.mark.parametrize(
    ("baseline", "base"),
    [
        ("compiled(of=torch)", "torch"),
        ("compiled", "naive"),
        ("compiled(of=torch, mode=default)", "torch"),
        (None, "naive"),
    ],
)
def test_any_variant_may_be_the_baseline_and_the_bare_name_means_the_first(baseline, base):
    found = derive_lines(variants(), baseline)
    assert [line.row.case.impl.fields["of"] for line in found if line.baseline] == [base, base]


def test_the_label_may_be_a_column_of_the_table():
    found = derive_lines(variants(), None)
    names = Names([line.row.case for line in found])
    head, _, _, _, slower, *_ = styled_table(found, names, 130, ["implementation"]).plain.splitlines()
    assert head.split() == ["implementation", "implementation", "verdict"]
    assert slower.split() == ["compiled(of=torch)", "compiled(of=torch)", "ok"]


def test_a_journal_alone_is_read_against_torch(tmp_path):
    with Journal(tmp_path) as journal:
        for one in (row("naive", 4.0), row("torch", 2.0)):
            journal.row(one)
    assert list(frame.load(tmp_path)["speedup"]) == [0.5, 1.0]
    assert list(frame.load(tmp_path, baseline="naive")["speedup"]) == [1.0, 2.0]


def test_rounds_of_one_process_do_not_speak_for_all():
    """As after a kill between two replicas, whose comparison is lost."""
    torch = [row("torch", us, replica=i) for i, us in enumerate((100.0, 110.0, 95.0))]
    triton = [row("triton", us, replica=i) for i, us in enumerate((97.0, 112.0, 97.0))]
    line = by_impl(derive_lines([*torch, *triton], None, [rounds((torch[0], 100.0), (triton[0], 97.0))]))["triton"]
    assert (line.vs_baseline, line.paired) == ("unclear", False)
    alone = by_impl(derive_lines([*torch, triton[0]], None, [rounds((torch[0], 100.0), (triton[0], 97.0))]))["triton"]
    assert alone.paired is False


def test_times_by_different_numbers_of_threads_have_no_word():
    def on_cpu(impl, us, threads):
        one = row(impl, us)
        return replace(one, device="cpu", metrics={**one.metrics, "threads": threads})

    line = by_impl(derive_lines([on_cpu("torch", 10.0, 2), on_cpu("triton", 5.0, 1)], None))["triton"]
    assert (line.speedup, line.vs_baseline) == (2.0, None)
    line = by_impl(derive_lines([on_cpu("torch", 10.0, 2), on_cpu("triton", 5.0, 2)], None))["triton"]
    assert line.vs_baseline == "faster"


def fastest(*args):
    return {line.row.case.impl.name: line.fastest for line in derive_lines(*args)}


def test_beside_a_time_of_nothing_no_case_is_shown_to_be_the_fastest():
    assert fastest([row("torch", 10.0), row("naive", 0.0, percent=None)], None) == {
        "torch": "unknown",
        "naive": "unknown",
    }
    assert fastest([row("naive", 0.0, percent=None)], None) == {"naive": "no"}


def test_the_fastest_is_one_that_every_other_is_shown_to_be_slower_than():
    torch, triton, naive = row("torch", 100.0), row("triton", 90.0), row("naive", 300.0)
    three = [rounds((torch, 100.0), (triton, 90.0), (naive, 300.0))]
    assert fastest([torch, triton, naive], None, three) == {"torch": "no", "triton": "yes", "naive": "no"}
    assert fastest([torch, wrong("triton", 50.0)], None) == {"torch": "only", "triton": "no"}


def test_none_is_the_fastest_without_a_rival_or_before_all_have_run():
    torch, triton, naive = row("torch", 100.0), row("triton", 90.0), row("naive", 300.0)
    assert [line.fastest for line in derive_lines([torch], None)] == ["only"]
    lines = derive_lines([torch, triton], None, [rounds((torch, 100.0), (triton, 90.0))], [naive.case])
    assert [line.fastest for line in lines] == ["no", "unknown"]


def test_an_outcome_counts_the_verdicts_of_the_cases_that_are_ok():
    rows = [row("torch", 100.0), row("naive", 300.0, verdict="contended"), wrong("triton", 50.0)]
    run = Run(Path("r"), Plan(cases=tuple(each.case for each in rows), name="r"), rows)
    assert run.outcome(rows) == "3 cases: 2 ok (1 contended), 1 wrong"


def test_cases_that_cannot_be_told_apart_from_the_fastest_are_tied():
    torch, compiled, triton = (
        row(impl, us) for impl, us in {"torch": 120.0, "compiled": 100.2, "triton": 100.0}.items()
    )
    three = [rounds((torch, 120.0), (compiled, 100.2), (triton, 100.0))]
    said = {"torch": "no", "compiled": "tied", "triton": "tied"}
    assert fastest([torch, compiled, triton], None, three) == said
    assert fastest([torch, compiled, triton], "compiled", three) == said
    assert fastest([torch, compiled, triton], "triton", three) == said
    loose = [row("torch", 131_200.0), row("triton", 557.9, percent=10_536.0)]
    assert fastest(loose, None) == {"torch": "tied", "triton": "tied"}


def test_what_is_left_alone_of_its_rounds_has_its_own_time_as_the_others_have():
    torch, triton = rows = [row("torch", 100.0), row("triton", 60.0)]
    left = rounds((triton, 58.0))
    race = replace(left, instruments={**left.instruments, torch.case.key: "graph_timestamps"})
    assert {line.paired_time_us for line in derive_lines(rows, None, [race])} == {None}


def test_what_dropped_out_of_a_race_is_not_tied_although_no_rounds_tell_by_how_much():
    torch, compiled, triton = rows = [row(impl, 100.0, percent=5.0) for impl in ("torch", "compiled", "triton")]
    left = rounds((compiled, 100.1), (triton, 100.0))
    race = replace(left, instruments={**left.instruments, torch.case.key: "graph_timestamps"})
    assert fastest(rows, None, [race]) == {"torch": "no", "compiled": "tied", "triton": "tied"}


@pytest.mark.parametrize("baseline", ["torch", "triton"])
def test_what_a_race_has_shown_is_not_unclear_beside_the_fastest(baseline):
    torch, triton = rows = [row(impl, us, percent=5.0) for impl, us in (("torch", 100.1), ("triton", 100.0))]
    left = rounds((triton, 100.0))
    race = replace(left, instruments={**left.instruments, torch.case.key: "graph_timestamps"})
    lines = {line.case.impl.name: line for line in derive_lines(rows, baseline, [race])}
    assert (lines["triton"].fastest, lines["torch"].fastest) == ("yes", "no")
    (other,) = (line for line in lines.values() if not line.baseline)
    assert other.vs_baseline == ("slower" if baseline == "triton" else "faster")
    assert (other.speedup_low, other.speedup_high) == (None, None)
    assert lines["torch"].vs_winner == "slower"
    (note,) = footnotes([*lines.values()], Names([line.case for line in lines.values()]))
    assert "not paired rounds; the race of tune has shown which is faster" in note


def test_equal_calls_are_all_tied():
    rows = [row(f"impl{i}", 100.0, percent=1.0) for i in range(8)]
    assert set(fastest(rows, None).values()) == {"tied"}


def test_threads_that_waited_all_the_time_leave_no_interval():
    waited = {"verdict": "contended", "threads": 2, "cpu_wait_pct": 62.0}
    _, line = derive_lines([row("torch", 4.0), row("naive", 18.0, **waited)], None)
    assert (line.vs_baseline, line.speedup_low, line.speedup_high) == ("unclear", None, None)
    _, line = derive_lines([row("torch", 4.0), row("naive", 18.0, **waited | {"cpu_wait_pct": 30.0})], None)
    assert line.speedup_high / line.speedup_low == pytest.approx(1 / 0.4**2, rel=0.1)


def test_times_of_two_gpus_are_not_compared_and_no_tie():
    rows = [row("torch", 100.0, gpu_uuid="GPU-a"), row("triton", 50.0, gpu_uuid="GPU-b")]
    assert set(fastest(rows, None).values()) == {"unknown"}


@pytest.mark.parametrize(
    "figures", [{"verdict": "contended"}, {"converged": False}, {"samples": 6}, {"separate_pct": None}]
)
def test_a_time_far_away_is_slower_although_one_of_the_two_is_uncertain(figures):
    far = [row("torch", 10.75e3, percent=0.5), row("naive", 1.259e6, percent=4.0, **figures)]
    lines = by_impl(derive_lines(far, None))
    assert (lines["naive"].vs_baseline, lines["naive"].fastest, lines["torch"].fastest) == ("slower", "no", "yes")
    near = [row("torch", 10.0, percent=0.5), row("naive", 15.0, percent=4.0, **figures)]
    assert fastest(near, None) == {"torch": "unknown", "naive": "unknown"}  # not compared, which is no tie
    overlapping = [row("torch", 10.0, percent=0.5), row("naive", 10.3, percent=4.0, **figures)]
    assert fastest(overlapping, None) == {"torch": "tied", "naive": "tied"}


def test_threads_that_waited_longer_than_they_ran_allow_a_larger_factor():
    waited = row("naive", 35.0, verdict="contended", cpu_wait_pct=80.0)
    assert by_impl(derive_lines([row("torch", 10.0), waited], None))["naive"].vs_baseline == "unclear"


@pytest.mark.parametrize(
    ("threads", "waited_pct", "word"),
    [(1, 55.0, "slower"), (2, 20.0, "slower"), (2, 55.0, "unclear"), (16, 8.0, "unclear")],
)
def test_threads_wait_for_the_one_without_a_core(threads, waited_pct, word):
    """On two busy cores the same two products took 16 us in one process and 18.6 ms in the next, waiting for 55 %."""
    figures = {"verdict": "contended", "cpu_wait_pct": waited_pct, "threads": threads}
    waited, other = row("naive", 18_600.0, **figures), row("torch", 16.0, **figures)
    assert by_impl(derive_lines([other, waited], "torch"))["naive"].vs_baseline == word


def test_what_is_said_of_the_fastest_agrees_with_the_word_beside_it():
    """The comparisons with the baseline and with the fastest are corrected together."""
    generator = random.Random(7)
    for _ in range(200):
        rows = [row(f"impl{i}", generator.uniform(99, 101)) for i in range(4)]
        spread = generator.uniform(0.001, 0.03)
        batches = {one.case.key: [one.time_us * generator.gauss(1, spread) for _ in range(10)] for one in rows}
        compared = PairedRounds(batches_us=batches, instruments=dict.fromkeys(batches, "perf_counter"))
        found = derive_lines(rows, "impl0", [compared])
        (base,) = [line for line in found if line.baseline]
        for line in found:
            if line.fastest == "yes" and line is not base:
                assert line.vs_baseline == "faster"
            if base.fastest == "yes" and line is not base:
                assert line.vs_baseline == "slower"
            if base.fastest == "no" and line.fastest != "no":
                assert line.vs_baseline in ("faster", "unclear", "same")


def test_times_in_rounds_have_the_ratio_that_the_rounds_have():
    generator = random.Random(5)
    amounts = {"flops": 1e6, "algo_bytes": 3e3, "bus_factor": 1.5}
    rows = {impl: row(impl, us, **amounts) for impl, us in (("torch", 100.0), ("triton", 96.0), ("cuda", 103.0))}
    batches = {one.case.key: [one.time_us * generator.uniform(0.8, 1.0) for _ in range(10)] for one in rows.values()}
    compared = PairedRounds(batches_us=batches, instruments=dict.fromkeys(batches, "perf_counter"))
    lines = by_impl(derive_lines(rows.values(), None, [compared]))
    base = lines["torch"].paired_time_us
    for impl, line in lines.items():
        mine = batches[line.case.key]
        assert min(mine) < line.paired_time_us < max(mine)
        assert base / line.paired_time_us == pytest.approx(line.speedup)
        assert (line.time_us, line.shown.time_us) == (rows[impl].time_us, line.paired_time_us)
        assert line.shown.tflops == pytest.approx(1 / line.paired_time_us)
        assert line.shown.algo_gbps == pytest.approx(3 / line.paired_time_us)
        assert line.shown.bus_gbps == pytest.approx(4.5 / line.paired_time_us)
        low, high = (line.shown.row.metrics[name] for name in ("low_us", "high_us"))
        assert low < line.paired_time_us < high
        assert line.paired_interval_pct == pytest.approx(100 * (high / line.paired_time_us - 1))
    frame_of = frame.frame(lines.values()).set_index("impl")
    assert list(frame_of["time_us"]) == [100.0, 96.0, 103.0]
    assert frame_of["paired_time_us"]["cuda"] == lines["cuda"].paired_time_us


def test_the_interval_of_a_time_in_rounds_covers_the_level_that_both_share():
    """A disturbance of both moves their times, and not their ratio."""
    torch, triton = row("torch", 100.0), row("triton", 80.0)
    level = [1 + 0.02 * (at % 3) for at in range(10)]
    batches = {one.case.key: [one.time_us * each for each in level] for one in (torch, triton)}
    compared = PairedRounds(batches_us=batches, instruments=dict.fromkeys(batches, "graph_timestamps"))
    line = by_impl(derive_lines([torch, triton], None, [compared]))["triton"]
    assert line.paired_interval_pct > 1 > 100 * line.ratio.half


def test_a_process_without_rounds_leaves_a_case_its_own_time():
    torch, triton = ([row(impl, us, replica=i) for i in range(2)] for impl, us in (("torch", 100.0), ("triton", 80.0)))
    one, other = (rounds((t, 101.0), (k, 81.0)) for t, k in zip(torch, triton, strict=True))
    assert {line.paired_time_us for line in derive_lines([*torch, *triton], None, [one])} == {None}
    both = by_impl(derive_lines([*torch, *triton], None, [one, other]))
    assert both["triton"].paired_time_us == pytest.approx(81.0, rel=1e-3)
    assert (both["triton"].time_us, both["triton"].shown.time_us) == (80.0, both["triton"].paired_time_us)


@pytest.mark.parametrize(
    ("times", "paired", "figures", "expected"),
    [
        ((100.0, 80.0), (100.0, 81.0), {}, ("faster", "yes")),
        ((100.0, 100.0), (100.0, 96.0), {}, ("faster", "yes")),  # as near as separate times are
        ((100.0, 125.0), (100.0, 80.0), {}, ("unclear", "unknown")),  # the other way round
        ((100.0, 100.0), (100.0, 80.0), {}, ("unclear", "unknown")),
        ((100.0, 100.0), (100.0, 80.0), {"separate_pct": 15.0}, ("faster", "yes")),  # no more than they differ by here
        ((100.0, 80.0), (100.0, 60.0), {}, ("faster", "yes")),  # both say so
        ((100.0, 80.0), (100.0, 0.3), {}, ("unclear", "unknown")),  # as of a function that sees itself compared
        ((11.04, 31.2), (11.04, 7.9), {"converged": False}, ("unclear", "unknown")),
        ((100.0, 180.0), (100.0, 80.0), {"converged": False, "separate_pct": None}, ("unclear", "unknown")),
        ((100.0, 140.0), (100.0, 80.0), {"verdict": "contended"}, ("faster", "yes")),  # contention may double a time
        ((100.0, 300.0), (100.0, 80.0), {"verdict": "contended", "cpu_wait_pct": 90.0}, ("faster", "yes")),
        ((100.0, 300.0), (100.0, 80.0), {"verdict": "impossible"}, ("faster", "no")),
    ],
)
def test_paired_and_separate_times_that_contradict_each_other_are_no_conclusion(times, paired, figures, expected):
    torch, triton = row("torch", times[0]), row("triton", times[1], **figures)
    lines = derive_lines([torch, triton], None, [rounds((torch, paired[0]), (triton, paired[1]))])
    line, names = by_impl(lines)["triton"], Names([torch.case, triton.case])
    assert (line.vs_baseline, line.fastest) == expected
    assert (line.speedup_low is None) == (expected[0] == "unclear")
    told = [note for note in footnotes(lines, names) if note.startswith("gelu triton: no conclusion: ")]
    assert len(told) == (expected[0] == "unclear")
    if told:
        in_rounds, separate = (factor(first / second) for first, second in (paired, times))
        assert f"{in_rounds} as fast in paired rounds, {separate} by separate times" in told[0]
        assert line.paired_time_us == pytest.approx(paired[1], rel=1e-3)


def test_a_contradiction_with_the_fastest_alone_is_told_too():
    torch, triton, cuda = (row(impl, us) for impl, us in (("torch", 130.0), ("triton", 100.0), ("cuda", 90.0)))
    compared = [rounds((torch, 130.0), (triton, 100.0), (cuda, 105.0))]
    lines = derive_lines([torch, triton, cuda], None, compared)
    found = by_impl(lines)
    assert [found[impl].fastest for impl in ("torch", "triton", "cuda")] == ["no", "unknown", "unknown"]
    assert [found[impl].vs_baseline for impl in ("triton", "cuda")] == ["faster", "faster"]
    (note,) = footnotes(lines, Names([torch.case, triton.case, cuda.case]))
    assert note.startswith("gelu cuda: not compared with the fastest: 0.952x as fast in paired rounds, 1.11x by sep")


def test_shares_of_the_roof_go_with_the_time_of_all():
    rows = [
        row("torch", us, replica=i, pct_of_measured_peak=90.0, samples=10, min_us=us - 1)
        for i, us in enumerate((10.0, 15.0))
    ]
    merged = merge_replicas(rows).metrics
    assert merged["gpu_us"] == 12.5
    assert (merged["pct_of_measured_peak"], merged["samples"], merged["min_us"]) == (pytest.approx(72.0), 20, 9.0)
