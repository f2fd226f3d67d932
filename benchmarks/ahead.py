"""Whether compiling ahead ends a cold grid sooner, and leaves its timings alone.

    python -m benchmarks.ahead [--sizes 15] [--write]

GELU and softmax of 15 sizes, compiled and in Triton: 60 cases. The same grid three times: with `launcher.ahead=0` and
nothing in the caches of Triton and Inductor; so again with the default of `launcher.ahead`; and with `launcher.ahead=0`
once more on the caches of the first, which shows what two runs of one grid differ by. A small run comes first, so that
what a machine is asked once, and the disk's first reading of torch, are in none of them.
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

from benchmarks.common import Run, digits, load_average, page, publish, run, table
from runner import compose
from runner.row import Row

SOONER_BAR, SAME_BAR = 2.0, 0.01
IMPLS = ("compiled", "triton")
WORKLOADS = ("gelu", "softmax")
ROWS, STEP = 4096, 256  # sizes are cols = 256, 512, ...
CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
OFF = ["launcher.ahead=0"]
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
        """Of them, the first calls, which compile."""
        return sum(float(row.metrics["first_call_s"]) for row in self.rows.values())

    @property
    def compile_s(self) -> float:
        """Of them, what torch.compile says of itself."""
        return sum(float(row.metrics.get("compile_s", 0.0)) for row in self.rows.values())

    @property
    def ahead(self) -> list[float]:
        """Seconds of those first calls that came ahead, in another process."""
        return [float(row.metrics["ahead_s"]) for row in self.rows.values() if "ahead_s" in row.metrics]


def main() -> None:
    """Runs all, prints and perhaps writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, default=15, help=f"each {len(WORKLOADS) * len(IMPLS)} cases")
    parser.add_argument("--write", action="store_true", help="keep the tables in benchmarks/results/")
    options, load = parser.parse_args(), load_average()
    found: dict[str, Grid] = {}
    with tempfile.TemporaryDirectory(prefix="ahead-") as scratch:
        folder = Path(scratch)
        plan = compose.plan(words(options.sizes))
        assert plan is not None
        with caches(folder / "caches of nobody"):
            run([*words(1), *OFF], folder / "before")
        ways = {COLD: ("one", OFF), AHEAD: ("two", []), AGAIN: ("one", OFF)}
        for name, (cache, more) in ways.items():
            with caches(folder / f"caches {cache}"):
                ran = run([*words(options.sizes), *more], folder / name)
            found[name], facts = grid(ran, len(plan.cases)), ran.facts
            print(f"{name}: {ran.wall_s:.1f} s", flush=True)
    publish("ahead", page("What compiling ahead gains", report(found), facts, load), facts, options.write)


def words(sizes: int) -> list[str]:
    """The command, but for ``launcher.ahead``."""
    size = [f"workload.rows={ROWS}", f"workload.cols=range({STEP},{STEP * sizes + 1},{STEP})"]
    return ["-m", f"workload={','.join(WORKLOADS)}", *size, f"impl={','.join(IMPLS)}", "log=none"]


@contextmanager
def caches(folder: Path) -> Iterator[None]:
    """Commands started meanwhile have the caches of Triton and Inductor in ``folder``."""
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


def grid(ran: Run, cases: int) -> Grid:
    """``ran``, whose folder will go. Raises RuntimeError unless every case was timed on a GPU."""
    untimed = [row for row in ran.rows if "gpu_us" not in row.metrics]
    if untimed or len(ran.rows) != cases:
        why = untimed[0].reason or "it is of the CPU" if untimed else "the others have no row"
        raise RuntimeError(f"{len(ran.rows) - len(untimed)} of {cases} cases timed on a GPU; {why}")
    return Grid(ran.wall_s, ran.startup_s, {row.case.key: row for row in ran.rows})


def ratios(of: Grid, to: Grid) -> dict[str, float]:
    """``gpu_us`` of each case in ``of`` over that in ``to``, by key."""
    return {key: float(row.metrics["gpu_us"]) / float(to.rows[key].metrics["gpu_us"]) for key, row in of.rows.items()}


