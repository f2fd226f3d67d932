"""Tables of results, and their bars. This needs no GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from benchmarks.common import digits, table, word
from benchmarks.kernels.races import COPY, MEAN_BARS, READ, Bar, MeanBar
from benchmarks.kernels.rows import Result


def report(results: Sequence[Result]) -> tuple[str, int]:
    """Return the bars with a table for each race, and the number of missed bars."""
    best = max((rate for result in results for name in result.rows if (rate := _rate(result, name))), default=0.0)
    lines = [line for result in results for line in _bars(result, best)] + _mean_bars(results)
    missed = sum(line[-1] == word(False) for line in lines)
    bars = table(["bar", "seen", "beyond", ""], lines)
    rates = [_rates(results, best)] if any(READ in bar.peers for one in results for bar in one.race.bars) else []
    return "\n\n".join(["## Bars", bars, *rates, *(_race(result) for result in results)]), missed


def _rate(result: Result, name: str) -> float:
    """Return the bytes that must be moved, for each second; 0 for a copy, which may move fewer."""
    moved: Any = result.rows[name].metrics.get("bytes_min")
    return 0.0 if name == COPY or moved is None else float(moved) / result.us(name) * 1e6


def _rates(results: Sequence[Result], best: float) -> str:
    """Return a table with a line for each race: times, and the share of the highest rate that the last one reaches."""
    names = ["torch", "compiled", "triton"]
    lines = []
    for one in results:
        times = [digits(one.us(name)) if name in one.rows else "" for name in names]
        share = f"{_rate(one, names[-1]) / best:.1%}" if names[-1] in one.rows and best else ""
        lines.append((one.race.title, *times, share))
    head = ["race", *(f"{name}, us" for name in names), f"{names[-1]}, of {READ}"]
    return f"The read rate is {best / 1e12:.2f} TB/s.\n\n{table(head, lines)}"


def _bars(result: Result, best: float) -> list[tuple[str, str, str, str]]:
    return [(_promise(result, bar), *_seen(result, bar, best)) for bar in result.race.bars]


def _promise(result: Result, bar: Bar) -> str:
    peers = " or ".join(bar.peers)
    return f"{result.race.title}: {bar.ours} at least {bar.least:g} x {peers}"


def _seen(result: Result, bar: Bar, read_rate: float) -> tuple[str, str, str]:
    beyond = f"{bar.beyond:g}" if bar.beyond else ""
    if bar.ours not in result.rows:
        return result.failed.get(bar.ours, "no row"), beyond, word(False)
    if READ in bar.peers:
        share = _rate(result, bar.ours) / (read_rate or math.inf)
        return f"{share:.3f} x {READ}", beyond, word(share >= bar.least)
    there = [peer for peer in bar.peers if peer in result.rows]
    if not there:
        return "no peer ran", beyond, word(False)
    best = min(there, key=result.us)
    ratio, half = result.ratio(bar.ours, best)
    if bar.beyond:
        beyond += f" {word(ratio >= bar.beyond)}"
    return f"{ratio:.3f} ± {ratio * half:.3f} x {best}", beyond, word(ratio >= bar.least)


def _mean_bars(results: Sequence[Result]) -> list[tuple[str, str, str, str]]:
    return [line for bar in MEAN_BARS for line in _mean_bar(bar, [r for r in results if r.race.group == bar.group])]


def _mean_bar(bar: MeanBar, results: Sequence[Result]) -> list[tuple[str, str, str, str]]:
    if not results:
        return []
    ratios = [(r.ratio(bar.ours, bar.peer)[0], r.race.title) for r in results if {bar.ours, bar.peer} <= r.rows.keys()]
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
    for name in sorted(result.rows, key=result.us):
        ratios, metrics = [_ratio(result, name, peer) for peer in (COPY, "torch")], result.rows[name].metrics
        error: Any = metrics.get("err_over_tol")
        clock = "host_clock" if result.race.latency else metrics.get("instrument", "")
        lines.append((name, digits(result.us(name)), *ratios, "" if error is None else f"{error:.2f}", clock))
    drawn = table(["arm", "us", "x copy", "x torch", "error / allowed", "instrument"], lines)
    failed = "".join(f"\n\n{name}: {why}" for name, why in result.failed.items())
    return f"### {result.race.title}\n\n{drawn}{failed}"


def _ratio(result: Result, ours: str, peer: str) -> str:
    if peer not in result.rows or ours == peer:
        return ""
    ratio, half = result.ratio(ours, peer)
    return f"{ratio:.3f} ± {ratio * half:.3f}"
