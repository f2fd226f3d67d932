"""One page that holds everything and opens offline: conclusion, table, charts, profiles, environment, commands."""

from __future__ import annotations

import argparse
import base64
import gzip
import html
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path, PurePath
from types import ModuleType
from typing import TYPE_CHECKING, Any

from runner.device.identity import cache_folder

if TYPE_CHECKING:
    from runner.experiment.results import Row
    from runner.report.charts import Chart
    from runner.report.derive import Line, Names, Run

TEMPLATE = Path(__file__).with_name("page.html")
PLACE = re.compile(r"<!-- (\w+) -->")  # of a part in the template
TEXT_BYTES, IMAGE_BYTES = 250_000, 400_000  # of profiles in a page; the others are named
IMAGES = {".svg": "image/svg+xml", ".png": "image/png"}
MOST_SESSIONS = 6  # of a run, the last ones
RATIO, INTERVAL = "speedup", "95 % interval"  # a column, and the one after it


def report(runs: Sequence[Run], options: argparse.Namespace) -> int:
    """Write the page and print its path. Raises BadInput."""
    from runner.report import charts

    path = charts.target(runs, options.output, ".html")
    charts.write(path, page(runs).encode(errors="replace"))
    print(path)
    return 0


def page(runs: Sequence[Run]) -> str:
    """Return the page of ``runs``. Raises BadInput if vl-convert is not installed."""
    from runner.report import charts

    package = charts.convert()
    content = _Page(runs, charts.joint(runs), charts.run_names(runs), charts.charts(runs))
    parts = {
        "title": _text(content.title),
        "heading": content.heading(),
        "conclusion": "".join(content.conclusion()),
        "table": "".join(content.table()),
        "charts": "".join(content.charts()),
        "profiles": "".join(content.profiles()),
        "environment": "".join(content.environment()),
        "data": _packed(json.dumps([{"spec": chart.spec, "data": list(chart.data)} for chart in content.drawn])),
        "library": _library(package),
    }
    return PLACE.sub(lambda found: parts[found[1]], TEMPLATE.read_text(encoding="utf-8"))


def _text(value: object) -> str:
    """Return ``value`` as text in HTML, also within an attribute."""
    return html.escape(str(value))


def _packed(text: str) -> str:
    """Return ``text`` compressed, in base64: a tenth of the size, and no sign of it has a meaning in HTML."""
    return base64.b64encode(gzip.compress(text.encode(errors="replace"), 9, mtime=0)).decode()


@cache
def _library(package: ModuleType) -> str:
    """Return Vega-Lite and all that it needs, packed. It takes two seconds to bundle, so the user's cache keeps it."""
    file = cache_folder("report") / f"vega-lite-{metadata.version('vl-convert-python')}"
    with suppress(OSError):
        return file.read_text(encoding="ascii")
    packed = _packed(package.javascript_bundle())
    with suppress(OSError):  # a full disk, or no home
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_name(f"{file.name}.{os.getpid()}")
        new.write_text(packed, encoding="ascii")
        new.replace(file)
    return packed