def report(found: Mapping[str, Grid]) -> str:
    """The bars and all tables."""
    cold, ahead = found[COLD], found[AHEAD]
    lines = [
        (name, one.wall_s, one.startup_s, one.case_s, one.first_call_s, one.compile_s, len(one.ahead) or "")
        for name, one in found.items()
    ]
    parts = ["wall, s", "start-up", "cases", "of which first calls", "of which torch.compile", "compiled ahead"]
    return "\n\n".join(
        [
            f"{len(cold.rows)} cases: {' and '.join(WORKLOADS)}, {' and '.join(IMPLS)}, {ROWS} rows, "
            f"{len(cold.rows) // len(WORKLOADS) // len(IMPLS)} sizes, float32.",
            "## Bars\n\n" + table(["bar", "seen", ""], bars(found)),
            "## Seconds\n\n" + table(["grid", *parts], lines),
            _processes(ahead),
            "## Times\n\n" + times_table(found),
            "## Farthest\n\n" + worst_table(found),
            "Farthest by the time of the grid that was compiled ahead. The last column is what the first grid differs "
            "from itself by, nothing compiled ahead either time.",
        ]
    )


def bars(found: Mapping[str, Grid]) -> list[tuple[str, str, str]]:
    """What was promised, what was seen, PASS or MISS."""
    sooner = found[COLD].wall_s / found[AHEAD].wall_s
    each = ratios(found[AHEAD], found[COLD])
    beyond = sum(abs(ratio - 1) > SAME_BAR for ratio in each.values())
    middle = median(each.values())
    return [
        (f"a cold grid ends {SOONER_BAR:g} x as soon", f"{digits(sooner)} x", word(sooner >= SOONER_BAR)),
        (f"times within {100 * SAME_BAR:g} %: median of all cases", f"{middle:.4f}", word(abs(middle - 1) <= SAME_BAR)),
        (f"times within {100 * SAME_BAR:g} %: each case", f"{beyond} of {len(each)} beyond", word(not beyond)),
    ]


def times_table(found: Mapping[str, Grid]) -> str:
    """How the times of each grid spread against those of the first."""
    lines = []
    for name in (AHEAD, AGAIN):
        each = ratios(found[name], found[COLD])
        far = [key for key, ratio in each.items() if abs(ratio - 1) > SAME_BAR]
        apart = [key for key in far if not _overlap(found[name].rows[key], found[COLD].rows[key])]
        some = [f"{one:.4f}" for one in (median(each.values()), min(each.values()), max(each.values()))]
        lines.append((name, *some, len(far), len(apart)))
    titles = ["median", "least", "most", f"beyond {100 * SAME_BAR:g} %", "and beyond their intervals"]
    return table([f"`gpu_us` over that of: {COLD}", *titles], lines)


def worst_table(found: Mapping[str, Grid], most: int = 5) -> str:
    """The cases whose times are farthest apart."""
    each, again = ratios(found[AHEAD], found[COLD]), ratios(found[AGAIN], found[COLD])
    lines = []
    for key in sorted(each, key=lambda key: -abs(each[key] - 1))[:most]:
        case, us = found[COLD].rows[key].case, float(found[COLD].rows[key].metrics["gpu_us"])
        name = f"{case.workload.name} {case.impl.name} cols={case.workload.fields['cols']}"
        lines.append((name, us, f"{each[key]:.4f}", f"{again[key]:.4f}"))
    return table(["case", f"us, {COLD}", "ahead", "the same again"], lines)


def word(kept: bool) -> str:
    """PASS or MISS."""
    return "PASS" if kept else "MISS"


def _processes(ahead: Grid) -> str:
    if not ahead.ahead:
        return "No case was compiled ahead: this machine has too few cores for it, or `launcher.ahead` is 0."
    return (
        f"{len(ahead.ahead)} cases were compiled ahead, in {digits(sum(ahead.ahead))} s of other processes' time, "
        "in which they also stood still while a case was measured."
    )


def _overlap(one: Row, other: Row) -> bool:
    """Whether their intervals do."""
    ends = [(float(row.metrics["low_us"]), float(row.metrics["high_us"])) for row in (one, other)]
    return max(low for low, _ in ends) <= min(high for _, high in ends)


if __name__ == "__main__":
    main()
