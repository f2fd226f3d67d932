"""Judge whether a change makes anything slower, wrong or failing: the decision of ``runner gate``, and its text.

Everything here follows from pairs of rows and the ratio of their times. Nothing measures.
"""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from runner.experiment.case import CaseRecord
from runner.experiment.results import Comparison, Row, printable
from runner.report import derive
from runner.timing.procedure import UNTRUE
from runner.timing.statistics import BATCHES, LEVEL, T_975, Ratio, survival

if TYPE_CHECKING:
    from runner.report import compare
    from runner.report.derive import Names

Word = Literal["slower", "wrong", "failing", "unclear", "ok", "new", "removed", "not judged", "skipped"]
ALARMS: tuple[Word, ...] = ("wrong", "failing", "slower")
JUDGED: tuple[Word, ...] = (*ALARMS, "unclear", "ok")
ABSENT = ("unsupported", "skipped")  # statuses of a case that does not exist there, or was never started
PASS, FAIL, UNCLEAR = 0, 1, 3  # exit codes
MOST_LONGER = 50  # times the measuring that is worth advising; beyond, the limit is too near to the slowdown
REPLICAS = 3  # processes at least whose spread gives an interval of use
SAME_CODE = "the same code in both"
DEFAULT_MAX_S, DEFAULT_ROUNDS = 0.6, 40  # of conf/measure/benchmark.yaml


@dataclass(frozen=True)
class Pair:
    """One problem and implementation, before a change and after it."""

    name: str  # ``gelu cols=1024 triton``
    before: Row | None = None  # replicas merged; None: no row
    after: Row | None = None
    ratio: Ratio | None = None  # time after over time before; None: no ratio could be formed
    processes: int = 1  # that have measured both
    doubt: str = ""  # why there is no ratio, or no conclusion from it; "" if that is not known
    lone: bool = False  # a missing row means that one side does not have the case, not that it was not measured
    skipped: str = ""  # why it was not measured; "" if it was


@dataclass(frozen=True)
class Finding:
    """The decision on one pair."""

    pair: Pair
    word: Word
    reason: str = ""  # one line; of an unclear one what would decide it

    @property
    def change(self) -> str:
        """The change of the time with its 95 % interval: ``+10.2 % (+9.8 to +10.6)``; "" without a ratio."""
        ratio = self.pair.ratio
        if ratio is None or not self.pair.after or not self.pair.before:
            return ""
        low, middle, high = (math.expm1(ratio.log + half) for half in (-ratio.half, 0.0, ratio.half))
        if not math.isfinite(ratio.half):
            return f"{_signed(middle)} % (no interval)"
        return f"{_signed(middle)} % ({_signed(low)} to {_signed(high)})"


@dataclass(frozen=True)
class Sides:
    """The names of what is compared: ``origin/main`` and ``worktree``, or two runs."""

    before: str
    after: str


def pairs(
    couples: Sequence[tuple[CaseRecord, CaseRecord]], rows: Sequence[Row], rounds: Sequence[Comparison], names: Names
) -> list[Pair]:
    """Return a pair for each of ``couples``, the case before and after the change, from the rows of all replicas."""
    replicas, compared = derive.replicas(rows), derive.by_key(rounds)
    found = []
    for couple in couples:
        before, after = (replicas.get(case.shared_key, []) for case in couple)
        ratio = derive.ratio_in_rounds(after, before, compared) if before and after else None
        found.append(Pair(names.case(couple[1]), _merged(before), _merged(after), ratio, len(after)))
    return found


def _merged(replicas: Sequence[Row]) -> Row | None:
    return derive.merged(replicas) if replicas else None


def of_runs(found: compare.Comparison) -> list[Pair]:
    """Return a pair for each case of two runs."""
    timed = [
        Pair(f"{one.problem} {one.implementation}", one.reference, one.row, one.ratio, min(one.replicas), one.doubt)
        for one in found.pairs
    ]
    return timed + [
        Pair(f"{one.problem} {one.implementation}", one.reference, one.row, doubt=one.reason, lone=True)
        for one in found.left_out
    ]


def judge(pairs: Sequence[Pair], max_slowdown: float) -> list[Finding]:
    """Return the decision on each pair. ``max_slowdown``: the largest slowdown that passes, as a share, above 0.

    A pair is slower if the low end of its interval, corrected for the number of comparisons (Holm's method), is above
    the limit. It is ok if the upper end is not above the limit. Between them it is unclear.
    """
    limit = math.log1p(max_slowdown)
    words = [_without_time(pair) for pair in pairs]
    timed = {i: pair.ratio for i, pair in enumerate(pairs) if words[i] is None and pair.ratio}
    beyond = _beyond(timed, limit)
    return [
        Finding(pair, *(words[i] or _by_time(pair, timed[i], limit, slower=i in beyond)))
        for i, pair in enumerate(pairs)
    ]


