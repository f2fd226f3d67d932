"""Analyses of a run, for the field ``conclusion`` of an experiment: each answers a question in sentences.

To add one is to add a function here. Its name and its keyword arguments are those of an item of ``conclusion``, as in
``{name: growth, over: workload.size}``. It gets the run and yields sentences with figures and their 95 % intervals, and
none if no row has what it needs. An argument ``over`` or ``field`` names a field, ``column`` or ``columns`` columns of
docs/columns.md. Other functions are private.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations
from pathlib import PurePath
from statistics import fmean, linear_regression
from typing import Any

from runner.experiment.case import CaseRecord
from runner.experiment.results import figure, interval
from runner.measure import known_columns
from runner.report.conclusion import times
from runner.report.derive import Line, Run, may_win
from runner.store import run_folder
from runner.timing.statistics import SAME, t_975

FLAT = 0.5  # a time is called flat where it grows with a lower power
STEADY = 0.3  # a stretch of sizes has one exponent if those between neighbors differ by less
LINEAR = (0.7, 1.3)  # exponents for which the cost of one more is told
VAGUE = (
    10.0  # an interval from a tenth to ten times the ratio says nothing: a few calls by a script, the first one slow
)
LONGEST, LONGEST_NAME = 32, 64  # characters of the name of an operation, and of a kernel
TIMES = ("time_us", "gpu_us", "wall_us")  # their interval is interval_pct; that of latency_us is latency_pct


def ranking(run: Run) -> Iterator[str]:
    """Rank the implementations of each problem from the slowest to the fastest, with the gain of each step."""
    for heading, lines in _problems(run).items():
        ranked = sorted(lines, key=lambda line: -_over_baseline(line, lines)[0])
        steps = [f"{run.names.impl(ranked[0].row.case)} {figure(ranked[0].time_us, 'us')}"]
        for slower, faster in pairwise(ranked):
            took = f"{run.names.impl(faster.row.case)} {figure(faster.time_us, 'us')}"
            steps.append(f"{took}, {_gain(slower, faster, lines)}")
        whole = f" From the first to the last: {_gain(ranked[0], ranked[-1], lines)}." if ranked[2:] else ""
        odd = any(line.contradiction for line in lines)
        note = " The ratios are from paired rounds, the times from one series each." if odd else ""
        yield f"{heading}: {'; '.join(steps)}.{whole}{note}"


def bandwidth(run: Run) -> Iterator[str]:
    """Tell the rate at which each implementation moves the minimum traffic, and its share of the measured peak."""
    for heading, lines in _problems(run).items():
        rates = []
        for line in lines:
            if line.gbps:
                share = line.value("pct_of_measured_peak") if line.value("bound") == "memory" else None
                peak = f", {share:.0f} % of the measured peak" if share else ""
                rates.append(f"{run.names.impl(line.row.case)} {_rate(line)}{peak}")
        if rates:
            yield f"{heading}: {'; '.join(rates)}."


def growth(run: Run, *, over: str, column: str = "time_us") -> Iterator[str]:
    """Fit the power of the field ``over`` with which ``column`` grows, and say up to where it is flat.

    The exponent is fitted to the largest values, as far down as it stays the same. Its interval is that of the fit;
    for two values it follows from their intervals.
    """
    name = over.rpartition(".")[2]
    for label, lines in _series(run, over, column).items():
        if len(lines) < 3:
            continue
        xs = [float(_field(line.row.case, over)) for line in lines]
        ys, shares = zip(*(_value(line, column) for line in lines), strict=True)
        logs = [math.log(x) for x in xs], [math.log(y) for y in ys]
        slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in pairwise(zip(*logs, strict=True))]
        halves = [
            math.hypot(near or 0.0, far or 0.0) / (x2 - x1)
            for (near, far), (x1, x2) in zip(pairwise(shares), pairwise(logs[0]), strict=True)
        ]
        begin = len(slopes) - 1
        while begin > 0 and abs(slopes[begin - 1] - slopes[-1]) < STEADY + math.hypot(halves[begin - 1], halves[-1]):
            begin -= 1
        exponent, half = _fit(logs[0][begin:], logs[1][begin:])
        half = half if half is not None else halves[-1] or None
        text = f"{label}: from {name}={xs[begin]:g} to {xs[-1]:g}, {column} grows as {name}^{exponent:.2f}"
        text += f" (95 % interval {exponent - half:.2f} to {exponent + half:.2f})" if half is not None else ""
        if begin:
            text += f"; below, the exponents between neighbors are {', '.join(f'{one:.2f}' for one in slopes[:begin])}"
            flat = next((place for place, slope in enumerate(slopes) if slope >= FLAT), 0)
            text += f", so it is flat up to {name}={xs[flat]:g}" if flat else ""
        elif LINEAR[0] <= exponent <= LINEAR[1]:
            more, half = _fit(xs, ys)
            unit = known_columns()[column].unit
            around = f" (± {figure(half, unit, 2)})" if half is not None else ""
            text += f"; one more costs {figure(more, unit, 3)}{around}"
        yield f"{text}."


def effect(run: Run, *, field: str, column: str = "time_us") -> Iterator[str]:
    """Tell ``column`` at each value of ``field``, and its ratio to that at the first value."""
    name = field.rpartition(".")[2]
    for label, lines in _series(run, field, column).items():
        (first, around), *others = [_value(line, column) for line in lines]
        if not others:
            continue
        unit = known_columns()[column].unit
        texts = [f"{figure(first, unit)} at {name}={_shown(_field(lines[0].row.case, field))}"]
        for line, (value, half) in zip(lines[1:], others, strict=True):
            ratio = _interval(math.log(value / first), None if None in (half, around) else math.hypot(half, around))
            texts.append(f"{figure(value, unit)} at {_shown(_field(line.row.case, field))}, {ratio}")
        yield f"{label}: {column} is {'; '.join(texts)}."


def values(run: Run, *, columns: tuple[str, ...]) -> Iterator[str]:
    """Tell the value of each of ``columns`` for each implementation."""
    units = {name: column.unit for name, column in known_columns().items()}
    for heading, lines in _problems(run).items():
        for column in columns:
            known = [(run.names.impl(line.row.case), line.value(column)) for line in lines]
            texts = [f"{label} {_told(value, units[column])}" for label, value in known if value not in (None, "")]
            if texts:
                yield f"{heading}: {column}: {', '.join(texts)}."


def operations(run: Run, *, most: int = 5) -> Iterator[str]:
    """Tell which operations take the largest shares of a call, at most ``most`` of them, by ``measure=profile``."""
    for heading, lines in _problems(run).items():
        for line in lines:
            shares = _shares(run, line)
            shown = {op.removeprefix("aten::")[:LONGEST]: share for op, share in [*shares.items()][:most]}
            texts = [f"{op} {share:.0f} %" for op, share in shown.items() if share >= 0.5]
            if texts:
                where = "CPU" if line.row.device == "cpu" else "GPU"
                label = run.names.impl(line.row.case)
                yield f"{heading} {label}: {', '.join(texts)} of the {where} time, by torch.profiler."


def passes(
    run: Run, *, impl: str, steps: tuple[str, ...], passes: tuple[int, ...], minimum: float = 2.0
) -> Iterator[str]:
    """Compare the time of ``impl`` with the passes over memory that its ``steps`` need by their formula.

    ``passes`` has those of each step: one if it reads or writes the whole tensor once. ``minimum`` is how many the
    minimum traffic is. With ``measure=profile`` each step is compared, with ``measure=ncu`` the bytes are.
    """
    total = sum(passes)
    for heading, lines in _problems(run).items():
        mine = next((line for line in lines if line.row.case.impl.name == impl), None)
        if mine is None:
            continue
        fastest = min(lines, key=lambda line: _over_baseline(line, lines)[0])
        text = f"{heading}: {impl} makes {total:g} passes over memory, {total / minimum:.1f} times the minimum traffic"
        if fastest is not mine:
            ratio = _gain(mine, fastest, lines)
            text += f"; the fastest, {run.names.impl(fastest.row.case)}, is {ratio}"
        yield f"{text}."
        shares = _shares(run, mine)
        known = {step: share for step in steps if (share := shares.get(f"aten::{step}"))}
        if len(known) == len(steps):
            whole = sum(known.values())
            texts = [
                f"{step} {100 * share / whole:.0f} % ({100 * count / total:.0f} %)"
                for (step, share), count in zip(known.items(), passes, strict=True)
            ]
            yield f"{heading}: share of each step by torch.profiler (by its passes): {', '.join(texts)}."
        if read := mine.value("dram_bytes"):
            size = mine.value("bytes_min") / minimum
            yield f"{heading}: {impl} moves {read / size:.2f} passes by ncu, {total:g} by its formula."


def roofline(run: Run) -> Iterator[str]:
    """Tell the intensity of each problem, what bounds it, and how near the fastest implementation comes."""
    for heading, lines in _problems(run).items():
        best = min(lines, key=lambda line: _over_baseline(line, lines)[0])
        flops, size = best.value("flops"), best.value("bytes_min")
        if not flops or not size:
            continue
        text = f"{heading}: {flops / size:.3g} flop/byte"
        text += f", bound by {best.value('bound')}" if best.value("bound") else ""
        share = best.value("pct_of_measured_peak")
        rate = f"{figure((best.tflops or 0.0) * 1e12, '', 3)}FLOP/s"
        reached = f"{share:.0f} % of the measured peak" if share else rate
        yield f"{text}; the fastest, {run.names.impl(best.row.case)}, reaches {reached}."


def orders(run: Run, *, columns: tuple[str, ...]) -> Iterator[str]:
    """Compare the order of the implementations by each of ``columns`` with that by the first of them.

    Neighbors that their intervals do not tell apart have ``≈`` between them. Columns that a case lacks are left out, as
    those of a GPU are on a CPU.
    """
    for heading, lines in _problems(run).items():
        first, *others = [column for column in columns if all(line.value(column) for line in lines)] or [""]
        if len(lines) < 2 or not others:
            continue
        yield f"{heading}: by {first} {_order(run, lines, first)}."
        for column in others:
            turned = [
                f"{run.names.impl(one.row.case)} and {run.names.impl(other.row.case)}"
                for one, other in permutations(lines, 2)
                if _is_less(one, other, first) and _is_less(other, one, column)
            ]
            said = f"{', '.join(turned)} change places" if turned else "no pair that can be told apart changes places"
            more = []
            for line in lines:
                added = float(line.value(column)) - float(line.value(first))
                sign = "+" if added >= 0 else "-"
                more.append(f"{run.names.impl(line.row.case)} {sign}{figure(abs(added), 'us', 3)}")
            order = _order(run, lines, column)
            yield f"{heading}: by {column} {order}: {said}. Beside {first}: {', '.join(more)}."


# --- what the analyses share ---


def _problems(run: Run) -> dict[str, list[Line]]:
    """Return the correct lines with a time, by the heading of their problem."""
    found: dict[str, list[Line]] = {}
    for line in run.lines:
        if may_win(line.row) and (line.time_us or 0) > 0:
            found.setdefault(run.names.heading(line.row.case), []).append(line)
    return found


def _series(run: Run, over: str, column: str) -> dict[str, list[Line]]:
    """Return the lines that have ``column`` and differ in the field ``over`` alone, in its order."""
    found: dict[str, list[Line]] = {}
    for line in (line for lines in _problems(run).values() for line in lines):
        if _field(line.row.case, over) is not None and (_value(line, column)[0] or 0) > 0:
            found.setdefault(_without(run, line.row.case, over), []).append(line)
    for lines in found.values():
        if all(isinstance(_field(line.row.case, over), int | float) for line in lines):
            lines.sort(key=lambda line: float(_field(line.row.case, over)))
    return {label: lines for label, lines in found.items() if len({_field(line.row.case, over) for line in lines}) > 1}


def _order(run: Run, lines: Sequence[Line], column: str) -> str:
    """Return the implementations by ``column``, the fastest first."""
    ordered = sorted(lines, key=lambda line: float(line.value(column)))
    text = run.names.impl(ordered[0].row.case)
    for one, other in pairwise(ordered):
        text += f" {'<' if _is_less(one, other, column) else '≈'} {run.names.impl(other.row.case)}"
    return text


def _is_less(one: Line, other: Line, column: str) -> bool:
    """Return whether ``column`` of the first line is less than that of the second, beyond both 95 % intervals."""
    (value, half), (above, around) = _value(one, column), _value(other, column)
    return bool(above - value > math.hypot(value * (half or 0.0), above * (around or 0.0)))


def _without(run: Run, case: CaseRecord, field: str) -> str:
    """Return what tells ``case`` from others beside the value of ``field``."""
    group, _, name = field.partition(".")
    problem = {key: one for key, one in run.names.problem(case).items() if key not in (name, field)}
    impl = run.names.impl(case)
    if group == "impl":
        others = [f"{key}={one}" for key, one in case.impl.options.items() if key != name]
        impl = f"{case.impl.name}({', '.join(others)})" if others else case.impl.name
    return " ".join([case.workload.name, *(f"{key}={_shown(one)}" for key, one in problem.items()), impl])


def _field(case: CaseRecord, field: str) -> Any:
    """Return the value of ``field``, called as on the command line, in ``case``; None if it has no such field."""
    return case.flat.get(field)


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(line: Line, column: str) -> tuple[Any, Any]:
    """Return the value of ``column`` and half of its 95 % interval as a share; None where one is not known."""
    percent = line.value("interval_pct" if column in TIMES else f"{column.removesuffix('_us')}_pct")
    return line.value(column), None if percent is None else percent / 100


def _over_baseline(line: Line, lines: Sequence[Line]) -> tuple[float, float | None]:
    """Return the logarithm of the time, over the baseline's if all ``lines`` have such a ratio, and its half-width."""
    if all(one.ratio or one.baseline for one in lines):
        return (line.ratio.log, line.ratio.half) if line.ratio else (0.0, 0.0)
    return math.log(line.time_us or 1.0), _value(line, "time_us")[1]


