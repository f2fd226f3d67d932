"""Analyses of a run, for the field ``conclusion`` of an experiment: each answers a question in sentences.

To add one is to add a function here. Its name and its keyword arguments are those of an item of ``conclusion``, as in
``{name: growth, over: workload.size}``. It gets the run and yields sentences with figures and their 95 % intervals, and
none if no row has what it needs: ``no_answer`` then says why. An argument ``over`` or ``field`` names a field,
``column`` or ``columns`` columns of docs/columns.md, ``without`` an implementation. Other functions are private.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations
from typing import Any

from ..measure.columns import column_of
from ..measure.parts import PHASES
from ..measure.timeline.tables import OTHERS
from ..records.case import CaseRecord
from ..records.figures import as_typed, as_words, figure, finite, interval, is_number
from ..records.grouping import grouped
from ..records.plain_text import shortened
from .fastest import compared, gain, over_baseline, ratio_text, widened
from .kept_files import kept_files, read_csv
from .lines import Line
from .no_answer import counts, missing_columns, timed_lines
from .notes import how_many_more
from .power_law import FEWEST, power_law
from .run import Run
from .validity import contended, may_win, verdict

LONGEST, LONGEST_NAME = 32, 64  # characters of the name of an operation, and of a kernel, which may have thousands


def ranking(run: Run) -> Iterator[str]:
    """Rank the implementations of each problem from the slowest to the fastest, with the gain of each step."""
    for heading, lines in _problems(run).items():
        ranked = sorted(lines, key=lambda line: -over_baseline(line, lines)[0])
        if not ranked[1:]:
            rows = [line.row for line in run.lines if run.names.heading(line.case) == heading]
            others = counts([row for row in rows if not may_win(row)])
            rest = f" ({others})" if others else ""
            yield f"{heading}: only {run.names.impl(ranked[0].case)} is correct and timed{rest}: {_time(ranked[0])}."
            continue
        steps = [f"{run.names.impl(ranked[0].case)} {_time(ranked[0])}"]
        for slower, faster in pairwise(ranked):
            took = f"{run.names.impl(faster.case)} {_time(faster)}"
            steps.append(f"{took}, {gain(slower, faster, lines)}")
        whole = f" From the first to the last: {gain(ranked[0], ranked[-1], lines)}." if ranked[2:] else ""
        yield f"{heading}: {'; '.join(steps)}.{whole}"


def bandwidth(run: Run) -> Iterator[str]:
    """Tell the rate at which each implementation moves the minimum traffic, and its share of the measured peak."""
    for heading, lines in _problems(run).items():
        rates = []
        for line in lines:
            if line.gbps:
                around = interval(line.value("interval_pct"), "± ")
                rate = figure(line.gbps, "GB/s", 3) + (f" ({around})" if around else "")
                share = line.value("pct_of_measured_peak") if line.value("bound") == "memory" else None
                peak = f", {share:.0f} % of the measured peak" if share else ""
                rates.append(f"{run.names.impl(line.case)} {rate}{peak}")
        if rates:
            yield f"{heading}: {'; '.join(rates)}."


def growth(run: Run, *, over: str, column: str = "time_us") -> Iterator[str]:
    """Fit the power of the field ``over`` with which ``column`` grows, and say up to where it is flat.

    See ``power_law``. Contended times are left out.
    """
    name, reasons = over.rpartition(".")[2], list[tuple[str, str]]()
    for label, every in _series(run, over, column).items():
        lines = [line for line in every if not _is_contended(line, column)]
        doubts = _doubts(every) if lines != every else ""
        left_out = ",".join(f"{_field(line, over):g}" for line in every if line not in lines)
        if doubts and len(lines) < FEWEST:
            reasons.append((label, f"{len(every) - len(lines)} of {len(every)} times are {doubts}"))
            continue
        ys, shares = zip(*(_value(line, column) for line in lines), strict=True)
        xs = [float(_field(line, over)) for line in lines]
        text, reason = power_law(name, column, _named(column), xs, ys, [share or 0.0 for share in shares])
        reasons += [(label, reason)] if reason else []
        if text:
            yield f"{label}: {text}.{f' Left out, since {doubts}: {name}={left_out}.' if doubts else ''}"
    for reason, members in grouped(reasons, lambda pair: pair[1]).items():
        yield f"{members[0][0]}{how_many_more(members)}: no exponent of {_named(column)} over {name}: {reason}."


def ends(run: Run, *, over: str) -> Iterator[str]:
    """Tell the largest value of the field ``over`` at which each implementation is right, and why it ends there."""
    name = over.rpartition(".")[2]
    known = [line for line in run.lines if _field(line, over) is not None]
    for label, lines in grouped(known, lambda line: _without(run, line.case, over)).items():
        right = [_field(line, over) for line in lines if may_win(line.row)]
        ended = [line for line in lines if line.row.status != "ok" and _field(line, over) > max(right, default=0)]
        if right:
            first = min(ended, key=lambda line: float(_field(line, over)), default=None)
            why = f"at {_field(first, over)} {verdict(first.row)}: {first.row.reason}" if first else "the largest here"
            yield f"{label}: right up to {name}={max(right)}; {why}."


def bend(run: Run, *, over: str) -> Iterator[str]:
    """Tell where the time of each implementation bends from a latency to a rate, over the bytes in the field ``over``.

    The latency is the time of the smallest size, the rate that of the largest; at the bend both take the same time.
    """
    name = over.rpartition(".")[2]
    for label, lines in _series(run, over, "time_us").items():
        first, last = lines[0], lines[-1]
        gbps = _field(last, over) / (1e3 * float(last.time_us or 1))
        size, alone = figure(1e-3 * float(first.time_us or 0) * gbps * 1e6, "byte", 3), figure(first.time_us, "us", 3)
        rate = f"{figure(gbps, 'GB/s', 3)} at {as_typed(_field(last, over))}"
        yield f"{label}: {alone} at {name}={as_typed(_field(first, over))}, {rate}; the curve bends at about {size}."


def effect(run: Run, *, field: str, column: str = "time_us", without: str = "") -> Iterator[str]:
    """Tell ``column`` at each value of ``field``, and its ratio to that at the first value.

    The implementation ``without``, which does not depend on ``field``, is left out.
    """
    name = field.rpartition(".")[2]
    for label, lines in _series(run, field, column).items():
        if lines[0].case.impl.name == without:
            continue
        (first, around), *others = [_value(line, column) for line in lines]
        if not others:
            continue
        unit = column_of(column).unit
        texts = [f"{figure(first, unit)} at {name}={as_typed(_field(lines[0], field))}"]
        for line, (value, half) in zip(lines[1:], others, strict=True):
            ratio = ratio_text(math.log(value / first), None if None in (half, around) else math.hypot(half, around))
            texts.append(f"{figure(value, unit)} at {as_typed(_field(line, field))}, {ratio}")
        doubts = _doubts([line for line in lines if _is_contended(line, column)])
        note = f" Some of these times are {doubts}." if doubts else ""
        yield f"{label}: {_named(column)} is {'; '.join(texts)}.{note}"


def values(run: Run, *, columns: tuple[str, ...]) -> Iterator[str]:
    """Tell the value of each of ``columns`` for each implementation."""
    for heading, lines in _problems(run).items():
        for column in columns:
            unit = column_of(column).unit
            known = [(run.names.impl(line.case), figure(line.value(column), unit)) for line in lines]
            texts = [f"{label} {shortened(text, LONGEST_NAME)}" for label, text in known if text]
            if texts:
                yield f"{heading}: {column}: {', '.join(texts)}."
    yield from (f"{sentence}." for sentence in missing_columns(timed_lines(run), columns))


def waits(run: Run) -> Iterator[str]:
    """Tell how long each rank of a call computes nothing, and what hides collectives, by ``measure=profile``."""
    for line in timed_lines(run):
        idle, share, hidden = (line.value(f"profile_{of}") for of in ("ranks_idle", "ranks_idle_pct", "overlap_pct"))
        if idle:
            rest = "no collective ran" if hidden is None else f"{hidden:.0f} % of the time of collectives is hidden"
            label = run.names.case(line.case)
            yield f"{label}: without computation: {idle}, {share:.0f} % of a call in the mean; {rest}."
    yield from (f"{sentence}." for sentence in missing_columns(timed_lines(run), ("profile_ranks_idle",)))


def operations(run: Run, *, most: int = 5) -> Iterator[str]:
    """Tell which operations take the largest shares of a call, at most ``most`` of them, by ``measure=profile``."""
    for line in timed_lines(run):
        shares = _shares(run, line)
        shown = {op.removeprefix("aten::")[:LONGEST]: share for op, share in [*shares.items()][:most]}
        texts = [f"{op} {share:.0f} %" for op, share in shown.items() if share >= 0.5]
        if texts:
            where = "CPU" if line.row.device == "cpu" else "GPU"
            yield f"{run.names.case(line.case)}: {', '.join(texts)} of the {where} time, by torch.profiler."


def parts(run: Run) -> Iterator[str]:
    """Tell the share of a call of each named part, of the baseline or the first implementation, by ``measure=profile``.

    The phases forward and backward, and the parts of others, are columns.
    """
    names = (*OTHERS, *(name for name in PHASES if name not in ("forward", "backward")))
    for lines in _problems(run).values():
        line = next((line for line in lines if line.case.impl.name == run.plan.baseline), lines[0])
        known = {name: us for name in names if (us := line.value(f"profile_{name}_us")) and line.time_us}
        if {*known}.difference({"loss", *PHASES}):  # other parts of compiled code are not known
            texts = [f"{name} {figure(us, 'us')} ({100 * us / line.time_us:.0f} %)" for name, us in known.items()]
            share = 100 * sum(known.values()) / line.time_us
            doubt = ", so torch.profiler's calls took longer than benchmark's" if share > 110 else ""
            yield f"{run.names.case(line.case)}: {', '.join(texts)}; together {share:.1f} % of its time{doubt}."


def passes(
    run: Run, *, impl: str, steps: tuple[str, ...], passes: tuple[int, ...], minimum: float = 2.0
) -> Iterator[str]:
    """Compare the time of ``impl`` with the passes over memory that its ``steps`` need by their formula.

    ``passes`` has those of each step: one if it reads or writes the whole tensor once. ``minimum`` is how many the
    minimum traffic is. With ``measure=profile`` each step is compared, with ``measure=ncu`` the bytes are.
    """
    total = sum(passes)
    for heading, lines in _problems(run).items():
        mine = next((line for line in lines if line.case.impl.name == impl), None)
        if mine is None:
            continue
        fastest = min(lines, key=lambda line: over_baseline(line, lines)[0])
        text = f"{heading}: {impl} makes {total:g} passes over memory, {total / minimum:.1f} times the minimum traffic"
        if fastest is not mine:
            ratio = gain(mine, fastest, lines)
            text += f"; the fastest, {run.names.impl(fastest.case)}, is {ratio}"
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
        best = min(lines, key=lambda line: over_baseline(line, lines)[0])
        flops, size = best.value("flops"), best.value("bytes_min")
        if not flops or not size:
            continue
        text = f"{heading}: {flops / size:.3g} flop/byte"
        text += f", bound by {best.value('bound')}" if best.value("bound") else ""
        share = best.value("pct_of_measured_peak")
        rate = figure(best.tflops or 0.0, "TFLOP/s", 3)
        reached = f"{share:.0f} % of the measured peak" if share else rate
        yield f"{text}; the fastest, {run.names.impl(best.case)}, reaches {reached}."


def orders(run: Run, *, columns: tuple[str, ...]) -> Iterator[str]:
    """Compare the order of the implementations by each of ``columns`` with that by the first of them.

    Neighbors that their intervals do not tell apart have ``≈`` between them. Differences from the first column are told
    for columns of its unit. Columns that a case lacks are left out, as those of a GPU are on a CPU.
    """
    for heading, lines in _problems(run).items():
        first, *others = [column for column in columns if all(finite(line.value(column)) for line in lines)] or [""]
        if len(lines) < 2 or not others:
            continue
        yield f"{heading}: by {_named(first)} {_order(run, lines, first)}."
        for column in others:
            turned = [
                f"{run.names.impl(one.case)} and {run.names.impl(other.case)}"
                for one, other in permutations(lines, 2)
                if _is_less(one, other, first) and _is_less(other, one, column)
            ]
            said = f"{', '.join(turned)} change places" if turned else "no pair that can be told apart changes places"
            text = f"{heading}: by {_named(column)} {_order(run, lines, column)}: {said}."
            if (unit := column_of(column).unit) == column_of(first).unit:
                more = []
                for line in lines:
                    added = line.value(column) - line.value(first)
                    sign = "+" if added >= 0 else "-"
                    more.append(f"{run.names.impl(line.case)} {sign}{figure(abs(added), unit, 3)}")
                text += f" Beside {_named(first)}: {', '.join(more)}."
            yield text
    yield from (f"{sentence}." for sentence in missing_columns(timed_lines(run), columns))


# --- what the analyses share ---


def _problems(run: Run) -> dict[str, list[Line]]:
    """Return the correct lines with a time, by the heading of their problem."""
    return grouped(timed_lines(run), lambda line: run.names.heading(line.case))


def _series(run: Run, over: str, column: str) -> dict[str, list[Line]]:
    """Return the lines that have ``column`` and differ in the field ``over`` alone, in its order."""
    every = [line for line in timed_lines(run) if _field(line, over) is not None]
    known = [line for line in every if (finite(line.value(column)) or 0) > 0]
    series = grouped(known, lambda line: _without(run, line.case, over))
    for lines in series.values():
        if all(is_number(_field(line, over)) for line in lines):
            lines.sort(key=lambda line: float(_field(line, over)))
    return {label: lines for label, lines in series.items() if len({_field(line, over) for line in lines}) > 1}


def _order(run: Run, lines: Sequence[Line], column: str) -> str:
    """Return the implementations by ``column``, the fastest first."""
    ordered = sorted(lines, key=lambda line: line.value(column))
    text = run.names.impl(ordered[0].case)
    for one, other in pairwise(ordered):
        text += f" {'<' if _is_less(one, other, column) else '≈'} {run.names.impl(other.case)}"
    return text


def _is_less(one: Line, other: Line, column: str) -> bool:
    """Return whether ``column`` of the first line is less than that of the second, beyond both 95 % intervals."""
    if column == "time_us":
        return compared(other, one, [one, other])[1] == "slower"
    (value, half), (above, around) = _value(one, column), _value(other, column)
    return bool(above - value > math.hypot(value * (half or 0.0), above * (around or 0.0)))


def _without(run: Run, case: CaseRecord, field: str) -> str:
    """Name ``case`` by the fields other than ``field`` in which cases differ."""
    group, _, name = field.partition(".")
    problem = {key: value for key, value in run.names.problem(case).items() if key not in (name, field)}
    impl = run.names.impl(case)
    if group == "impl":
        others = as_words({key: value for key, value in case.impl.options.items() if key != name})
        impl = f"{case.impl.name}({', '.join(others)})" if others else case.impl.name
    return " ".join([case.workload.name, *as_words(problem), impl])


def _field(line: Line, field: str) -> Any:
    """Return the value of ``field``, called as on the command line; None if the case has no such field."""
    return line.case.flat.get(field)


def _value(line: Line, column: str) -> tuple[Any, Any]:
    """Return the value of ``column`` and half of its 95 % interval as a share; None where one is not known."""
    percent = line.value(column_of(column).interval)
    half = None if percent is None else percent / 100
    return line.value(column), widened(line, half) if half is not None and _is_contended(line, column) else half


def _is_contended(line: Line, column: str) -> bool:
    """Return whether ``column`` is a time that other processes may have made longer."""
    return contended(line.row) and column_of(column).unit == "us"


def _doubts(lines: Sequence[Line]) -> str:
    """Return the verdicts of those of ``lines`` that are contended: ``contended``, ``contended or fallback``."""
    return " or ".join(dict.fromkeys(verdict(line.row) for line in lines if contended(line.row)))


def _named(column: str) -> str:
    """Return the name of ``column`` in a sentence, whose time is that of paired rounds if there are some."""
    return "time" if column == "time_us" else column


def _time(line: Line) -> str:
    return figure(line.time_us, "us")


def _shares(run: Run, line: Line) -> dict[str, float]:
    """Return the share in percent of each operation, the largest first, by ``measure=profile``; empty without it."""
    files = kept_files(run.folder, line.row, "profile/ops.csv").values()
    operations = grouped((record for file in files for record in read_csv(file)), lambda record: record["op"])
    spent = {
        op: sum(float(record["gpu_us" if "gpu_us" in record else "self_host_us"] or 0) for record in records)
        for op, records in operations.items()
    }
    total = sum(spent.values()) or 1.0
    return {op: 100 * us / total for op, us in sorted(spent.items(), key=lambda item: -item[1]) if us > 0}
