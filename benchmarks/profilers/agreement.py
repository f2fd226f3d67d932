"""Test whether profilers agree with the benchmark on times and on the memory rate, and measure their cost.

    python -m benchmarks.profilers.agreement [--measures profile nsys ncu] [--write]

Ten cases of one kernel each, by the command line: GELU and softmax of two sizes and a matmul in float32, of torch and
in Triton. Every profiler observes each case right after its timing. A profiler that is not installed is left out, with
the reason. torch.profiler and nsys use CUPTI; `benchmarks.timer.watched` measures how much CUPTI slows a kernel.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import digits, load_average, page, publish, run, table, word
from runner.findings.names import Names
from runner.records.row import Row

TIMES = {"profile": "profile_gpu_us", "nsys": "nsys_gpu_us", "ncu": "ncu_gpu_us"}
COSTS = {"profile": "profile_slowdown", "nsys": "nsys_slowdown", "ncu": "ncu_slowdown"}
CLOCKS = ("sm_clock_mhz", "ncu_clock_mhz")  # clocks during the benchmark's samples, and under ncu
SAME_BAR, SHARE_BAR = 0.03, 0.05
# Least traffic of a call whose memory rates are compared. When a kernel ends, a part of the result is still in the L2
# cache: 26 MB on an H200 (tests/measure/ncu/raw.csv), which is 5 % of 512 MiB and 2 % of 1 GiB.
LARGE_BYTES = 1e9
GRID = [
    *("workload=gelu,softmax,matmul", "impl=torch,triton", "workload.dtype=float32"),
    *("workload.rows=16384", "workload.cols=4096,16384", "workload.size=2048", "log=none", "-m"),
]


def main() -> None:
    """Run everything and print the page; with --write keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measures", nargs="+", default=list(TIMES), choices=TIMES)
    parser.add_argument("--write", action="store_true", help="keep the tables in benchmarks/results/")
    options, load = parser.parse_args(), load_average()
    with tempfile.TemporaryDirectory(prefix="profilers-") as folder:
        ran = run([*GRID, f"measure=[{','.join(['benchmark', *options.measures])}]"], Path(folder))
        body, facts = report(ran.rows, options.measures), ran.facts
    publish("profilers", page("Profilers beside the benchmark", body, facts, load), facts, options.write)


# --- what follows from rows; no GPU ---


def ratio(row: Row, measure: str) -> float | None:
    """Return the profiler's time of the kernels over ``gpu_us``; None if it saw nothing."""
    return _over(row, TIMES[measure])


def shares(row: Row) -> tuple[float, float] | None:
    """Return the memory rate by ncu and by the time of the call, for our large softmax; None for other rows.

    Both are percentages of the rate of a copy, like ``pct_of_measured_peak``. ncu itself gives a share of the data
    sheet's peak, like ``pct_datasheet``.
    """
    if (row.case.workload.name, row.case.impl.name) != ("softmax", "triton"):
        return None
    names = ("dram_pct", "pct_of_measured_peak", "pct_datasheet", "bytes_min")
    dram_pct, peak_pct, sheet_pct, least = (float(row.metrics.get(name) or 0.0) for name in names)
    if not dram_pct or not sheet_pct or least < LARGE_BYTES:
        return None
    return dram_pct * peak_pct / sheet_pct, peak_pct


def bars(rows: Sequence[Row], measures: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return for each bar its text, the result, and PASS or MISS."""
    lines = []
    for measure in measures:
        seen = [found for row in rows if (found := ratio(row, measure)) is not None]
        promise = f"{measure}: time of kernels within {100 * SAME_BAR:g} % of gpu_us, {len(rows)} cases"
        if seen:
            told = f"{len(seen)} cases: {min(seen):.3f} to {max(seen):.3f}"
            lines.append((promise, told, word(len(seen) == len(rows) and max(abs(x - 1) for x in seen) <= SAME_BAR)))
        else:
            lines.append((promise, "saw nothing", word(False)))
    for row in rows:
        if both := shares(row):
            dram, measured_peak = both
            promise = f"ncu: softmax of {row.case.workload.fields['cols']} columns, DRAM rate within 5 % of measured"
            lines.append(
                (
                    promise,
                    f"{dram:.1f} % and {measured_peak:.1f} % of a copy's",
                    word(abs(dram / measured_peak - 1) <= SHARE_BAR),
                )
            )
    return lines


def report(rows: Sequence[Row], measures: Sequence[str]) -> str:
    """Return the bars and all tables."""
    names = Names([row.case for row in rows])
    lines, costs = [], []
    for row in rows:
        name = f"{names.heading(row.case)} {row.case.impl.name}"
        found = [ratio(row, measure) for measure in measures]
        beside = [_over(row, "cupti_us"), *found]
        clocks = [_figure(row, clock) for clock in CLOCKS]
        lines.append((name, _figure(row, "gpu_us"), *("" if x is None else f"{x:.4f}" for x in beside), *clocks))
        costs.append((name, *(_figure(row, COSTS[measure]) for measure in measures)))
    not_measured = dict.fromkeys(str(row.metrics["not_measured"]) for row in rows if row.metrics.get("not_measured"))
    return "\n\n".join(
        [
            "## Bars\n\n" + table(["bar", "seen", ""], bars(rows, measures)),
            "## Time of kernels over gpu_us\n\n"
            + table(["case", "gpu_us", "the benchmark's cupti_check", *measures, *CLOCKS], lines),
            "## Slowdown of the caller by each profiler\n\n"
            + table(["case", *(COSTS[measure] for measure in measures)], costs),
            *(f"Not measured: {text}" for text in not_measured),
        ]
    )


def _over(row: Row, column: str) -> float | None:
    """Return ``column`` over ``gpu_us``."""
    time_us, gpu_us = row.metrics.get(column), row.metrics.get("gpu_us")
    return float(time_us) / float(gpu_us) if time_us is not None and gpu_us is not None else None


def _figure(row: Row, name: str) -> str:
    value = row.metrics.get(name)
    return "" if value is None else digits(float(value))


if __name__ == "__main__":
    main()