def _gain(slower: Line, faster: Line, lines: Sequence[Line]) -> str:
    """Return how many times as fast the second line is as the first: ``1.30x as fast (1.29x to 1.31x)``."""
    (log, half), (other, around) = _over_baseline(slower, lines), _over_baseline(faster, lines)
    both = None if half is None or around is None else math.hypot(half, around)
    if both is not None and math.isfinite(both) and abs(log - other) + both < SAME:
        return "the same time within 1 %"
    if both is not None and math.isfinite(both) and abs(log - other) < both:
        return "not told apart"
    return _interval(log - other, both).replace("x", "x as fast", 1)


def _interval(log: float, half: float | None) -> str:
    """Return a ratio with its 95 % interval, both of which are given as logarithms."""
    text = times(math.exp(log))
    if half is None:
        return text
    if half > math.log(VAGUE):
        return f"{text} (uncertain)"
    return f"{text} ({times(math.exp(log - half))} to {times(math.exp(log + half))})"


def _told(value: Any, unit: str) -> str:
    """Return a value as a sentence has it: names of kernels in C++ may have thousands of characters."""
    text = figure(value, unit)
    return f"{text[: LONGEST_NAME - 3]}..." if len(text) > LONGEST_NAME else text


def _rate(line: Line) -> str:
    text = f"{figure((line.gbps or 0.0) * 1e9, '', 3)}B/s"
    around = interval(line.value("interval_pct"), "± ")
    return f"{text} ({around})" if around else text