def _without_time(pair: Pair) -> tuple[Word, str] | None:
    """Return the decision if the time has no say in it."""
    before, after = pair.before, pair.after
    if pair.skipped:
        return "skipped", pair.skipped
    if pair.lone and (before is None or after is None):
        return "new" if before is None else "removed", pair.doubt
    if before is None or after is None:
        missing = [name for name, row in (("before", before), ("after", after)) if row is None]
        return "unclear", f"not measured {' and '.join(missing)} the change: run it again"
    absent = [row for row in (before, after) if row.status in ABSENT]
    if len(absent) == 2:
        return "not judged", f"in neither: {after.reason}"
    if absent:
        return "removed" if absent[0] is after else "new", absent[0].reason
    if _is_wrong(after) or after.status != "ok":
        return _bad(before, after)
    if _is_wrong(before) or before.status != "ok":
        return "not judged", f"ok now; before the change it was {_state(before)}"
    if after.metrics.get("verdict") in UNTRUE and before.metrics.get("verdict") not in UNTRUE:
        verdict, why = after.metrics["verdict"], after.metrics.get("verdict_reason")
        return "unclear", f"its time after the change is {verdict}: {why}"
    if pair.ratio is None:
        return "unclear", f"its times cannot be compared: {pair.doubt or _no_ratio(before, after)}"
    return None


def _bad(before: Row, after: Row) -> tuple[Word, str]:
    """Return the decision on a pair that is wrong or fails after the change."""
    reason = str(after.reason or after.metrics.get("verdict_reason") or "")
    if _is_wrong(after):
        return ("not judged", f"wrong in both: {reason}") if _is_wrong(before) else ("wrong", reason)
    if before.failed and not _is_wrong(before):
        return "not judged", f"{before.status} before the change, {after.status} after it: {reason}"
    return "failing", f"{after.status}: {reason}"


def _is_wrong(row: Row) -> bool:
    return row.status == "wrong" or row.metrics.get("verdict") == "wrong"


def _state(row: Row) -> str:
    return "wrong" if _is_wrong(row) else row.status


def _no_ratio(before: Row, after: Row) -> str:
    if before.time_us is None or after.time_us is None:
        return "one has no time; add measure=benchmark"
    if min(before.time_us, after.time_us) <= 0:
        return "one cannot be told from an empty call; take a larger problem"
    seconds = 1e-6 * max(before.time_us, after.time_us) * BATCHES
    return f"there are no paired rounds, as for slow calls; measure.benchmark.max_s={seconds:.2g} allows them"


def _beyond(ratios: Mapping[int, Ratio], limit: float) -> set[int]:
    """Return which of ``ratios`` are above ``limit``, corrected for their number (Holm 1979)."""
    chances = {i: _chance(ratio, limit) for i, ratio in ratios.items()}
    found: set[int] = set()
    for rank, i in enumerate(sorted(chances, key=lambda i: chances[i])):
        if chances[i] * (len(chances) - rank) > LEVEL:
            break
        found.add(i)
    return found


def _chance(ratio: Ratio, limit: float) -> float:
    """Return the two-sided p-value of a ratio above ``limit``, if the true one is at the limit; 1 below it."""
    beyond = ratio.log - limit
    if beyond <= 0 or not math.isfinite(ratio.half):
        return 1.0
    return 2 * survival(beyond / (ratio.half / T_975[ratio.freedom]), ratio.freedom) if ratio.half else 0.0


def _by_time(pair: Pair, ratio: Ratio, limit: float, *, slower: bool) -> tuple[Word, str]:
    if slower:
        return "slower", ""
    if ratio.log + ratio.half <= limit:
        return "ok", ""
    return "unclear", _advice(pair, ratio, limit)


def _advice(pair: Pair, ratio: Ratio, limit: float) -> str:
    """Return what would decide an unclear pair."""
    if not math.isfinite(ratio.half):
        doubt = pair.doubt or "the times have no interval"
        return f"{doubt}: measure both at once (--against), or each with replicas={REPLICAS}"
    if ratio.log - ratio.half > limit:
        more = max(REPLICAS, pair.processes + REPLICAS - 1)
        return f"above the limit by its own interval, but not corrected for all comparisons: replicas={more}"
    needed, now = abs(limit - ratio.log), f"±{100 * ratio.half:.2g} %"
    wanted = f"needs an interval of ±{100 * needed:.2g} %, has {now}"
    sampling = math.sqrt(max(0.0, ratio.half**2 - ratio.systematic**2))
    left = needed**2 - ratio.systematic**2
    if not ratio.paired:
        return f"{wanted}: measure both in one run (--against), in paired rounds"
    if needed <= ratio.systematic:
        return f"{wanted}, of which ±{100 * ratio.systematic:.2g} % is the instrument's: a larger --max-slowdown"
    longer = sampling**2 / left
    if longer > MOST_LONGER:
        return f"{wanted}: the slowdown is too near to the limit; another --max-slowdown"
    longer, fields = max(longer, 1.0), _fields(pair)
    processes = f"{wanted}: replicas={max(REPLICAS, math.ceil(longer * pair.processes))}"
    if pair.processes > 1:
        return processes
    rounds = math.ceil(longer * float(fields.get("paired_rounds") or DEFAULT_ROUNDS))
    seconds = longer * float(fields.get("max_s") or DEFAULT_MAX_S)
    return f"{processes}, or measure.benchmark.max_s={seconds:.2g} measure.benchmark.paired_rounds={rounds}"


