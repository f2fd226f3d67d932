"""The conclusion and the table in GitHub's Markdown."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.report.derive import Run


def report(runs: Sequence[Run], options: argparse.Namespace) -> int:
    """Write the file and print its path. Raises BadInput."""
    from runner.report import charts

    path = charts.target(runs, options.output, ".md")
    lines = [*(line for run in runs for line in _of_run(run)), *_changes(runs, charts.run_names(runs))]
    charts.write(path, "\n".join(lines).encode(errors="replace"))
    print(path)
    return 0


def _of_run(run: Run) -> Iterator[str]:
    """Yield the lines of the report of ``run``."""
    from runner.report import formats, side_by_side
    from runner.report.conclusion import conclude

    found = conclude(run)
    yield f"## {formats.escaped(run.name)}\n"
    yield from answers(run)
    for finding in found.findings:
        yield f"{formats.escaped(finding.summary)}\n"
        yield from (f"- {formats.escaped(detail)}" for detail in finding.details)
        yield ""
    if found.unclear:
        yield "Not clear:\n"
        yield from (f"- {formats.escaped(one)}" for one in found.unclear)
        yield ""
    yield formats.markdown(formats.sheet(run, run.lines))
    for heading, text in side_by_side.tables(run.folder, run.rows, run.names):
        yield f"### {formats.escaped(heading)}\n\n```text\n{text}\n```\n"


def answers(run: Run) -> Iterator[str]:
    """Yield the question of ``run`` and the answers to it."""
    from runner.report import conclusion, formats

    if run.question:
        yield f"**{formats.escaped(run.question)}**\n"
    if found := conclusion.answers(run):
        yield from (f"- {formats.escaped(one)}" for one in found)
        yield ""


def _changes(runs: Sequence[Run], names: Sequence[str]) -> Iterator[str]:
    """Yield how the first of several runs compares to each other one."""
    from runner.report import formats
    from runner.report.conclusion import changes

    for finding in changes(runs, names) if len(runs) > 1 else ():
        yield f"## {formats.escaped(finding.summary)}\n"
        yield from (f"- {formats.escaped(detail)}" for detail in finding.details)
        yield ""
