"""Build a W&B Report on past runs and save it. ``runner report wandb`` starts this in a process of its own.

python -m runner.report.wandb.workspace <Request as JSON> <file for the outcome>
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import wandb_workspaces.reports.v2 as wr
from wandb_workspaces import expr

from ...findings.conclusion import conclude
from ...findings.past import read_run
from ...findings.run import Run
from ...measure.columns import column_of
from ...records.redaction import redact
from ...records.untrusted import mapping
from ..case_table import case_table
from ..table import facts_table, markdown_of, markdown_rows
from .content import PEAK, ROOFLINE, Content, machine
from .record import PAGE
from .state import TITLE_LENGTH, Address

MOST_LINES = 100  # most lines of a table in the text; the table of the run has all
MOST_SENTENCES = 8  # most sentences of a kind in the conclusion
FACTS = ("device", "started", "hostname", "commit", "dirty", "system", "python", "torch", "triton")
WORKER = ("torch_cuda", "driver", "gpu", "cpu", "gpu_clocks", "certificate")
OTHER = re.compile(r"[^0-9A-Za-z]+")
WIDTH, HEIGHT = 24, 9  # size of a row of panels: the grid has 24 columns


@dataclass(frozen=True)
class Request:
    """What to publish. ``addresses`` has the place of each run at W&B."""

    folders: Sequence[str]
    addresses: Sequence[Mapping[str, str]]
    title: str
    entity: str
    project: str
    draft: bool


@dataclass(frozen=True)
class Logged:
    """A run with what it shows, and its place at W&B."""

    run: Run
    content: Content
    address: Address


def main(request: Request, outcome: Path) -> None:
    """Publish the report. Write its address, or why there is none, as JSON to ``outcome``."""
    url = why = ""
    try:
        report = build(request)
        report.save(draft=request.draft)
        url = link(report.url, report.title)
    except Exception as error:  # W&B raises many kinds, a plain Exception too
        lines = str(error).strip().splitlines() or [type(error).__name__]
        why = redact(lines[0])
    outcome.write_text(json.dumps({"url": url, "why": why}), encoding="utf-8")


def link(url: str, title: str) -> str:
    """Return the address of a report, which has the title in it, with the letters and digits of the title alone."""
    head, identifier = url.partition("/reports/")[0], url.rpartition("--")[2]
    return f"{head}/reports/{OTHER.sub('-', title).strip('-')}--{identifier}"


def build(request: Request) -> wr.Report:
    """Return the report. Raises wandb.Error and others, for the server is asked for the project of each run."""
    logged = []
    for folder, address in zip(request.folders, request.addresses, strict=True):
        run = read_run(folder)
        logged.append(Logged(run, Content(run), Address(**address)))
    several = len(logged) > 1
    blocks: list[Any] = [wr.H2("Conclusion"), wr.UnorderedList(sentences(logged))]
    blocks += [wr.H2("What was asked"), wr.CodeBlock("\n".join(commands(logged)), language="markdown")]
    blocks += [wr.H2("Charts"), wr.PanelGrid(runsets=_runsets(logged), panels=panels(logged)), wr.H2("Results")]
    for each in logged:
        blocks += [*([wr.H3(each.run.name)] if several else []), wr.MarkdownBlock(results_table(each.run))]
    facts = facts_table([(redact(each.run.name), _facts(each)) for each in logged])
    blocks += [wr.H2("Environment"), wr.MarkdownBlock("\n".join(markdown_rows(facts)))]
    blocks += [wr.H2("Files"), wr.P("Traces, flame graphs, generated code and tables are artifacts of the runs: ")]
    blocks += [wr.P([wr.Link(each.run.name, each.address.url)]) for each in logged]
    return wr.Report(
        project=request.project,
        entity=request.entity,
        title=request.title[:TITLE_LENGTH],
        description=" ".join(each.run.name for each in logged),
        blocks=blocks,
        width="fluid",
    )


def _runsets(logged: Sequence[Logged]) -> list[wr.Runset]:
    """Return one set for each run."""
    return [
        wr.Runset(
            entity=each.address.entity,
            project=each.address.project,
            name=each.run.name,
            filters=[expr.Metric("ID").isin([each.address.id])],
        )
        for each in logged
    ]


def panels(logged: Sequence[Logged]) -> list[Any]:
    """Return the charts over the swept sizes, the roofline, bars of the speed-ups and best times, and the table."""
    charts: list[Any] = [
        wr.LinePlot(title=title, x=x, y=[*keys], log_x=True, log_y=log_y, title_x=x, max_runs_to_show=50)
        for (x, title, log_y), keys in _lines(logged).items()
    ]
    summary = dict.fromkeys(key for each in logged for key in each.content.summary())
    for part, title in (("geomean_speedup", "speed-up (geometric mean)"), ("best_us", "best time (us)")):
        for workload in dict.fromkeys(name for each in logged for name in each.content.workloads):
            if bars := [key for key in summary if key.startswith(f"{workload}/{part}/")]:
                charts.append(wr.BarPlot(title=f"{workload}: {title}", metrics=bars, max_bars_to_show=50))
    half, below = WIDTH // 2, HEIGHT * ((len(charts) + 1) // 2)
    for place, panel in enumerate(charts):
        panel.layout = wr.Layout(x=half * (place % 2), y=HEIGHT * (place // 2), w=half, h=HEIGHT)
    wide: list[Any] = [wr.WeavePanelSummaryTable(table_name="rows")]
    wide += [wr.MediaBrowser(media_keys=[PAGE], num_columns=1)] if find_spec("vl_convert") else []
    wide += [wr.RunComparer(diff_only="split")] if len(logged) > 1 else []
    for place, panel in enumerate(wide):
        panel.layout = wr.Layout(y=below + 2 * HEIGHT * place, w=WIDTH, h=2 * HEIGHT)
    return [*charts, *wide]


def _lines(logged: Sequence[Logged]) -> dict[tuple[str, str, bool], dict[str, None]]:
    """Return the keys of each line chart by its axis, its title, and whether the other axis is logarithmic."""
    charts: dict[tuple[str, str, bool], dict[str, None]] = {}
    for content in (each.content for each in logged):
        for workload in content.workloads:
            for figure, series in content.charts(workload).items():
                x, title = f"{workload}/{content.x(workload)}", f"{workload}: {column_of(figure).axis}"
                keys = dict.fromkeys(f"{workload}/{figure}/{label}" for label in series)
                charts.setdefault((x, title, figure != "speedup"), {}).update(keys)
        if roofline := content.roofline():
            keys = dict.fromkeys(f"{ROOFLINE}/{label}" for label in sorted(roofline, key=lambda label: label == PEAK))
            charts.setdefault((f"{ROOFLINE}/intensity", "roofline: TFLOP/s over flop/byte", True), {}).update(keys)
    return charts


def sentences(logged: Sequence[Logged]) -> list[str]:
    """Return the conclusion: what is fastest, where that changes, what is unclear, and what failed."""
    texts = []
    for run in (each.run for each in logged):
        said = conclude(run)
        answers = [*([run.plan.question] if run.plan.question else []), *said.answers]
        findings = [[finding.summary for finding in said.findings], *(finding.details for finding in said.findings)]
        for part in (answers, *findings, said.unclear, said.failures, said.doubts):
            texts += [f"{run.name}: {text}" if len(logged) > 1 else text for text in part[:MOST_SENTENCES]]
            if (left := len(part) - MOST_SENTENCES) > 0:
                texts.append(f"{left} more of this kind are in the table below")
    return texts


def commands(logged: Sequence[Logged]) -> list[str]:
    """Return the command lines that made the runs, without repetition."""
    lines = (str(session.get("command") or "") for each in logged for session in each.run.sessions)
    return list(dict.fromkeys(filter(None, lines))) or ["the command is not known"]


def results_table(run: Run) -> str:
    """Return the table of the terminal as Markdown, cut after ``MOST_LINES``."""
    text = markdown_of(case_table(run, run.lines[:MOST_LINES]))
    left = len(run.lines) - MOST_LINES
    return f"{text}\n{left} more lines are in the table `rows` above.\n" if left > 0 else text


def _facts(logged: Logged) -> dict[str, str]:
    environment = logged.run.environment
    facts, worker = machine(logged.run.rows, environment), mapping(environment.get("worker"))
    known = {name: facts.get(name) or environment.get(name) for name in FACTS}
    known |= {name: worker.get(name) for name in WORKER}
    if certificate := mapping(known.get("certificate")):
        known["certificate"] = f"{certificate.get('passed')} of {certificate.get('of')} passed"
    return {name: " ".join(redact(str(value)).split()) for name, value in known.items() if value not in (None, "")}


if __name__ == "__main__":
    main(Request(**json.loads(sys.argv[1])), Path(sys.argv[2]))
