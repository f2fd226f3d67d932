"""The table in LaTeX, for the package booktabs."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from ..findings.run import Run
from .case_table import case_table
from .output import save
from .table import latex_of


def report(runs: Sequence[Run], options: Namespace) -> int:
    """Write the file and print its path. Raises BadInput."""
    return save("\n".join(latex_of(case_table(run, run.lines)) for run in runs), runs, options.output, ".tex")