@dataclass(frozen=True)
class _Page:
    """The parts of a page, as HTML."""

    runs: Sequence[Run]
    names: Names
    run_names: Sequence[str]
    drawn: Sequence[Chart]

    @property
    def title(self) -> str:
        return " and ".join(dict.fromkeys(run.title or run.name for run in self.runs))

    def heading(self) -> str:
        """Return a line for each run: its name, when it began, its device, how it ended."""
        from runner.report import terminal

        lines = []
        for run, name in zip(self.runs, self.run_names, strict=True):
            devices = ", ".join(dict.fromkeys(row.device for row in run.rows if row.device))
            began = str(run.sessions[0].get("started", "")) if run.sessions else ""
            lost = f"unreadable records left out: {run.unreadable}" if run.unreadable else ""
            commits = f"commit {run.commits}" if run.commits else ""
            facts = [
                began.replace("T", " ")[:16] or run.folder.resolve().parent.name,
                devices,
                terminal.ended(run, run.rows),
                commits,
                lost,
            ]
            lines.append(f"<p class=facts><b>{_text(name)}</b> {_text(' · '.join(filter(None, facts)))}</p>")
        return "".join(lines)

    def conclusion(self) -> Iterator[str]:
        """Yield what was found, what is unclear, and what failed."""
        from runner.report.conclusion import changes, conclude

        for run, name in zip(self.runs, self.run_names, strict=True):
            found = conclude(run)
            if len(self.runs) > 1:
                yield f"<h3>{_text(name)}</h3>"
            if run.question:
                yield f"<p><b>{_text(run.question)}</b></p>"
            yield from (f"<p class=finding>{_text(answer)}</p>" for answer in found.answers)
            for finding in found.findings:
                yield f"<p class=finding>{_text(finding.summary)}</p>"
                yield _list(finding.details, "Size by size")
            yield _section("Not clear", found.unclear)
            yield _section("Wrong, failed or not possible", found.failures)
            yield _section("About the times", found.doubts)
        if len(self.runs) > 1:
            yield "<h3>From run to run</h3>"
            for finding in changes(self.runs, self.run_names):
                yield f"<p class=finding>{_text(finding.summary)}</p>{_list(finding.details, 'What and why')}"
            yield "<p class=note>In the table and the charts, speed-ups are against the baseline of the same run.</p>"

    @cached_property
    def lines(self) -> list[tuple[str, Run, Line]]:
        """The lines of all runs, those of a problem together."""
        groups: dict[str, list[tuple[str, Run, Line]]] = {}
        for run, name in zip(self.runs, self.run_names, strict=True):
            for line in run.lines:
                groups.setdefault(self.names.heading(line.row.case), []).append((name, run, line))
        return [one for group in groups.values() for one in group]

    def table(self) -> Iterator[str]:
        """Yield the controls and the table."""
        from runner.measure import known_columns
        from runner.report import terminal

        lines = [line for _, _, line in self.lines]
        chosen = self.runs[0].columns if len(self.runs) == 1 else ()
        first, filled, last = terminal.cells(lines, self.names, chosen)
        known = known_columns()
        meanings = {column.title: known[column.name].meaning for column in filled if column.name in known}
        several = len(self.runs) > 1
        heads = ["workload", "problem", *(["run"] if several else []), "implementation"]
        heads += [title for column in filled for title in (column.title, *([INTERVAL] if column.name == RATIO else []))]
        heads += ["verdict", "reason", "command"]
        yield self._controls(last[1:])
        yield '<div class=scroll tabindex=0 role=region aria-label="Table of results"><table id=rows><thead><tr>'
        for head in heads:
            meaning = f' title="{_text(meanings[head])}"' if head in meanings else ""
            yield f"<th scope=col{meaning}><button type=button>{_text(head)}</button>"
        yield "</thead><tbody>"
        for place, (name, _, line) in enumerate(self.lines):
            numbers = []
            for column, cells in filled.items():
                numbers.append(_cell(cells[place + 1], self.names.value(line, column.name)))
                numbers += [_cell(_ends(line))] if column.name == RATIO else []
            yield self._row(line, [name] if several else [], first[place + 1], numbers, last[place + 1])
        yield "</tbody></table></div>"
        if notes := list(terminal.explain(lines, self.names)):
            yield f"<p class=note>{'<br>'.join(map(_text, notes))}</p>"

    def _controls(self, verdicts: Sequence[str]) -> str:
        lines = [line for _, _, line in self.lines]
        options = {
            "workload": [line.row.case.workload.name for line in lines],
            "run": [name for name, _, _ in self.lines] if len(self.runs) > 1 else [],
            "implementation": [self.names.impl(line.row.case) for line in lines],
            "verdict": verdicts,
        }
        chosen = "".join(_select(name, values) for name, values in options.items() if len(set(values)) > 1)
        return (
            "<form class=controls id=filters><label>search <input type=search name=text autocomplete=off></label>"
            f"{chosen}<label class=check><input type=checkbox name=fastest> fastest only</label>"
            "<output id=count aria-live=polite></output></form>"
        )

    def _row(self, line: Line, run: Sequence[str], first: str, numbers: Sequence[str], verdict: str) -> str:
        from runner.report import reproduce, terminal

        row, case = line.row, line.row.case
        problem = self.names.heading(case).removeprefix(case.workload.name).strip()
        reason = terminal.why(row) or (f"not measured: {more}" if (more := row.metrics.get("not_measured")) else "")
        kind = "bad" if row.failed else "odd" if verdict != "ok" else ""
        texts = [_cell(case.workload.name), _cell(problem), *map(_cell, run)]
        label = f'<th scope=row data-v="{_text(self.names.impl(case))}">{_text(first.strip())}'
        told = f"<td class={kind}>{_text(verdict)}" if kind else _cell(verdict)
        command = f"<td><details><summary>show</summary><code>{_text(reproduce.command(case))}</code></details>"
        mark = f" class={line.fastest}" if line.fastest != "no" else ""
        return f"<tr{mark}>{''.join(texts)}{label}{''.join(numbers)}{told}{_cell(reason)}{command}\n"

    def charts(self) -> Iterator[str]:
        """Yield a place for each chart, by workload; the script fills it."""
        groups: dict[tuple[bool, str], list[int]] = {}
        for place, chart in enumerate(self.drawn):
            key = (True, "Roofline") if chart.kind == "roofline" else (False, chart.group)
            groups.setdefault(key, []).append(place)
        for (_, group), places in groups.items():
            parts = list(dict.fromkeys(self.drawn[place].part for place in places))
            chooser = _select("part", parts, "problems with", every=False) if len(parts) > 1 else ""
            yield f"<section class=group><h3>{_text(group)}</h3>{chooser}<div class=figures>"
            for place in places:
                chart = self.drawn[place]
                hidden = " hidden" if chart.part != parts[0] else ""
                yield (
                    f'<figure data-part="{_text(chart.part)}"{hidden}><figcaption>{_text(chart.title)}</figcaption>'
                    f'<div class=chart data-chart={place} role=group aria-label="{_text(chart.title)}"></div></figure>'
                )
            yield "</div></section>"
        if not self.drawn:
            yield "<p>There is no chart: no result is correct and has a time.</p>"
        else:
            yield f"<p class=note>{_text(self._about_charts())}</p>"

    def _about_charts(self) -> str:
        roofline = any(chart.kind == "roofline" for chart in self.drawn)
        missing = "" if roofline else " There is no roofline: these rows have no measured peak of a GPU."
        return (
            "Bars behind the points are 95 % intervals. A hollow point has a verdict other than ok. Wrong results are "
            f"not drawn. Click a name in a legend to see it alone; Shift adds another.{missing}"
        )

    def profiles(self) -> Iterator[str]:
        """Yield the summaries and images of profilers, as far as there is room."""
        from runner.report import side_by_side

        text_room, image_room, left = TEXT_BYTES, IMAGE_BYTES, 0
        for run in self.runs:
            for heading, text in side_by_side.tables(run.folder, run.rows, self.names):
                yield f"<details class=profile open><summary>{_text(heading)}</summary>"
                yield f"<pre tabindex=0>{_text(text)}</pre></details>"
        for run, name, row, folder in self._profiled():
            summary, images = _files(run, row, folder)
            size = sum(path.stat().st_size for path in images)
            if len(summary) > text_room:
                left += 1
                continue
            text_room -= len(summary)
            of_run = f" ({name})" if len(self.runs) > 1 else ""
            head = f"{self.names.case(row.case)}: {folder.name}{of_run}"
            yield f"<details class=profile><summary>{_text(head)}</summary><pre tabindex=0>{_text(summary)}</pre>"
            if images and size <= image_room:
                image_room -= size
                yield from map(_image, images)
            elif images:
                where = f"In {run.folder / folder}: {', '.join(path.name for path in images)}"
                yield f"<p class=note>{_text(where)}</p>"
            yield "</details>"
        if left:
            yield f"<p class=note>{left} more summaries are in the folder of the run.</p>"

    def _profiled(self) -> Iterator[tuple[Run, str, Row, PurePath]]:
        """Yield each folder of a measurement that wrote a summary."""
        from runner.measure import SUMMARY

        for run, name in zip(self.runs, self.run_names, strict=True):
            for row in run.rows:
                for file in map(PurePath, row.files):
                    if file.name == SUMMARY:
                        yield run, name, row, file.parent

    def environment(self) -> Iterator[str]:
        """Yield a table: a row for each fact, a column for each session."""
        sessions: list[tuple[str, dict[str, str]]] = []
        for run, name in zip(self.runs, self.run_names, strict=True):
            found = list(run.sessions)[-MOST_SESSIONS:]
            for place, session in enumerate(found, len(run.sessions) - len(found) + 1):
                label = f"{name}, session {place}" if len(run.sessions) > 1 else name
                sessions.append((label, dict(_flat(session))))
        facts = dict.fromkeys(fact for _, session in sessions for fact in session)
        if not sessions:
            yield "<p>The environment was not recorded.</p>"
            return
        yield '<div class=scroll tabindex=0 role=region aria-label="Environment"><table class=facts><thead><tr><th>'
        yield "".join(f"<th scope=col>{_text(label)}" for label, _ in sessions) + "</thead><tbody>"
        for fact in facts:
            values = [session.get(fact, "") for _, session in sessions]
            differs = " class=differs" if len(set(values)) > 1 else ""
            yield f"<tr{differs}><th scope=row>{_text(fact)}" + "".join(f"<td>{_text(value)}" for value in values)
        yield "</tbody></table></div>"


