"""The results of ``runner tune`` as text."""

import math
from operator import itemgetter

from ..findings.names import Names
from ..findings.ratios import bounds, doubt, inverse
from ..findings.tuning import Contest
from ..records.grouping import grouped
from ..records.plain_text import printable


def describe(contest: Contest, names: Names) -> list[str]:
    """Return the lines to print about ``contest``, without the command that runs the fastest."""
    reasons = grouped(contest.failed, itemgetter(1))
    if contest.fastest is None:
        reason = max(reasons, key=lambda reason: len(reasons[reason]), default="not measured")
        return [printable(f"tune: {names.heading(contest.default)}: no candidate has a time: {reason}")]
    name = names.impl(contest.fastest)
    tied = [names.impl(case) for case in contest.left if case.key != contest.fastest.key]
    rank = "among the fastest" if tied else "the fastest"
    lines = [f"tune: {names.heading(contest.default)}: {name}, {rank} of {len(contest.cases)}"]
    lines.append(f"  {_gain(contest, names)}")
    if tied:
        lines.append(f"  cannot be told from it: {', '.join(tied)}")
    for reason, failed in reasons.items():
        lines.append(f"  left out: {', '.join(names.impl(case) for case, _ in failed)}: {reason}")
    return list(map(printable, lines))


def _gain(contest: Contest, names: Names) -> str:
    """Return the gain of the fastest over the default, in words."""
    fastest, base = contest.fastest, contest.default
    default = "the default " * bool(base.impl.arguments) + names.impl(base)
    if fastest is None or fastest.key == base.key:
        return "that is its default: there is nothing to pin"
    if any(case.key == base.key for case, _ in contest.failed):
        return f"{default} has no time to compare with"
    if contest.gain is None:
        return f"not compared with {default} in paired rounds: too slow for measure.benchmark.max_s, or it failed"
    low_high = bounds(inverse(contest.gain))
    around = f"{low_high[0]:.3f} to {low_high[1]:.3f}" if low_high else "no interval"
    speedup = f"{math.exp(-contest.gain.log):.3f}x ({around}) the speed of {default}, measured again"
    return speedup if contest.gain.word == "faster" else f"{speedup}: {doubt(contest.gain) or 'not shown to be faster'}"
