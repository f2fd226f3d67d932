"""The table in LaTeX, for the package booktabs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.report.derive import Run


def report(runs: Sequence[Run], options: argparse.Namespace) -> int:
    """Write the file and print its path. Raises BadInput."""
    from runner.report import charts, formats

    path = charts.target(runs, options.output, ".tex")
    text = "\n".join(formats.latex(formats.sheet(run, run.lines)) for run in runs)
    charts.write(path, text.encode(errors="replace"))
    print(path)
    return 0
