"""What the gate decides on made-up ratios, and what it writes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from runner.findings.gate import GateDecision, Sides, again, before_after, decide, exit_code
from runner.findings.names import Names
from runner.findings.run_comparison import Pair
from runner.records.case import CaseRecord, Choice
from runner.records.paired_rounds import PairedRounds
from runner.records.row import Row
from runner.records.settings import Settings
from runner.report.gate import comment, decision_line, terminal_lines
from runner.timing.statistics import Ratio

LIMIT = 0.03
SIDES = Sides("main", "the working tree")
REASONS = {"ok": "", "wrong": "3 elements beyond tolerance"}


def case(impl="triton", replica=0, **fields):
    measure = Choice("benchmark", {"max_s": 0.6, "paired_rounds": 40})
    return CaseRecord(Choice("gelu", fields), Choice(impl, {}), (measure,), Settings("cpu", 0), replica=replica)


def row(status="ok", of=None, **metrics):
    timed = {"wall_us": 20.0, "correct": status == "ok"} if status in ("ok", "wrong") else {}
    return Row(case=of or case(), status=status, reason=REASONS.get(status, "why"), metrics={**timed, **metrics})


def pair(slowdown=0.0, half=0.002, name="gelu", systematic=0.0, processes=1, **more):
    rows = more.pop("before", row()), more.pop("after", row())
    ratio = more.pop("ratio", Ratio(math.log1p(slowdown), half, 9, paired=True, systematic=systematic))
    return Pair(name, "", *rows, ratio=ratio, processes=(processes, processes), **more)


def words(*pairs, limit=LIMIT):
    return [one.word for one in decide(pairs, limit)]


@pytest.mark.parametrize(
    ("after", "advice"),
    [
        (row(wall_us=1e6), "there are no paired rounds, as for slow calls; measure.benchmark.max_s=10 allows them"),
        (row(), "there are no paired rounds of both; repeat it when no other process uses the machine"),
        (row(wall_us=1e6, verdict="contended"), "there are no paired rounds of both; repeat it when no other process "),
        (row(wall_us=None), "one has no time; add measure=benchmark"),
        (row(wall_us=0.0), "one cannot be told from an empty call; take a larger problem"),
    ],
)
def test_a_pair_without_a_ratio_says_what_to_do(after, advice):
    (found,) = decide([pair(after=after, ratio=None)], LIMIT)
    assert found.word == "unclear"
    assert found.reason.startswith(f"its times cannot be compared: {advice}")


@pytest.mark.parametrize(
    ("slowdown", "half", "word", "code"),
    [
        (0.0, 0.02, "ok", 0),
        (-0.5, 0.4, "ok", 0),
        (0.02, 0.005, "ok", 0),
        (0.0, 0.05, "unclear", 3),
        (0.06, 0.05, "unclear", 3),
        (0.06, 0.02, "slower", 1),
        (0.0, math.inf, "unclear", 3),
        (1.0, math.inf, "unclear", 3),
    ],
)
def test_the_interval_and_the_limit_decide(slowdown, half, word, code):
    (found,) = decide([pair(slowdown, half)], LIMIT)
    assert found.word == word
    assert exit_code([found]) == code


def test_the_limit_is_what_was_asked_for():
    assert words(pair(0.06, 0.02), limit=0.1) == ["ok"]
    assert words(pair(0.06, 0.02), limit=0.01) == ["slower"]


def test_a_slowdown_must_stand_out_among_all_that_were_compared():
    doubtful = pair(0.06, 0.028)
    assert words(doubtful) == ["slower"]
    found, *_ = decide([doubtful, *[pair()] * 50], LIMIT)
    assert found.word == "unclear"
    assert found.reason.endswith("not corrected for all comparisons: replicas=3")
    assert words(pair(0.2, 0.028), *[pair()] * 50)[0] == "slower"


@pytest.mark.parametrize(
    ("before", "after", "word", "code"),
    [
        ("ok", "wrong", "wrong", 1),
        ("error", "wrong", "wrong", 1),
        ("wrong", "wrong", "not judged", 3),
        ("wrong", "ok", "not judged", 3),
        ("ok", "error", "failing", 1),
        ("wrong", "crashed", "failing", 1),
        ("error", "oom", "not judged", 3),
        ("error", "ok", "not judged", 3),
        ("ok", "unsupported", "removed", 3),
        ("unsupported", "ok", "new", 3),
        ("unsupported", "error", "new", 3),
        ("unsupported", "unsupported", "not judged", 3),
    ],
)
def test_what_has_no_time_in_one_revision_is_judged_by_what_it_was_before(before, after, word, code):
    (found,) = decide([pair(before=row(before), after=row(after), ratio=None)], LIMIT)
    assert found.word == word
    assert "why" in found.reason or "beyond tolerance" in found.reason
    assert exit_code([found]) == code
    passed = 1 if code == 1 else 0  # what cannot be judged does not decide, if something else was
    assert exit_code(decide([found.pair, pair()], LIMIT)) == passed


def test_outputs_that_are_wrong_in_the_timed_calls_alone_are_wrong():
    after = row(verdict="wrong", verdict_reason="in the timed calls: y differs")
    assert words(pair(after=after)) == ["wrong"]


def test_a_time_that_cannot_be_true_after_the_change_alone_is_unclear():
    false = row(verdict="impossible", verdict_reason="it ran no kernel")
    assert words(pair(after=false)) == ["unclear"]
    assert words(pair(before=false, after=false)) == ["ok"]


def test_a_row_that_is_missing_is_unclear_unless_a_run_does_not_have_the_case():
    assert words(pair(after=None, ratio=None)) == ["unclear"]
    assert words(pair(after=None, ratio=None, doubt="only in main")) == ["removed"]


def test_a_revision_that_read_files_of_the_working_tree_decides_nothing():
    mixed = row(worktree_files="tuned.json")
    (found,) = decide([pair(before=mixed)], LIMIT)
    assert found.word == "unclear"
    assert found.reason.startswith("before the change it read tuned.json of the working tree too; name such files")
    assert again([found]) == []
    assert words(pair(before=mixed, after=row("wrong"))) == ["wrong"]


@pytest.mark.parametrize(
    ("status", "word"), [("wrong", "wrong"), ("error", "failing"), ("unsupported", "failing"), ("ok", "not judged")]
)
def test_a_revision_that_fails_by_files_of_the_working_tree_was_not_bad_before(status, word):
    before = row("error" if status == "ok" else status, worktree_files="helper.py")
    (found,) = decide([pair(before=before, after=row(status), ratio=None)], LIMIT)
    assert found.word == word
    assert ("both sides used helper.py of the working tree" in found.reason) == (status != "ok")


def test_nothing_judged_is_no_success_but_everything_skipped_is():
    skipped = [GateDecision(Pair("gelu", ""), "skipped", "the same files")]
    assert exit_code(decide([], LIMIT)) == 3
    assert exit_code(skipped) == 0
    assert exit_code(skipped + decide([pair(0.2)], LIMIT)) == 1
    absent = pair(before=row("unsupported"), after=row("unsupported"))
    assert exit_code(skipped + decide([absent], LIMIT)) == 3


@pytest.mark.parametrize(
    ("slowdown", "half", "systematic", "advice"),
    [
        (0.0, 0.06, 0.0, "needs an interval of ±3 %, has ±6 %: replicas=5"),
        (0.0, 1.3, 0.0, "needs an interval of ±3 %, has ±130 %: "),
        (0.029, 0.06, 0.0, "the slowdown is too near to the limit; another --max-slowdown"),
        (0.02, 0.02, 0.015, "of which ±1.5 % is the instrument's"),
    ],
)  # fmt: skip
def test_an_unclear_one_says_what_would_decide_it(slowdown, half, systematic, advice):
    (found,) = decide([pair(slowdown, half, systematic=systematic)], LIMIT)
    assert found.word == "unclear"
    assert advice in found.reason


def test_what_several_processes_left_unclear_needs_more_of_them():
    (found,) = decide([pair(0.0, 0.06, processes=5)], LIMIT)
    assert found.reason.endswith("has ±6 %: replicas=21")
    (found,) = decide([pair(0.029, 0.06, after=row(verdict="contended"))], LIMIT)  # what it needs says nothing
    assert found.reason.endswith("has ±6 %: repeat it when no other process uses the machine")


def test_calls_that_are_too_slow_for_paired_rounds_are_told_what_allows_them():
    slow = row(wall_us=500_000.0)
    (found,) = decide([pair(before=slow, after=slow, ratio=None)], LIMIT)
    assert "measure.benchmark.max_s=5 " in found.reason


def test_what_is_unclear_is_measured_again_and_a_slowdown_until_three_processes_have_seen_it():
    pairs = [pair(), pair(0.2), pair(0.2, processes=3), pair(0.0, 0.2, processes=3), pair(ratio=None)]
    findings = decide(pairs, LIMIT)
    assert [one.word for one in findings] == ["ok", "slower", "slower", "unclear", "unclear"]
    assert again(findings) == [1, 3, 4]
    slow = pair(ratio=None, after=row(wall_us=1e6))
    assert again(decide([slow], LIMIT)) == []


def rounds(before, after, slowdown, wobble=0.001):
    times = [20 * (1 + wobble * (-1) ** i) for i in range(10)]
    batches = {
        before.key: times,
        after.key: [us * (1 + slowdown) * (1 + wobble * (i % 3)) for i, us in enumerate(times)],
    }
    return PairedRounds(batches, dict.fromkeys(batches, "perf_counter"))


def test_pairs_take_the_ratio_from_the_paired_rounds_of_all_processes():
    couples, rows, compared = [], [], []
    for cols, slowdown in ((8, 0.0), (16, 0.1)):
        for replica in range(3 if slowdown else 1):
            before, after = (case(impl, replica, cols=cols) for impl in ("naive", "triton"))
            couples += [(before, after)] if replica == 0 else []
            rows += [row(of=before), row(of=after)]
            compared.append(rounds(before, after, slowdown))
    names = Names([after for _, after in couples])
    found = before_after(couples, rows, compared, names)
    assert [one.name for one in found] == ["gelu cols=8 triton", "gelu cols=16 triton"]
    assert [one.processes for one in found] == [(1, 1), (3, 3)]
    assert found[1].ratio.log == pytest.approx(math.log(1.1), abs=0.002)
    assert words(*found) == ["ok", "slower"]
    assert words(*before_after(couples, rows[:1], compared, names)) == ["unclear", "unclear"]
    (found,) = before_after(
        couples[1:], rows, compared[:1] + compared[2:], names
    )  # another case ended the first process
    assert (found.processes, words(found)) == ((2, 2), ["slower"])
    wrong = replace(row("wrong"), case=rows[3].case)
    assert words(*before_after(couples[1:], [*rows[:3], wrong, *rows[4:]], compared[2:], names)) == ["wrong"]


def test_a_change_that_paired_and_separate_times_contradict_is_unclear():
    before, after = case("naive"), case("triton")
    rows = [row(of=each, wall_us=us, interval_pct=1.0) for each, us in ((before, 20.0), (after, 90.0))]
    (found,) = before_after([(before, after)], rows, [rounds(before, after, -0.1)], Names([after]))
    (decision,) = decide([found], LIMIT)
    assert decision.word == "unclear"
    assert decision.reason.startswith("1.11x as fast in paired rounds, 0.222x by separate times")
    assert decision.change == "-9.9 % (no interval)"
    assert decide([pair(24.4, 0.01)], LIMIT)[0].change == "25.40x the time (25.15x to 25.66x)"
    assert again([decision]) == [0]


@pytest.mark.parametrize(("after_us", "word"), [(2000.0, "slower"), (40.0, "unclear"), (2.0, "ok")])
def test_calls_too_slow_for_paired_rounds_are_judged_by_their_separate_times(after_us, word):
    before, after = case("naive"), case("triton")
    rows = [row(of=each, wall_us=us, interval_pct=1.0) for each, us in ((before, 20.0), (after, after_us))]
    (decision,) = decide(before_after([(before, after)], rows, [], Names([after])), LIMIT)
    assert decision.word == word
    assert decision.reason.startswith("there are no paired rounds of both" if word == "unclear" else "")
    assert again([decision]) == [0] * (word != "ok")


def mixed():
    pairs = [
        pair(name="gelu fine"),
        pair(0.1, name="gelu slow | `x` <b>"),
        pair(after=row("error"), ratio=None, name="gelu broken"),
        pair(0.0, 0.2, name="gelu unknown"),
    ]
    return [*decide(pairs, LIMIT), GateDecision(Pair("gelu same", ""), "skipped", "the same files")]


def test_the_terminal_shows_what_is_not_ok_and_ends_with_the_decision():
    lines = terminal_lines(mixed(), SIDES, LIMIT)
    assert lines[0] == "gate: the working tree against main"
    assert lines[1].startswith("  failing: gelu broken: error: why")
    assert lines[2].startswith("  slower: gelu slow | `x` <b>: +10.0 % (+9.8 to +10.2)")
    assert lines[3].startswith("  unclear: gelu unknown: +0 % (-18.1 to +22.1); needs an interval")
    assert lines[-1] == "FAIL: 1 slower by more than 3 %, 1 failing, 1 unclear (4 compared with main, 1 skipped)"


def test_the_comment_has_the_decision_first_then_what_caused_it_and_folds_the_rest():
    text = comment(mixed(), SIDES, LIMIT, "python -m runner gate --against main")
    first, *_ = text.splitlines()
    assert first.startswith("**FAIL**: 1 slower by more than 3 %")
    shown, folded = text.split("<details>")
    assert "gelu broken" in shown
    assert "gelu fine" not in shown
    assert "gelu fine" in folded
    assert "gelu same" in folded
    assert r"`gelu slow \| 'x' <b>`" in shown  # within code nothing is markup


def test_what_an_implementation_says_is_no_markup_in_the_comment():
    after = Row(case=case(), status="error", reason="<script> | @team [x](http://y)\n# big", phase="build")
    text = comment(decide([pair(after=after, ratio=None)], LIMIT), SIDES, LIMIT)
    assert not [mark for mark in ("<script>", "@team", "[x]", "\n# big") if mark in text]


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ([pair()], "PASS: nothing is slower by more than 3 % (1 compared with main)"),
        ([pair(0.0, 0.2)], "UNCLEAR: 1 unclear (1 compared with main)"),
        ([], "UNCLEAR: nothing could be compared (0 compared with main)"),
    ],
)
def test_the_decision_in_one_line(pairs, said):
    assert decision_line(decide(pairs, LIMIT), SIDES, LIMIT) == said
