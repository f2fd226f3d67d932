"""What the runs say about each shape, and the tables of an operation. This needs no GPU."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

from benchmarks.common import digits, table, word
from benchmarks.kernels.shapes.draw import Op, Shape
from runner.findings import ratios
from runner.findings.past import read_run
from runner.findings.ratios import ratio_in_rounds
from runner.records.case import CaseRecord
from runner.records.labels import Labels
from runner.records.paired_rounds import PairedRounds
from runner.records.row import Row
from runner.timing.verdict import UNTRUE

BEST = "best of ours"
GRAPH = "cudagraph"  # ours as a CUDA graph, beside torch as a caller has it: no peer of the kernels
SHORT_US = 5.0  # a kernel shorter than this mostly starts and ends
BUSY = 40.0  # percent of a measured peak from which on it is what bounds a call
UNDONE = ("skipped", "lost")  # statuses of cases that a run left behind when it was stopped
WORST = 10  # shapes in the table
Seen = tuple[float, float]  # a ratio, and half of its relative 95 % interval


@dataclass(frozen=True)
class Measured:
    """What was measured of one shape; rows are by the implementation's name in the table."""

    shape: Shape
    every_row: Sequence[Row] = ()
    done: bool = False  # each case has a row, and those that ran are in the paired rounds
    rows: Mapping[str, Row] = field(default_factory=dict)  # those that are right and in the paired rounds
    failed: Mapping[str, str] = field(default_factory=dict)  # why the others are not
    absent: Mapping[str, str] = field(default_factory=dict)  # implementations that do not exist here, and why
    rounds: Mapping[str, PairedRounds] = field(default_factory=dict)  # by the cases' keys

    @property
    def title(self) -> str:
        """``4096x4096x14336``."""
        return "x".join(map(str, self.shape))

    def us(self, name: str) -> float:
        """Return the mean time in the paired rounds."""
        key = self.rows[name].case.key
        return fmean(self.rounds[key].batches_us[key])

    def back_to_back(self) -> float:
        """Return the time of torch's calls back to back over that of the CUDA graph; 0 if one of them is missing."""
        rows = [self.rows[name] for name in ("torch", GRAPH) if name in self.rows]
        times: list[Any] = [us for row in rows if (us := row.metrics.get("pipelined_us"))]
        return times[0] / times[1] if len(times) == 2 else 0.0

    def peers(self, op: Op) -> list[str]:
        """Return the peers that are right."""
        return [name for name in self.rows if name not in (*op.ours, GRAPH)]

    def seen(self, op: Op) -> dict[str, Seen]:
        """Return the time of the fastest peer over that of each of ours that ran, the fastest of ours first."""
        peers = self.peers(op)
        if not peers:
            return {}
        best, found = self.rows[min(peers, key=self.us)], {}
        for name in sorted(op.ours, key=lambda name: self.us(name) if name in self.rows else math.inf):
            if name in self.rows and (paired := ratio_in_rounds([best], [self.rows[name]], self.rounds)):
                found[name] = (math.exp(paired.log), paired.half)
        return found


def measured(problems: Mapping[Shape, Sequence[CaseRecord]], labels: Labels, folders: Iterable[Path]) -> list[Measured]:
    """Return what the newest run in ``folders`` that has all cases of a shape says about it."""
    loaded = [read_run(folder) for folder in folders]
    found = [
        ({row.case.key: row for row in run.rows if row.status not in UNDONE}, ratios.by_key(run.rounds))
        for run in loaded
    ]
    return [_measured(shape, cases, labels, found) for shape, cases in problems.items()]


def _measured(
    shape: Shape,
    cases: Sequence[CaseRecord],
    labels: Labels,
    runs: Sequence[tuple[Mapping[str, Row], Mapping[str, PairedRounds]]],
) -> Measured:
    for by_key, rounds in reversed(runs):
        if any(case.key not in by_key for case in cases):
            continue
        rows = {labels.label(case.impl): by_key[case.key] for case in cases}
        absent = {name: row.reason for name, row in rows.items() if row.status == "unsupported"}
        failed = {name: why for name, row in rows.items() if name not in absent and (why := _failure(row, rounds))}
        done = not {row.case.key for row in rows.values() if row.status == "ok"} - rounds.keys()
        right = {name: row for name, row in rows.items() if name not in absent.keys() | failed.keys()}
        return Measured(shape, list(rows.values()), done, right, failed, absent, rounds)
    return Measured(shape)


