"""The conclusion and the table in GitHub's Markdown."""

from argparse import Namespace
from collections.abc import Iterator, Sequence

from ..findings.conclusion import conclude, together
from ..findings.run import Run, run_names
from .case_table import case_table
from .output import save
from .reference_table import reference_tables
from .table import escaped, markdown_of


def report(runs: Sequence[Run], options: Namespace) -> int:
    """Write the file and print its path. Raises BadInput."""
    lines = list[str]()
    for statement in together(runs, run_names(runs)):
        lines += [f"## {escaped(statement.summary)}\n", *_items(statement.details), ""]
    lines += [line for run in runs for line in _of_run(run)]
    return save("\n".join(lines), runs, options.output, ".md")


def _of_run(run: Run) -> Iterator[str]:
    conclusion = conclude(run)
    yield f"## {escaped(run.name)}\n"
    if run.plan.question:
        yield f"**{escaped(run.plan.question)}**\n"
    if conclusion.answers:
        yield from [*_items(conclusion.answers), ""]
    for statement in conclusion.findings:
        yield from [f"{escaped(statement.summary)}\n", *_items(statement.details), ""]
    if conclusion.unclear:
        yield from ["Not clear:\n", *_items(conclusion.unclear), ""]
    yield markdown_of(case_table(run, run.lines))
    for heading, text in reference_tables(run.folder, run.rows, run.names):
        yield f"### {escaped(heading)}\n\n```text\n{text}\n```\n"


def _items(sentences: Sequence[str]) -> Iterator[str]:
    return (f"- {escaped(sentence)}" for sentence in sentences)
