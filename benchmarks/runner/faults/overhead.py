"""Overhead of a case outside its phases, beside Hydra's launcher and a process per case."""

from __future__ import annotations

from pathlib import Path

from benchmarks.common import digits, run, table, word
from benchmarks.runner.faults.grids import Part
from benchmarks.runner.hydra_multirun import (
    CASES,
    GRID,
    hydra_app,
    hydra_multirun,
    one_process_per_case,
    outside_ms,
    wall_s,
)

CASE_BAR_MS = 2.0


def overhead(folder: Path, cases: int, kills: int) -> Part:
    """Run a grid of tiny cases, beside Hydra's launcher and a process per case."""
    first, word_of_size, *rest = GRID[:3], f"workload.cols=range(1,{cases + 1})", *GRID[4:]
    ours = run([*first, word_of_size, *rest], folder / "ours")
    single = run([*first, "workload.cols=1", *rest], folder / "single")
    mine = outside_ms(ours)
    fixed = single.wall_s - single.startup_s - wall_s(single)
    whole = ours.wall_s - ours.startup_s - wall_s(ours)
    more = (whole - fixed) * 1e3 / cases
    hydra, process = hydra_multirun(hydra_app(folder / "app")), one_process_per_case()
    ways = [
        (f"this runner, {cases} cases", mine, 1.0),
        (f"Hydra's multirun, {CASES} cases", hydra.overhead_ms, hydra.overhead_ms / mine),
        ("a process per case", process.overhead_ms, process.overhead_ms / mine),
    ]
    own = [
        ("command, whole", ours.wall_s * 1e3, ours.wall_s * 1e3 / cases),
        ("worker's start-up", ours.startup_s * 1e3, ours.startup_s * 1e3 / cases),
        ("phases of the cases", wall_s(ours) * 1e3, wall_s(ours) * 1e3 / cases),
        ("outside of both", whole * 1e3, mine),
        ("of which a grid of one case has too", fixed * 1e3, fixed * 1e3 / cases),
        ("of which grows with the cases", (whole - fixed) * 1e3, more),
    ]
    return Part(
        "What a case costs",
        [
            (
                f"{CASE_BAR_MS:g} ms a case outside its phases, once all is up",
                f"{digits(more)} ms",
                word(more <= CASE_BAR_MS),
            )
        ],
        table(["way", "overhead, ms a case", "/ ours"], ways)
        + "\n\nOurs is (wall - start-up of the worker - sum of `wall_s`) / cases: Python, composing, giving out, the "
        "journal, tidying, the tables. The others' is all outside of warm-up and sampling; they check and keep nothing."
        "\n\n" + table(["ours", "ms", "ms a case"], own),
    )