def _ends(line: Line) -> str:
    """Return the 95 % interval of the speed-up; "" if it is not known."""
    if line.speedup_low is None or line.speedup_high is None:
        return ""
    return f"{line.speedup_low:.3f}x to {line.speedup_high:.3f}x"


def _list(items: Sequence[str], title: str) -> str:
    """Return a list, folded if it is long."""
    if not items:
        return ""
    listed = f"<ul>{''.join(f'<li>{_text(item)}' for item in items)}</ul>"
    return listed if len(items) <= 3 else f"<details><summary>{_text(title)} ({len(items)})</summary>{listed}</details>"


def _section(title: str, items: Sequence[str]) -> str:
    return f"<h4>{_text(title)}</h4><ul>{''.join(f'<li>{_text(item)}' for item in items)}</ul>" if items else ""


def _cell(text: str, value: Any = None) -> str:
    """Return a cell of the table, with the number that it is sorted by."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return f"<td>{_text(text)}"
    return f"<td data-v={value:.5g}>{_text(text)}"


def _select(name: str, values: Sequence[str], label: str = "", *, every: bool = True) -> str:
    """Return a choice of one of ``values``, or of ``every`` one, then with their counts."""
    options = "".join(
        f'<option value="{_text(value)}">{_text(f"{value} ({count})" if every else value)}'
        for value, count in Counter(values).items()
    )
    first = '<option value="">all' if every else ""
    return f"<label>{_text(label or name)} <select name={name}>{first}{options}</select></label>"


def _flat(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each fact with its dotted name."""
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif value is not None and value != "":
            yield f"{prefix}{name}", str(value)


def _files(run: Run, row: Row, folder: PurePath) -> tuple[str, list[Path]]:
    """Return the summary and the images in ``folder`` of a measurement, as far as they are in the folder of ``run``."""
    from runner.measure import SUMMARY
    from runner.store import run_folder

    text, images = "", []
    for file in map(PurePath, row.files):
        if file.parent == folder and (path := run_folder.artifact(run.folder, str(file))):
            if file.name == SUMMARY:
                text = path.read_text(encoding="utf-8", errors="replace").rstrip()
            elif file.suffix in IMAGES:
                images.append(path)
    return text, images


def _image(path: Path) -> str:
    """Return an image as data. A browser runs no script in it and loads nothing that it names."""
    data = base64.b64encode(path.read_bytes()).decode()
    source = f"data:{IMAGES[path.suffix]};base64,{data}"
    return f'<div class=image tabindex=0><img loading=lazy alt="{_text(path.name)}" src="{source}"></div>'
