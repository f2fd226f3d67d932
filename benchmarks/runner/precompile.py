"""Test whether precompiling finishes a cold grid sooner, and leaves its times unchanged.

    python -m benchmarks.runner.precompile [rows | mlp | all] [--write]

Sixty cases, compiled and in Triton: GELUs and softmaxes of 15 widths; or, in two dtypes, MLPs of 2 to 16 layers, or all
five workloads at their default sizes, where timing takes longer than compiling. The same grid runs three times: with
`launcher.precompile=0` and empty caches of Triton and Inductor; with the default of `launcher.precompile` and empty
caches; and with `launcher.precompile=0` on the caches of the first run, which shows how much two runs of one grid
differ. A small run comes first, so that facts about the machine, and torch's files on disk, are cached for all three.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.common import Run, digits, load_average, page, phase_table, publish, run, table, word
from runner.findings.names import Names
from runner.records.row import Row

SOONER_BAR, SAME_BAR = 2.0, 0.01
IMPLS = ("compiled", "triton")
GRIDS = {  # by name
    "rows": ["workload=gelu,softmax", "workload.cols=range(1024,16384,1024)"],
    "mlp": ["workload=mlp", "workload.layers=range(2,17)", "workload.dtype=float32,bfloat16"],
    "all": [
        "workload=mlp,cdist,matmul,softmax,gelu",
        "workload.dtype=float32,float16",
    ],  # no cdist of torch's in float16
}
CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
OFF = ["launcher.precompile=0"]
SMALL = ["workload=gelu", "impl=compiled", "log=none"]
COLD, AHEAD, AGAIN = "cold, one after the other", "cold, ahead", "warm, one after the other"


@dataclass(frozen=True)
class Grid:
    """One run of the command."""

    wall_s: float  # of the whole command
    startup_s: float  # of its worker
    rows: Mapping[str, Row]  # by the key of the case

    @property
    def case_s(self) -> float:
        """Seconds of all cases in the worker."""
        return sum(float(row.metrics["wall_s"]) for row in self.rows.values())

    @property
    def first_call_s(self) -> float:
        """Seconds of the first calls, which compile."""
        return sum(float(row.metrics["first_call_s"]) for row in self.rows.values())

    @property
    def compile_s(self) -> float:
        """Seconds that torch.compile reports for itself."""
        return sum(float(row.metrics.get("compile_s", 0.0)) for row in self.rows.values())

    @property
    def ahead(self) -> list[float]:
        """Seconds of the first calls that were made earlier, in another process."""
        return [float(row.metrics["precompile_s"]) for row in self.rows.values() if "precompile_s" in row.metrics]


def main() -> None:
    """Run everything and print the page; with --write keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grid", nargs="?", default="rows", choices=GRIDS)
    parser.add_argument("--write", action="store_true", help="keep the tables in benchmarks/results/")
    options, load = parser.parse_args(), load_average()
    found: dict[str, Grid] = {}
    with tempfile.TemporaryDirectory(prefix="ahead-") as scratch:
        folder = Path(scratch)
        with caches(folder / "caches of the run before"):
            run(SMALL, folder / "before")
        ways = {COLD: ("one", OFF), AHEAD: ("two", []), AGAIN: ("one", OFF)}
        for place, (name, (cache, more)) in enumerate(ways.items()):
            with caches(folder / f"caches {cache}"):
                ran = run([*words(options.grid), *more], folder / f"grid {place}")
            found[name], facts = grid(ran), ran.facts
            print(f"{name}: {ran.wall_s:.1f} s", flush=True)
    publish(
        f"ahead_{options.grid}", page("What compiling ahead gains", report(found), facts, load), facts, options.write
    )


def words(grid: str) -> list[str]:
    """Return the command without ``launcher.precompile``."""
    return ["-m", *GRIDS[grid], f"impl={','.join(IMPLS)}", "log=none"]


@contextmanager
def caches(folder: Path) -> Iterator[None]:
    """Set the caches of Triton and Inductor to ``folder`` for commands that start inside."""
    before = {name: os.environ.get(name) for name in CACHES}
    os.environ |= {name: str(folder / name.lower()) for name in CACHES}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# --- what follows; no GPU ---


def grid(ran: Run) -> Grid:
    """Copy the figures of ``ran``, whose folder is temporary. Raises RuntimeError if a case was not timed on a GPU."""
    rows = {row.case.key: row for row in ran.rows if row.status != "unsupported"}
    if untimed := [row for row in rows.values() if "gpu_us" not in row.metrics]:
        raise RuntimeError(f"{len(untimed)} of {len(rows)} cases not timed on a GPU: {untimed[0].reason}")
    return Grid(ran.wall_s, ran.startup_s, rows)


def ratios(of: Grid, to: Grid, impl: str = "") -> dict[str, float]:
    """Return ``gpu_us`` of each case in ``of`` over that in ``to``, by key; with ``impl``, for its cases only."""
    return {
        key: float(row.metrics["gpu_us"]) / float(to.rows[key].metrics["gpu_us"])
        for key, row in of.rows.items()
        if impl in ("", row.case.impl.name)
    }


