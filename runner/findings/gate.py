"""Decide whether a change makes anything slower, wrong or failing. Measures nothing."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..records.case import CaseRecord
from ..records.figures import figure, times
from ..records.paired_rounds import PairedRounds
from ..records.row import Row
from ..timing.statistics import BATCHES, Ratio, standing
from ..timing.verdict import UNTRUE
from .names import Names
from .ratios import bounds, by_key, doubt, time_ratio
from .replicas import merge_replicas, replicas_by_case
from .run_comparison import Pair
from .validity import contended, is_wrong

Word = Literal["slower", "wrong", "failing", "unclear", "ok", "new", "removed", "not judged", "skipped"]
ALARMS: tuple[Word, ...] = ("wrong", "failing", "slower")
JUDGED: tuple[Word, ...] = (*ALARMS, "unclear", "ok")
ABSENT = ("unsupported", "skipped")  # statuses of a case that does not exist there, or was never started
PASS, FAIL, UNCLEAR = 0, 1, 3  # exit codes
BESIDE = "name such files from __file__, so that each revision reads its own"
ALONE = "repeat it when no other process uses the machine"
ONE_CALL = "give both functions to one call of bench, which samples them in turn"
MOST_LONGER = 50  # times the measuring that is worth advising; beyond, the limit is too near to the slowdown
TENFOLD = 10  # as long: from here a factor says more than a percentage
REPLICAS = 3  # processes at least whose spread gives an interval of use


@dataclass(frozen=True)
class GateDecision:
    """The decision on a case before a change, which is the reference, and after it."""

    pair: Pair
    word: Word
    reason: str = ""  # one line; of an unclear one what would decide it

    @property
    def change(self) -> str:
        """The change of the time with its 95 % interval: ``+10.2 % (+9.8 to +10.6)``; "" without a ratio.

        A time that is ten times as long is a factor: ``25.40x the time (25.10x to 25.70x)``.
        """
        ratio = self.pair.ratio
        if ratio is None:
            return ""
        values = [math.exp(ratio.log), *(bounds(ratio) or ())]
        large = values[0] >= TENFOLD
        change, *ends = (times(value) if large else _signed(value - 1) for value in values)
        return f"{change} {'the time' if large else '%'} ({' to '.join(ends) or 'no interval'})"


@dataclass(frozen=True)
class Sides:
    """The names of what is compared: ``origin/main`` and ``worktree``, or two runs."""

    before: str
    after: str


def before_after(
    couples: Sequence[tuple[CaseRecord, CaseRecord]], rows: Sequence[Row], rounds: Sequence[PairedRounds], names: Names
) -> list[Pair]:
    """Return a pair for each of ``couples``, the case before and after the change, from the rows of all replicas."""
    replicas, compared, pairs = replicas_by_case(rows), by_key(rounds), []
    for couple in couples:
        before, after = (replicas.get(case.shared_key, []) for case in couple)
        in_rounds = ({row.case.replica for row in side if row.case.key in compared} for side in (before, after))
        paired = set.intersection(*in_rounds)  # a process that another case has ended has no rounds
        timed = [[row for row in side if row.case.replica in paired] if paired else side for side in (after, before)]
        ratio = time_ratio(timed[0], timed[1], compared) if before and after else None
        if separate := ratio and not ratio.paired:
            ratio = ratio if bounds(ratio) else None
        pair = Pair(
            *names.parts(couple[1]),
            reference=merge_replicas(before) if before else None,
            row=merge_replicas(after) if after else None,
            doubt=_no_rounds(before[0], after[0]) if separate else doubt(ratio) if ratio else "",
            ratio=ratio,
            processes=(len(timed[1]), len(timed[0])),
        )
        pairs.append(pair)
    return pairs


def decide(pairs: Sequence[Pair], max_slowdown: float) -> list[GateDecision]:
    """Return the decision on each pair. ``max_slowdown``: the largest slowdown that passes, as a share, above 0.

    A pair is slower if the low end of its interval, corrected for the number of comparisons (Holm's method), is above
    the limit. It is ok if the upper end is not above the limit. Between them it is unclear.
    """
    limit = math.log1p(max_slowdown)
    words = [_without_time(pair) for pair in pairs]
    timed = {i: pair.ratio for i, pair in enumerate(pairs) if words[i] is None and pair.ratio}
    beyond = standing([ratio.chance_beyond(ratio.log - limit) for ratio in timed.values()])
    slower = {i for place, i in enumerate(timed) if place in beyond}
    return [
        GateDecision(pair, *(words[i] or _by_time(pair, timed[i], limit, slower=i in slower)))
        for i, pair in enumerate(pairs)
    ]


def _without_time(pair: Pair) -> tuple[Word, str] | None:
    """Return the decision if the time has no say in it."""
    before, after = pair.reference, pair.row
    if pair.doubt and (before is None or after is None):
        return "removed" if before else "new", pair.doubt
    if before is None or after is None:
        missing = [name for name, row in (("before", before), ("after", after)) if row is None]
        return "unclear", f"not measured {' and '.join(missing)} the change: run it again"
    if before.status != "ok" != after.status and (files := before.metrics.get("worktree_files")):
        reason = f"both sides used {files} of the working tree, which differs in the revision"
        return ("wrong", f"{_why(after)}; {reason}") if is_wrong(after) else ("failing", f"{_status(after)}; {reason}")
    absent = [row for row in (before, after) if row.status in ABSENT]
    if len(absent) == 2:
        return "not judged", f"in neither: {after.reason}"
    if absent:
        return "removed" if absent[0] is after else "new", absent[0].reason
    if is_wrong(after) or after.status != "ok":
        return _bad(before, after)
    if (files := before.metrics.get("worktree_files")) and before.status == "ok":
        return "unclear", f"before the change it read {files} of the working tree too; {BESIDE}"
    if is_wrong(before) or before.status != "ok":
        return "not judged", f"ok now; before the change it was {_status(before)}"
    if after.metrics.get("verdict") in UNTRUE and before.metrics.get("verdict") not in UNTRUE:
        verdict, why = after.metrics["verdict"], after.metrics.get("verdict_reason")
        return "unclear", f"its time after the change is {verdict}: {why}"
    if pair.ratio is None:
        return "unclear", f"its times cannot be compared: {pair.doubt or _no_rounds(before, after)}"
    return None


def _bad(before: Row, after: Row) -> tuple[Word, str]:
    """Return the decision on a pair that is wrong or fails after the change."""
    if is_wrong(after):
        return ("not judged", f"wrong in both: {_why(after)}") if is_wrong(before) else ("wrong", _why(after))
    if before.failed and not is_wrong(before):
        return "not judged", f"{before.status} before the change; after it {_status(after)}"
    return "failing", _status(after)


def _status(row: Row) -> str:
    return f"{'wrong' if is_wrong(row) else row.status}: {_why(row)}"


def _why(row: Row) -> str:
    return str(row.reason or row.metrics.get("verdict_reason") or "")


def _no_rounds(before: Row, after: Row) -> str:
    if before.time_us is None or after.time_us is None:
        return "one has no time; add measure=benchmark"
    if min(before.time_us, after.time_us) <= 0:
        return "one cannot be told from an empty call; take a larger problem"
    seconds = 1e-6 * max(before.time_us, after.time_us) * BATCHES
    verdicts = before.metrics.get("verdict"), after.metrics.get("verdict")
    longest = (each.fields.get("max_s") for each in after.case.measures if each.name == "benchmark")
    if "contended" in verdicts or seconds <= float(next(longest, None) or 0.0):
        return f"there are no paired rounds of both; {ALONE}"
    return f"there are no paired rounds, as for slow calls; measure.benchmark.max_s={seconds:.2g} allows them"


def _by_time(pair: Pair, ratio: Ratio, limit: float, *, slower: bool) -> tuple[Word, str]:
    if slower:
        return "slower", ""
    if ratio.log + ratio.half <= limit:
        return "ok", ""
    return "unclear", _advice(pair, ratio, limit)


def _advice(pair: Pair, ratio: Ratio, limit: float) -> str:
    """Return the advice that would decide an unclear pair."""
    processes = min(pair.processes)
    if ratio.separate is not None:
        return pair.doubt
    if pair.row and pair.row.case.of_program:
        return f"{pair.doubt or 'two calls of bench differ by as much'}: {ONE_CALL}"
    if not math.isfinite(ratio.half):
        reason = pair.doubt or "the times have no interval"
        return f"{reason}: measure both at once (--against), or each with replicas={REPLICAS}"
    if ratio.log - ratio.half > limit:
        more = max(REPLICAS, processes + REPLICAS - 1)
        return f"above the limit by its own interval, but not corrected for all comparisons: replicas={more}"
    needed = abs(limit - ratio.log)
    needs, has, own = (f"±{figure(100 * share, '%', 2)}" for share in (needed, ratio.half, ratio.systematic))
    wanted = f"needs an interval of {needs}, has {has}"
    if not ratio.paired:
        return pair.doubt or f"{wanted}: measure both in one run (--against), in paired rounds"
    if needed <= ratio.systematic:
        return f"{wanted}, of which {own} is the instrument's: a larger --max-slowdown"
    longer = ratio.sampling**2 / (needed**2 - ratio.systematic**2)
    if longer > MOST_LONGER and any(row and contended(row) for row in (pair.reference, pair.row)):
        return f"{wanted}: {ALONE}"
    if longer > MOST_LONGER:
        return f"{wanted}: the slowdown is too near to the limit; another --max-slowdown"
    return f"{wanted}: replicas={max(REPLICAS, math.ceil(longer * processes))}"


def again(decisions: Sequence[GateDecision]) -> list[int]:
    """Return the places of what to measure again: what is unclear, and a slowdown that few processes have seen."""
    places = []
    for place, each in enumerate(decisions):
        is_paired = each.pair.ratio is not None and each.pair.ratio.paired
        undecided = each.word == "unclear" and (is_paired or ALONE in each.reason) and BESIDE not in each.reason
        if undecided or (each.word == "slower" and min(each.pair.processes) < REPLICAS):
            places.append(place)
    return places


def exit_code(decisions: Sequence[GateDecision]) -> int:
    """Return 1 if a pair is slower, wrong or failing; else 3 if one is unclear or nothing could be judged; else 0.

    Skipped pairs, alone or beside new ones, pass, but not beside pairs of which none could be judged.
    """
    words = {decision.word for decision in decisions}
    if words & {*ALARMS}:
        return FAIL
    nothing = "ok" not in words and ("skipped" not in words or "not judged" in words)
    return UNCLEAR if "unclear" in words or nothing else PASS


def _signed(share: float) -> str:
    """Return a share in percent with its sign and three significant digits at most."""
    percent = 100 * share
    return f"{percent:+.0f}" if abs(percent) >= 100 else f"{percent:+.2g}" if abs(percent) < 1 else f"{percent:+.1f}"