def _fit(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float | None]:
    """Return the slope of the straight line through the points, and half of its 95 % interval; None for two points."""
    slope, intercept = linear_regression(xs, ys)
    freedom = len(xs) - 2
    if freedom < 1:
        return slope, None
    residual = sum((y - intercept - slope * x) ** 2 for x, y in zip(xs, ys, strict=True))
    mean = fmean(xs)
    error = math.sqrt(residual / freedom / sum((x - mean) ** 2 for x in xs))
    return slope, t_975(freedom) * error


def _shares(run: Run, line: Line) -> dict[str, float]:
    """Return the share in percent of each operation, the largest first, by ``measure=profile``; empty without it."""
    for file in map(PurePath, line.row.files):
        if file.parts[-2:] == ("profile", "ops.csv") and (path := run_folder.artifact(run.folder, str(file))):
            with open(path, newline="", encoding="utf-8") as lines:
                records = list(csv.DictReader(lines))
            column = "gpu_us" if "gpu_us" in records[0] else "self_host_us"
            spent: dict[str, float] = {}
            for record in records:
                spent[record["op"]] = spent.get(record["op"], 0.0) + float(record[column] or 0)
            total = sum(spent.values()) or 1.0
            ordered = sorted(spent.items(), key=lambda item: -item[1])
            return {op: 100 * own / total for op, own in ordered if own > 0}
    return {}
