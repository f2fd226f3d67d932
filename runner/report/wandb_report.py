"""Build a W&B Report on past runs and save it. ``runner report wandb`` starts this in a process of its own.

python -m runner.report.wandb_report <Request as JSON> <file for the outcome>
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.experiment.results import redact
from runner.report import conclusion, derive, formats, past
from runner.report.wandb import PROJECT_LENGTH, Address
from runner.report.wandb_content import FIGURES, PEAK, ROOFLINE, Content
from runner.report.wandb_record import PAGE, id_of

if TYPE_CHECKING:
    import wandb_workspaces.reports.v2 as wr

TITLE_LENGTH = PROJECT_LENGTH  # characters; W&B refuses a longer title
MOST_LINES = 100  # of a table in the text; the table of the run itself has all
MOST_SENTENCES = 8  # of a kind, in the conclusion
FACTS = ("device", "started", "hostname", "commit", "dirty", "system", "python", "torch", "triton")
WORKER = ("torch_cuda", "driver", "gpu", "cpu", "gpu_clocks", "certificate")
MARKED = re.compile(r"[\\`*_<>|~\[\]#]")  # signs of Markdown
OTHER = re.compile(r"[^0-9A-Za-z]+")
WIDTH, HEIGHT = 24, 9  # of a row of panels: the grid has 24 columns


@dataclass(frozen=True)
class Request:
    """What to publish. ``addresses`` has the place of each run at W&B, or None if it is at no server."""

    folders: Sequence[str]
    addresses: Sequence[Mapping[str, str] | None]
    title: str
    entity: str
    project: str
    draft: bool
    spec: str = ""  # the file for the report itself; "" publishes it


@dataclass(frozen=True)
class Logged:
    """A run with what it shows, and its place at W&B."""

    run: derive.Run
    content: Content
    address: Address | None

    @property
    def id(self) -> str:
        """Its id at W&B."""
        return self.address.id if self.address else id_of(self.run)


def main(request: Request, outcome: Path) -> None:
    """Publish the report, or write it to a file. Write its address, or why there is none, as JSON to ``outcome``."""
    url = why = ""
    try:
        report = build(request)
        if request.spec:
            Path(request.spec).write_text(json.dumps(specification(report), indent=1) + "\n", encoding="utf-8")
        else:
            report.save(draft=request.draft)
            url = link(report.url, report.title)
    except Exception as error:  # W&B raises many kinds, a plain Exception too
        lines = str(error).strip().splitlines() or [type(error).__name__]
        why = redact(lines[0])
    outcome.write_text(json.dumps({"url": url, "why": why}), encoding="utf-8")


def link(url: str, title: str) -> str:
    """Return the address of a report with only letters and digits of its title, any of which the client puts in it."""
    head, identifier = url.partition("/reports/")[0], url.rpartition("--")[2]
    return f"{head}/reports/{OTHER.sub('-', title).strip('-')}--{identifier}"


def specification(report: wr.Report) -> dict[str, Any]:
    """Return what a server is sent for ``report``."""
    model = report._to_model()
    found = {"title": report.title, "description": report.description, "entity": report.entity}
    return found | {"project": report.project, "spec": json.loads(model.spec.model_dump_json(by_alias=True))}


def build(request: Request) -> wr.Report:
    """Return the report. Raises wandb.Error and others, for the server is asked for the project of each run."""
    import wandb_workspaces.reports.v2 as wr

    logged = []
    for folder, address in zip(request.folders, request.addresses, strict=True):
        run = past.read(folder)
        content = Content(run.rows, run.baseline, run.rounds)
        logged.append(Logged(run, content, Address(**address) if address else None))
    several = len(logged) > 1
    blocks: list[Any] = [wr.H2("Conclusion"), wr.UnorderedList(sentences(logged))]
    blocks += [wr.H2("What was asked"), wr.CodeBlock("\n".join(commands(logged)), language="markdown")]
    blocks += [wr.H2("Charts"), wr.PanelGrid(runsets=_runsets(logged), panels=panels(logged))]
    blocks.append(wr.H2("Results"))
    for one in logged:
        blocks += [*([wr.H3(one.run.name)] if several else []), wr.MarkdownBlock(table(one.run))]
    blocks += [wr.H2("Environment"), wr.MarkdownBlock(environment(logged))]
    links = [wr.Link(one.run.name, one.address.url) for one in logged if one.address]
    if links:
        blocks += [wr.H2("Files"), wr.P("Traces, flame graphs, generated code and tables are artifacts of the runs: ")]
        blocks += [wr.P([link]) for link in links]
    return wr.Report(
        project=request.project,
        entity=request.entity,
        title=request.title[:TITLE_LENGTH],
        description=" ".join(one.run.name for one in logged) if several else logged[0].run.name,
        blocks=blocks,
        width="fluid",
    )


def _runsets(logged: Sequence[Logged]) -> list[wr.Runset]:
    """Return one set for each run. Without a project it needs no server."""
    import wandb_workspaces.reports.v2 as wr
    from wandb_workspaces import expr

    return [
        wr.Runset(
            entity=one.address.entity if one.address else "",
            project=one.address.project if one.address else "",
            name=one.run.name,
            filters=[expr.Metric("ID").isin([one.id])],
        )
        for one in logged
    ]


def panels(logged: Sequence[Logged]) -> list[Any]:
    """Return the charts over the swept sizes, the roofline, bars of the speed-ups and best times, and the table."""
    import wandb_workspaces.reports.v2 as wr

    found: list[Any] = []
    for (x, title, log_y), keys in _lines(logged).items():
        found.append(wr.LinePlot(title=title, x=x, y=keys, log_x=True, log_y=log_y, title_x=x, max_runs_to_show=50))
    summary: dict[str, None] = {}
    for one in logged:
        summary |= dict.fromkeys(one.content.summary())
    for part, title in (("geomean_speedup", "speed-up (geometric mean)"), ("best_us", "best time (us)")):
        for workload in dict.fromkeys(name for one in logged for name in one.content.workloads):
            if keys := [key for key in summary if key.startswith(f"{workload}/{part}/")]:
                found.append(wr.BarPlot(title=f"{workload}: {title}", metrics=keys, max_bars_to_show=50))
    for place, panel in enumerate(found):
        half = WIDTH // 2
        panel.layout = wr.Layout(x=half * (place % 2), y=HEIGHT * (place // 2), w=half, h=HEIGHT)
    below = HEIGHT * ((len(found) + 1) // 2)
    wide: list[Any] = [wr.WeavePanelSummaryTable(table_name="rows")]
    wide += [wr.MediaBrowser(media_keys=[PAGE], num_columns=1)] if find_spec("vl_convert") else []
    wide += [wr.RunComparer(diff_only="split")] if len(logged) > 1 else []
    for place, panel in enumerate(wide):
        panel.layout = wr.Layout(y=below + 2 * HEIGHT * place, w=WIDTH, h=2 * HEIGHT)
    return [*found, *wide]


def _lines(logged: Sequence[Logged]) -> dict[tuple[str, str, bool], list[str]]:
    """Return the keys of each line chart by its axis, its title, and whether the other axis is logarithmic."""
    found: dict[tuple[str, str, bool], dict[str, None]] = {}
    for content in (one.content for one in logged):
        for workload in content.workloads:
            for figure, series in content.charts(workload).items():
                chart = f"{workload}/{content.x(workload)}", f"{workload}: {FIGURES[figure]}", figure != "speedup"
                found.setdefault(chart, {}).update(dict.fromkeys(f"{workload}/{figure}/{label}" for label in series))
        if roofline := content.roofline():
            chart = f"{ROOFLINE}/intensity", "roofline: TFLOP/s over flop/byte", True
            keys = [f"{ROOFLINE}/{label}" for label in sorted(roofline, key=lambda label: label == PEAK)]
            found.setdefault(chart, {}).update(dict.fromkeys(keys))
    return {chart: list(keys) for chart, keys in found.items()}


def sentences(logged: Sequence[Logged]) -> list[str]:
    """Return the conclusion: what is fastest, where that changes, what is unclear, and what failed."""
    found = []
    for one in logged:
        said = conclusion.conclude(one.run)
        most = [said.unclear, said.failures, said.doubts]
        answers = [*([one.run.question] if one.run.question else []), *said.answers]
        parts = [
            answers,
            [finding.summary for finding in said.findings],
            *(finding.details for finding in said.findings),
            *most,
        ]
        for part in parts:
            found += [f"{one.run.name}: {text}" if len(logged) > 1 else text for text in part[:MOST_SENTENCES]]
            if (left := len(part) - MOST_SENTENCES) > 0:
                found.append(f"{left} more of this kind are in the table below")
    return found


def commands(logged: Sequence[Logged]) -> list[str]:
    """Return the command lines that made the runs, without repetition."""
    found = (str(session.get("command") or "") for one in logged for session in one.run.sessions)
    return list(dict.fromkeys(filter(None, found))) or ["the command is not known"]


def table(run: derive.Run) -> str:
    """Return the table of the terminal as Markdown, cut after ``MOST_LINES``."""
    text = formats.markdown(formats.sheet(run, run.lines[:MOST_LINES]))
    left = len(run.lines) - MOST_LINES
    return f"{text}\n{left} more lines are in the table `rows` above.\n" if left > 0 else text


def environment(logged: Sequence[Logged]) -> str:
    """Return a Markdown table of the facts of each run; if there are several, what differs is bold."""
    columns = [_facts(one) for one in logged]
    lines = [["", *(_plain(one.run.name) for one in logged)], ["---"] * (1 + len(logged))]
    for name in dict.fromkeys(name for facts in columns for name in facts):
        cells = [_plain(facts.get(name, "")) for facts in columns]
        lines.append([name, *(f"**{cell}**" if cell and len(set(cells)) > 1 else cell for cell in cells)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _facts(one: Logged) -> dict[str, str]:
    config = one.content.config({}, one.run.environment)
    worker = one.run.environment.get("worker")
    known = {name: config.get(name) or one.run.environment.get(name) for name in FACTS}
    known |= {name: worker.get(name) for name in WORKER} if isinstance(worker, dict) else {}
    if isinstance(certificate := known.get("certificate"), dict):
        known["certificate"] = f"{certificate.get('passed')} of {certificate.get('of')} passed"
    return {name: str(value) for name, value in known.items() if value not in (None, "")}


def _plain(text: str) -> str:
    """Return ``text`` for a cell of a Markdown table, in which nothing of it is markup."""
    return MARKED.sub(lambda found: f"\\{found[0]}", " ".join(redact(text).split()).replace("&", "&amp;"))


if __name__ == "__main__":
    main(Request(**json.loads(sys.argv[1])), Path(sys.argv[2]))