def _failure(row: Row, rounds: Mapping[str, PairedRounds]) -> str:
    """Return why ``row`` cannot be compared; "" if it can."""
    if row.status != "ok":
        return f"{row.status}: {row.reason}"
    if (verdict := row.metrics.get("verdict")) in ("wrong", *UNTRUE):
        return f"{verdict}: {row.metrics.get('verdict_reason')}"
    one = rounds.get(row.case.key)
    return "" if one and min(one.batches_us[row.case.key]) > 0 else "not in the paired rounds"


# --- against the bars ---


@dataclass(frozen=True)
class Statistics:
    """Ratios of one operation over all shapes. If ours has no right result, that counts as 0, but not in the mean."""

    ratios: Mapping[Shape, float]

    @cached_property
    def mean(self) -> float:
        """Geometric mean."""
        there = [math.log(one) for one in self.ratios.values() if one]
        return math.exp(fmean(there)) if there else 0.0

    @property
    def fifth(self) -> float:
        """5th percentile; of fewer than two ratios, the lowest."""
        several = len(self.ratios) > 1
        return quantiles(self.ratios.values(), n=20, method="inclusive")[0] if several else self.worst[0]

    @property
    def worst(self) -> tuple[float, Shape]:
        """The lowest ratio, and its shape; 0 and no shape if there is none."""
        return min(((ratio, shape) for shape, ratio in self.ratios.items()), default=(0.0, ()))


def statistics(op: Op, found: Sequence[Measured], who: str) -> Statistics:
    """Return the statistics of ``who`` of ``op.ours``, or of the BEST of them for each shape.

    A shape at which ours is right and no peer is has no ratio, and does not count.
    """
    counted = [one for one in found if one.peers(op) or not one.rows.keys() & {*op.ours}]
    seen = {one.shape: one.seen(op) for one in counted}
    best = {shape: max((ratio for ratio, _ in some.values()), default=0.0) for shape, some in seen.items()}
    own = {shape: some[who][0] if who in some else 0.0 for shape, some in seen.items()}
    return Statistics(best if who == BEST else own)


def bars_table(found: Mapping[Op, Sequence[Measured]]) -> tuple[str, int]:
    """Return a table of the ratios with their bars, and the number of missed ones."""
    lines: list[tuple[str, ...]] = []
    for op, some in found.items():
        if op.graph is not None:
            graphs = Statistics({one.shape: one.back_to_back() for one in some})
            lines.append(_bars_line(f"{op.name}: {GRAPH}, calls back to back", graphs, (op.graph, None, None)))
        for who, bars in ((op.ours[0], op.main), (BEST, op.best)):
            limits = (bars.mean, bars.fifth, bars.worst) if bars else (None, None, None)
            lines.append(_bars_line(f"{op.name}: {who}", statistics(op, some, who), limits))
        wrong = sum(len(one.failed.keys() & {*op.ours}) for one in some) + sum(not one.every_row for one in some)
        count = sum(len({*op.ours} - one.absent.keys()) for one in some)
        lines[-2] = (*lines[-2][:-1], f"{count - wrong} of {count} {word(not wrong)}")
    titles = [
        "x the best of torch and torch.compile; back to back, x torch",
        "mean",
        "5th percentile",
        "worst",
        "there",
        "right",
    ]
    return table(titles, lines), sum(cell.endswith(word(False)) for line in lines for cell in line)


def _bars_line(title: str, figures: Statistics, limits: tuple[float | None, ...]) -> tuple[str, ...]:
    worst, shape = figures.worst
    cells = [_held(*two) for two in zip((figures.mean, figures.fifth, worst), limits, strict=True)]
    return (title, *cells, "x".join(map(str, shape)), "")


def _held(ratio: float, bar: float | None) -> str:
    return f"{ratio:.3f}" if bar is None else f"{ratio:.3f}, bar {bar:g} {word(ratio >= bar)}"