def _fields(pair: Pair) -> Mapping[str, Any]:
    """Return the fields of the benchmark of the case."""
    measures = pair.after.case.measures if pair.after else ()
    return next((one.fields for one in measures if one.name == "benchmark"), {})


def again(findings: Sequence[Finding]) -> list[int]:
    """Return the places of what to measure again: what is unclear, and a slowdown that few processes have seen."""
    timed = [(i, one) for i, one in enumerate(findings) if one.pair.ratio]
    return [i for i, one in timed if one.word == "unclear" or (one.word == "slower" and one.pair.processes < REPLICAS)]


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 1 if a pair is slower, wrong or failing; else 3 if one is unclear or nothing could be judged; else 0."""
    words = {one.word for one in findings}
    if words & {*ALARMS}:
        return FAIL
    nothing = not words & {"ok", "skipped", "new"}
    return UNCLEAR if "unclear" in words or nothing else PASS


# --- text ---


def verdict(findings: Sequence[Finding], sides: Sides, max_slowdown: float) -> str:
    """Return the decision in one line."""
    counts = Counter(one.word for one in findings)
    share = f"{100 * max_slowdown:.3g} %"
    judged = sum(counts[word] for word in JUDGED)
    measured = f"{judged} compared with {sides.before}"
    if skipped := counts["skipped"]:
        measured += f", {skipped} skipped"
    if code := exit_code(findings):
        order: tuple[Word, ...] = ("slower", "wrong", "failing", "unclear")
        texts = {"slower": f"slower by more than {share}"}
        parts = [f"{counts[word]} {texts.get(word, word)}" for word in order if counts[word]]
        return (
            f"{'FAIL' if code == FAIL else 'UNCLEAR'}: {', '.join(parts) or 'nothing could be compared'} ({measured})"
        )
    return f"PASS: nothing is slower by more than {share} ({measured})"


ORDER: tuple[Word, ...] = ("wrong", "failing", "slower", "unclear", "removed", "new", "not judged", "ok", "skipped")


def terminal_lines(findings: Sequence[Finding], sides: Sides, max_slowdown: float) -> list[str]:
    """Return what the terminal prints: a line for each problem that is not ok, counts of the others, the decision."""
    found = []
    for word in ORDER[:-2]:
        for one in (one for one in findings if one.word == word):
            text = "; ".join(filter(None, (one.change, one.reason)))
            found.append(printable(f"  {word}: {one.pair.name}: {text}"))
    if passed := [one for one in findings if one.word == "ok"]:
        worst = max(passed, key=lambda one: one.pair.ratio.log if one.pair.ratio else -math.inf)
        found.append(printable(f"  ok: {len(passed)}, of which the slowest is {worst.pair.name}: {worst.change}"))
    for reason, count in Counter(one.reason for one in findings if one.word == "skipped").items():
        found.append(f"  skipped: {count}, {reason}")
    return [f"gate: {sides.after} against {sides.before}", *found, verdict(findings, sides, max_slowdown)]


def comment(findings: Sequence[Finding], sides: Sides, max_slowdown: float, command: str = "") -> str:
    """Return the summary as Markdown: the decision, then what caused it as a table, then all the rest, folded."""
    shown = [one for word in ORDER[:4] for one in findings if one.word == word]
    rest = [one for word in ORDER[4:] for one in findings if one.word == word]
    head, _, text = verdict(findings, sides, max_slowdown).partition(": ")
    parts = [f"**{head}**: {_text(text)}", *([_table(shown)] if shown else [])]
    if rest:
        parts.append(f"<details><summary>{len(rest)} more</summary>\n\n{_table(rest)}\n\n</details>")
    about = f"Time of {_code(sides.after)} over {_code(sides.before)}, minus 1, with its 95 % interval."
    return "\n\n".join([*parts, about + (f" Command: {_code(command)}" if command else "")]) + "\n"


def _table(findings: Sequence[Finding]) -> str:
    lines = [f"| {one.word} | {_code(one.pair.name)} | {one.change} | {_text(one.reason)} |" for one in findings]
    return "\n".join(["| | problem | change of time | |", "| --- | --- | ---: | --- |", *lines])


def _code(text: str) -> str:
    """Return ``text`` as code that can stand in a table: nothing in it is markup, a mention or a link."""
    return f"`{printable(text).replace('`', chr(39)).replace('|', chr(92) + '|')}`"


def _text(text: str) -> str:
    """Return ``text`` as words that can stand in a table: signs of markup, HTML and mentions are shown as they are."""
    escaped = html.escape(printable(text), quote=False)
    return "".join(f"&#{ord(sign)};" if sign in "|`*[]@#~\\" else sign for sign in escaped)


def _signed(share: float) -> str:
    """Return a share in percent with its sign and three significant digits at most."""
    percent = 100 * share
    return f"{percent:+.0f}" if abs(percent) >= 100 else f"{percent:+.2g}" if abs(percent) < 1 else f"{percent:+.1f}"