def report(found: Mapping[str, Grid]) -> str:
    """Return the bars and all tables."""
    cold, ahead = found[COLD], found[AHEAD]
    cases = [row.case for row in cold.rows.values()]
    lines = [
        (name, one.wall_s, one.startup_s, one.case_s, one.first_call_s, one.compile_s, len(one.ahead) or "")
        for name, one in found.items()
    ]
    parts = ["wall, s", "start-up", "cases", "of which first calls", "of which torch.compile", "compiled ahead"]
    return "\n\n".join(
        [
            f"{len(cold.rows)} cases, {' and '.join(IMPLS)}: "
            + ", ".join(sorted({f"{c.workload.name} in {c.workload.fields['dtype']}" for c in cases}))
            + ".",
            "## Bars\n\n" + table(["bar", "seen", ""], bars(found)),
            "## Seconds\n\n" + table(["grid", *parts], lines),
            _processes(ahead),
            "## Seconds of a case\n\n" + case_table(found[AGAIN]),
            f"Of the grid that ran {AGAIN}: what is left to be done when nothing is compiled any more.",
            "## Times\n\n" + times_table(found),
            "## Farthest\n\n" + worst_table(found),
            "Farthest by the time of the grid that was compiled ahead. The last column is what the first grid differs "
            "from itself by, nothing compiled ahead either time.",
        ]
    )


def bars(found: Mapping[str, Grid]) -> list[tuple[str, str, str]]:
    """Return for each bar its text, the result, and PASS or MISS."""
    cold, ahead = found[COLD], found[AHEAD]
    sooner, most = cold.wall_s / ahead.wall_s, cold.wall_s / found[AGAIN].wall_s
    seen = f"{digits(sooner)} x; all of it in the caches: {digits(most)} x"
    lines = [(f"a cold grid ends {SOONER_BAR:g} x as soon", seen, word(sooner >= SOONER_BAR))]
    for impl in IMPLS:
        each = ratios(ahead, cold, impl)
        middle = median(each.values())
        promise = f"times within {100 * SAME_BAR:g} %: median of all {impl}"
        lines.append((promise, f"{middle:.4f}", word(abs(middle - 1) <= SAME_BAR)))
    return lines


def case_table(one: Grid) -> str:
    """Return a table of the phases of the cases of each workload."""
    kinds: dict[str, list[Row]] = {}
    for row in one.rows.values():
        kinds.setdefault(f"{row.case.workload.name}, {row.case.impl.name}", []).append(row)
    return phase_table(kinds)


def times_table(found: Mapping[str, Grid]) -> str:
    """Return a table of the spread of each grid's times relative to the first grid."""
    lines = []
    for name in (AHEAD, AGAIN):
        for impl in IMPLS:
            each = ratios(found[name], found[COLD], impl)
            far = [key for key, ratio in each.items() if abs(ratio - 1) > SAME_BAR]
            apart = [key for key in far if not _overlap(found[name].rows[key], found[COLD].rows[key])]
            some = [f"{one:.4f}" for one in (median(each.values()), min(each.values()), max(each.values()))]
            lines.append((name, impl, len(each), *some, len(far), len(apart)))
    titles = ["", "cases", "median", "least", "most", f"beyond {100 * SAME_BAR:g} %", "and beyond their intervals"]
    return table([f"`gpu_us` over that of: {COLD}", *titles], lines) + (
        "\n\nWhat torch.compile makes of a case is not always the same code: Inductor times some variants when it "
        "compiles, and the cache keeps the one that won. The grid on the first one's caches has its code; the one "
        "that was compiled ahead has its own."
    )


def worst_table(found: Mapping[str, Grid], most: int = 5) -> str:
    """Return a table of the cases whose times differ most."""
    each, again = ratios(found[AHEAD], found[COLD]), ratios(found[AGAIN], found[COLD])
    names = Names([row.case for row in found[COLD].rows.values()])
    lines = []
    for key in sorted(each, key=lambda key: -abs(each[key] - 1))[:most]:
        case, us = found[COLD].rows[key].case, float(found[COLD].rows[key].metrics["gpu_us"])
        name = f"{names.heading(case)} {case.impl.name}"
        lines.append((name, us, f"{each[key]:.4f}", f"{again[key]:.4f}"))
    return table(["case", f"us, {COLD}", "precompile", "the same again"], lines)


def _processes(ahead: Grid) -> str:
    if not ahead.ahead:
        return "No case was compiled ahead: this machine has too few cores for it, or `launcher.precompile` is 0."
    return (
        f"{len(ahead.ahead)} cases were compiled ahead, in {digits(sum(ahead.ahead))} s of other processes' time, "
        "in which they also stood still while a case was measured."
    )


def _overlap(one: Row, other: Row) -> bool:
    """Return whether the 95 % intervals of two rows overlap."""
    ends = [(float(row.metrics["low_us"]), float(row.metrics["high_us"])) for row in (one, other)]
    return max(low for low, _ in ends) <= min(high for _, high in ends)


if __name__ == "__main__":
    main()