# --- the worst shapes ---


def op_table(op: Op, found: Sequence[Measured]) -> str:
    """Return a table of the shapes at which the first of ``op.ours`` is slowest beside its peers, and all failures."""
    peaks, main = Peaks.of(row for one in found for row in one.rows.values()), op.ours[0]
    seen = {one.shape: one.seen(op) for one in found}
    names = dict.fromkeys([*op.ours, *(name for one in found for name in one.rows if name != GRAPH)])
    names = {name: None for name in names if any(name in one.rows for one in found)}
    there = [one for one in found if main in seen[one.shape]]
    lines = []
    for one in sorted(there, key=lambda one: seen[one.shape][main][0])[:WORST]:
        (best, (gain, _)), (ratio, half) = next(iter(seen[one.shape].items())), seen[one.shape][main]
        row = one.rows[main]
        bytes_pct, flops_pct = peaks.percents(row, one.us(main))
        times = [digits(one.us(name)) if name in one.rows else "" for name in names]
        beside = "" if best == main else f"{best} {gain:.3f}"
        percents = ["" if pct is None else f"{pct:.0f}" for pct in (bytes_pct, flops_pct)]
        bound = bound_by(one.us(main), row.metrics.get("n_kernels"), bytes_pct, flops_pct)
        config: Any = row.metrics.get("config") or ""
        ratio_cell = f"{ratio:.3f} ± {ratio * half:.3f}"
        lines.append((one.title, *times, ratio_cell, beside, *percents, bound, config))
    titles = ["us", *names, f"x, {main}", "faster of ours", "% bytes", "% flops", "bound by", f"{main}'s choice"]
    parts = [f"### {op.name}", table(titles, lines) if lines else f"{main} ran at no shape."]
    failed = [f"- {one.title} {name}: {why}" for one in found for name, why in one.failed.items()]
    failed += [f"- {one.title}: not measured" for one in found if not one.every_row]
    absent = Counter(f"{name}: {why}" for one in found for name, why in one.absent.items())
    failed += [f"- {count} of {len(found)} shapes without {why}" for why, count in absent.items()]
    return "\n\n".join([*parts, *(["\n".join(failed)] if failed else [])])


@dataclass(frozen=True)
class Peaks:
    """The measured peaks that the rows of one operation were compared with; None if no row tells."""

    gbps: float | None
    tflops: float | None

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Peaks:
        """Return the peaks by ``pct_of_measured_peak``, which is of that peak that bounds a row."""
        rates: dict[object, list[float]] = {"memory": [], "compute": []}
        for row in rows:
            figures: Mapping[str, Any] = row.metrics
            if (pct := figures.get("pct_of_measured_peak")) and row.time_us and figures.get("bound") in rates:
                amount = figures["bytes_min"] / 1e3 if figures["bound"] == "memory" else figures["flops"] / 1e6
                rates[figures["bound"]].append(amount / row.time_us / (pct / 100))
        return cls(*(median(some) if some else None for some in rates.values()))

    def percents(self, row: Row, us: float) -> tuple[float | None, float | None]:
        """Return the minimum bytes and the operations of ``row``, done in ``us``, in percent of each peak."""
        size, flops = (float(row.metrics.get(name) or 0) for name in ("bytes_min", "flops"))
        return (
            100 * size / 1e3 / us / self.gbps if self.gbps else None,
            100 * flops / 1e6 / us / self.tflops if self.tflops else None,
        )


def bound_by(us: float, kernels: object, bytes_pct: float | None, flops_pct: float | None) -> str:
    """Return what bounds a call: the peak that it comes nearer to, short kernels, or neither: too few tiles or blocks.

    "" if no peak is known.
    """
    if bytes_pct is None and flops_pct is None:
        return ""
    bytes_part, flops_part = bytes_pct or 0.0, flops_pct or 0.0
    if max(bytes_part, flops_part) >= BUSY:
        return "bytes" if bytes_part >= flops_part else "flops"
    each_us = us / max(1, kernels if isinstance(kernels, int) else 1)
    return "short" if each_us < SHORT_US else "few tiles"
