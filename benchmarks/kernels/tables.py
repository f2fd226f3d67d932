"""Tables of results, and their bars. This needs no GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from benchmarks.common import digits, table, word
from benchmarks.kernels.races import COPY, MEAN_BARS, Bar, MeanBar, Result


def report(results: Sequence[Result]) -> tuple[str, int]:
    """Return the bars with a table for each race, and the number of missed bars."""
    lines = [line for result in results for line in _bars(result)] + _mean_bars(results)
    missed = sum(line[-1] == word(False) for line in lines)
    bars = table(["bar", "seen", "beyond", ""], lines)
    return "\n\n".join(["## Bars", bars, *(_race(result) for result in results)]), missed


def brief(result: Result) -> str:
    """Return one line about a race, for printing while others run."""
    arms = ", ".join(f"{name} {digits(arm.us)}" for name, arm in result.arms.items())
    failed = "".join(f"; {name} FAILED: {why}" for name, why in result.failed.items())
    return f"{result.race.title}: {arms} us{failed}"


def _bars(result: Result) -> list[tuple[str, str, str, str]]:
    return [(_promise(result, bar), *_seen(result, bar)) for bar in result.race.bars]


def _promise(result: Result, bar: Bar) -> str:
    peers = " or ".join(bar.peers)
    return f"{result.race.title}: {bar.ours} at least {bar.least:g} x {peers}"


def _seen(result: Result, bar: Bar) -> tuple[str, str, str]:
    beyond = f"{bar.beyond:g}" if bar.beyond else ""
    if why := result.failed.get(bar.ours):
        return why, beyond, word(False)
    there = [peer for peer in bar.peers if peer in result.arms]
    if not there:
        return "no peer ran", beyond, word(False)
    best = min(there, key=lambda peer: result.arms[peer].us)
    ratio, half = result.ratio(bar.ours, best)
    if bar.beyond:
        beyond += f" {word(ratio >= bar.beyond)}"
    return f"{ratio:.3f} ± {ratio * half:.3f} x {best}", beyond, word(ratio >= bar.least)


def _mean_bars(results: Sequence[Result]) -> list[tuple[str, str, str, str]]:
    return [line for bar in MEAN_BARS for line in _mean_bar(bar, [r for r in results if r.race.group == bar.group])]


def _mean_bar(bar: MeanBar, results: Sequence[Result]) -> list[tuple[str, str, str, str]]:
    if not results:
        return []
    ratios = [(r.ratio(bar.ours, bar.peer)[0], r.race.title) for r in results if bar.ours in r.arms]
    if len(ratios) < len(results):
        return [(f"{bar.group}: all of them run", f"{len(ratios)} of {len(results)}", "", word(False))]
    mean = math.exp(fmean(math.log(ratio) for ratio, _ in ratios))
    worst, title = min(ratios)
    name = f"{bar.group}, {len(ratios)} shapes: {bar.ours} x {bar.peer}"
    return [
        (f"{name}, geometric mean at least {bar.mean:g}", f"{mean:.3f}", "", word(mean >= bar.mean)),
        (f"{name}, worst at least {bar.worst:g}", f"{worst:.3f} ({title})", "", word(worst >= bar.worst)),
    ]


def _race(result: Result) -> str:
    """Return a table, fastest first: time, speed relative to the copy and to torch, error relative to the tolerance."""
    lines = []
    for name, arm in sorted(result.arms.items(), key=lambda item: item[1].us):
        ratios = [_ratio(result, name, peer) for peer in (COPY, "torch")]
        lines.append((name, digits(arm.us), *ratios, "" if arm.error is None else f"{arm.error:.2f}", arm.instrument))
    drawn = table(["arm", "us", "x copy", "x torch", "error / allowed", "instrument"], lines)
    failed = "".join(f"\n\n{name}: {why}" for name, why in result.failed.items())
    return f"### {result.race.title}\n\n{drawn}{failed}"


def _ratio(result: Result, ours: str, peer: str) -> str:
    if peer not in result.arms or ours == peer:
        return ""
    ratio, half = result.ratio(ours, peer)
    return f"{ratio:.3f} ± {ratio * half:.3f}"
