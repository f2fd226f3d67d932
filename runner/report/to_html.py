"""One page that opens offline: conclusion, table, charts, profiles, environment, commands."""

from __future__ import annotations

import base64
import gzip
import json
import re
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from html import escape
from importlib import metadata
from itertools import chain
from operator import itemgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from ..device.cache import cache_folder
from ..device.files import replace_file
from ..device.git import git
from ..device.processes import ROOT
from ..findings.conclusion import Conclusion, conclude, together
from ..findings.kept_files import kept_files, read_kept
from ..findings.lines import WINS, Line
from ..findings.names import Names
from ..findings.notes import footnotes, reason_of
from ..findings.run import Run, joint, run_names
from ..measure import SUMMARY
from ..records.figures import factors, finite, listed
from ..records.grouping import grouped
from . import charts, reproduce
from .case_table import table_of, words
from .images import convert
from .output import save
from .reference_table import reference_tables
from .table import Table, facts_table, html_of

TEMPLATE = Path(__file__).with_name("page.html")
PLACE = re.compile(r"<!-- (\w+) -->")  # of a part in the template
TEXT_BYTES, IMAGE_BYTES = 250_000, 400_000  # of profiles in a page; the others are named
IMAGES = {".svg": "image/svg+xml", ".png": "image/png"}
MOST_SESSIONS = 6  # of a run, the last ones
RATIO, INTERVAL = "speedup", "95 % interval"  # a column, and the one after it
REMARKS = {"Wrong, failed or not possible": "failures", "About the times": "doubts"}  # parts of a conclusion
REMOTE = re.compile(r"(?:https?://|(?:ssh://)?git@)([\w.-]+)[:/]([\w./-]+?)(?:\.git)?/?")  # without a password


def arguments(parser: ArgumentParser) -> None:
    """Add the options of the page."""
    parser.add_argument("--title", default="", help="title; else the names of the runs")
    parser.add_argument("--note", default="", metavar="TEXT", help='Markdown at its beginning: --note "$(cat note.md)"')
    parser.add_argument("--author", default="", metavar="NAME", help="who wrote it")


def report(runs: Sequence[Run], options: Namespace) -> int:
    """Write the page and print its path. Raises BadInput."""
    return save(page(runs, options.title, options.note, options.author), runs, options.output, ".html")


def page(runs: Sequence[Run], title: str = "", note: str = "", author: str = "") -> str:
    """Return the page of ``runs`` with ``note``, in Markdown, at its beginning. Raises BadInput."""
    content = _Page(runs, joint(runs), run_names(runs), charts.charts(runs))
    parts = ("conclusion", "table", "charts", "profiles", "environment", "words")
    sections = {name.capitalize(): getattr(content, name)() for name in parts}
    return document(title or content.title, content.heading(author), sections, content.drawn, note)


def document(
    title: str, heading: str, sections: Mapping[str, Iterable[str]], drawn: Sequence[charts.Chart], note: str = ""
) -> str:
    """Return a page with the ``sections`` that are not empty. Raises BadInput if vl-convert is not installed."""
    from markdown_it import MarkdownIt  # which rich needs too

    bodies = {name: text for name, parts in sections.items() if (text := "".join(parts))}
    parts = {
        "title": escape(title),
        "heading": heading,
        "nav": "".join(f'<a href="#{name.lower()}">{name}</a>' for name in bodies),
        "note": f"<section class=told>{MarkdownIt('js-default').render(note)}</section>" if note else "",
        "sections": "".join(
            f'<section aria-labelledby="{name.lower()}"><h2 id="{name.lower()}">{name}</h2>{text}</section>'
            for name, text in bodies.items()
        ),
        "data": _packed(json.dumps([{"spec": chart.spec, "data": list(chart.data)} for chart in drawn])),
        "library": _library(convert()),
    }
    return PLACE.sub(lambda place: parts[place[1]], TEMPLATE.read_text(encoding="utf-8"))


def _packed(text: str) -> str:
    """Return ``text`` compressed, in base64: a tenth of the size, and no sign of it has a meaning in HTML."""
    return base64.b64encode(gzip.compress(text.encode(errors="replace"), 6, mtime=0)).decode()


@cache
def _library(package: ModuleType) -> str:
    """Return Vega-Lite and all that it needs, packed. It takes two seconds to bundle, so the user's cache keeps it."""
    file = cache_folder("report") / f"vega-lite-{metadata.version('vl-convert-python')}"
    with suppress(OSError):
        return file.read_text(encoding="ascii")
    packed = _packed(package.javascript_bundle())
    with suppress(OSError):  # a full disk, or no home
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, packed.encode("ascii"))
    return packed


@dataclass(frozen=True)
class _Page:
    """The parts of a page, as HTML."""

    runs: Sequence[Run]
    names: Names
    run_names: Sequence[str]
    drawn: Sequence[charts.Chart]

    @property
    def title(self) -> str:
        return " and ".join(dict.fromkeys(run.title or run.name for run in self.runs))

    def heading(self, author: str) -> str:
        """Return the author, a line for each run, and the fields that are the same in all cases of a workload."""
        lines = [f"by {escape(author)}"] if author else []
        for run, name in zip(self.runs, self.run_names, strict=True):
            began = str(run.sessions[0].get("started", "")) if run.sessions else ""
            facts = [began.replace("T", " ")[:16] or run.folder.resolve().parent.name, run.devices]
            facts += [run.outcome(run.rows), f"commit {run.commits}" if run.commits else ""]
            facts += [f"unreadable records left out: {run.unreadable}"] if run.unreadable else []
            lines.append(f"<b>{escape(name)}</b> {escape(' · '.join(filter(None, facts)))}")
        lines += [escape(f"{name}: {text}") for name in self.names.constants if (text := self.names.constant(name))]
        return "".join(f"<p class=facts>{line}</p>" for line in lines)

    @cached_property
    def conclusions(self) -> dict[str, Conclusion]:
        """The conclusion of each run, by its name."""
        return dict(zip(self.run_names, map(conclude, self.runs), strict=True))

    def conclusion(self) -> Iterator[str]:
        """Yield what was found, what is unclear, and what failed: of several runs together, what differs first."""
        for statement in (several := together(self.runs, self.run_names)):
            yield f"<p class=finding>{escape(statement.summary)}</p>{_list(statement.details, 'What and why')}"
        for run, (name, conclusion) in zip(self.runs, self.conclusions.items(), strict=True):
            yield f"<details><summary>{escape(name)} alone</summary>" if several else ""
            if run.question:
                yield f"<p><b>{escape(run.question)}</b></p>"
            yield from (f"<p class=finding>{escape(answer)}</p>" for answer in conclusion.answers)
            for statement in conclusion.findings:
                yield f"<p class=finding>{escape(statement.summary)}</p>{_list(statement.details, 'Size by size')}"
            yield _section("Not clear", conclusion.unclear)
            yield "</details>" if several else ""
        for title, part in REMARKS.items():
            told = [(text, name) for name, each in self.conclusions.items() for text in getattr(each, part)]
            named = {text: [name for _, name in members] for text, members in grouped(told, itemgetter(0)).items()}
            every = self.run_names
            yield _section(title, [text if of == every else f"{listed(of)}: {text}" for text, of in named.items()])
        if several:
            yield "<p class=note>In the table and the charts, speed-ups are against the baseline of the same run.</p>"

    @cached_property
    def lines(self) -> list[tuple[str, Line]]:
        """The lines of all runs with the names of these, those of a problem together."""
        lines = [(name, line) for run, name in zip(self.runs, self.run_names, strict=True) for line in run.lines]
        problems = grouped(lines, lambda pair: self.names.heading(pair[1].case))
        return list(chain.from_iterable(problems.values()))

    @cached_property
    def cells(self) -> Table:
        """The table of the terminal."""
        chosen = self.runs[0].columns if len(self.runs) == 1 else ()
        return table_of([line for _, line in self.lines], self.names, chosen)

    def table(self) -> Iterator[str]:
        """Yield the controls and the table: the name, the time and the verdict come first, for a narrow window."""
        table, several = self.cells, len(self.runs) > 1
        chosen = self.runs[0].columns if not several else ()
        named = zip(table.heads[1:-1], table.names[1:-1], strict=True)
        heads = [text for head, name in named for text in ([head, INTERVAL] if name == RATIO else [head])]
        heads[1:1] = ["verdict", *["run"] * several, "problem"]
        heads = ["implementation", *heads, "reason", "command"]
        yield self._controls([row[-1] for row in table.rows])
        yield '<div class=scroll tabindex=0 role=region aria-label="Table of results"><table id=rows><thead><tr>'
        for head in heads:  # the problem is hidden unless the table is sorted
            yield f"<th scope=col tabindex=0{' class=p' * (head == 'problem')}>{escape(head)}"
        yield "</thead>"
        last = None
        commands = reproduce.commands(line.case for _, line in self.lines)
        for (run, line), (first, *texts, verdict), command in zip(self.lines, table.rows, commands, strict=True):
            numbers = []
            for text, name in zip(texts, table.names[1:-1], strict=True):
                base = 1.0 if name == RATIO and line.baseline else None
                numbers.append(_cell(text, base or self.names.value(line if chosen else line.shown, name)))
                numbers += [_cell(factors(line.speedup_low, line.speedup_high))] if name == RATIO else []
            if (problem := escape(self.names.heading(line.case))) != last:
                yield f"<tbody><tr class=problem><th scope=rowgroup colspan={len(heads)}><span>{problem}</span>\n"
            last = problem
            kind = " bad" if line.row.failed else " odd" if verdict != "ok" else ""
            cells = [*numbers[:1], f'<td class="v{kind}">{escape(verdict)}', *([_cell(run)] if several else [])]
            yield self._row(line, first, [*cells, f"<td class=p>{problem}", *numbers[1:]], command)
        yield "</table></div>"
        if notes := list(footnotes([line for _, line in self.lines], self.names)):
            yield f"<p class=note>{'<br>'.join(map(escape, notes))}</p>"

    def words(self) -> Iterator[str]:
        """Yield the meaning of the words above, which the script shows beside them too."""
        unclear = [text for each in self.conclusions.values() for text in each.unclear]
        meanings, base = words(self.cells, " ".join([INTERVAL, *unclear])), escape(_docs())
        yield from ("<dl>", *(f"<dt>{escape(word)}<dd>{escape(text)}" for word, text in meanings.items()), "</dl>")
        pages = ("columns.md", "timing.md", "glossary.md")
        links = [f'<a href="{base}{name}">{name}</a>' if base else f"docs/{name}" for name in pages]
        yield f"<p class=note>More: {', '.join(links)}</p>"

    def _controls(self, verdicts: Sequence[str]) -> str:
        options = [
            ("problem", "workload", [line.case.workload.name for _, line in self.lines]),  # a problem begins with it
            ("run", "run", [name for name, _ in self.lines]),
            ("implementation", "implementation", [self.names.impl(line.case) for _, line in self.lines]),
            ("verdict", "verdict", verdicts),
        ]
        chosen = "".join(_select(*each) for each in options if len(set(each[2])) > 1)
        return (
            "<form class=controls id=filters><label>search <input type=search name=text autocomplete=off></label>"
            f"{chosen}<label class=check><input type=checkbox name=fastest> fastest only</label>"
            "<output id=count aria-live=polite></output></form>"
        )

    def _row(self, line: Line, first: str, cells: Sequence[str], command: str) -> str:
        row, case = line.row, line.case
        reason = reason_of(row) or (f"not measured: {more}" if (more := row.metrics.get("not_measured")) else "")
        label = f'<th scope=row data-v="{escape(self.names.impl(case))}">{escape(first.strip())}'
        command = f"<td><button type=button class=copy>copy</button> <code>{escape(command)}</code>"
        mark = f" class={line.fastest}" if line.fastest in WINS else ""
        return f"<tr{mark}>{label}{''.join(cells)}<td class=why>{escape(reason)}{command}\n"

    def charts(self) -> Iterator[str]:
        """Yield a place for each chart, by workload; the script fills it."""
        groups = grouped(enumerate(self.drawn), lambda item: "" if item[1].kind == "roofline" else item[1].group)
        yield "<noscript><p>The charts need JavaScript.</p></noscript>"
        for group, members in groups.items():
            parts = list(dict.fromkeys(chart.part for _, chart in members))
            chooser = _select("part", "problems with", parts, every=False) if len(parts) > 1 else ""
            yield f"<section class=group><h3>{escape(group or 'Roofline')}</h3>{chooser}<div class=figures>"
            for place, chart in members:
                yield figure_of(place, chart, " hidden" if chart.part != parts[0] else "")
            yield "</div></section>"
        if not self.drawn:
            yield "<p>There is no chart: no result is correct and has a time.</p>"
            return
        missing = "" if "" in groups else " There is no roofline: these rows have no measured peak of a GPU."
        yield (
            "<p class=note>Bars behind the points are 95 % intervals. A hollow point has a verdict other than ok. "
            "Wrong results are not drawn. Click a name in a legend to see it alone; Shift adds another."
            f"{missing}</p>"
        )

    def profiles(self) -> Iterator[str]:
        """Yield the summaries and images of profilers, as far as there is room."""
        text_room, image_room, left = TEXT_BYTES, IMAGE_BYTES, 0
        for run in self.runs:
            for heading, text in reference_tables(run.folder, run.rows, self.names):
                yield f"<details class=profile open><summary>{escape(heading)}</summary>"
                yield f"<pre tabindex=0>{escape(text)}</pre></details>"
        rows = [(run, name, row) for run, name in zip(self.runs, self.run_names, strict=True) for row in run.rows]
        summaries = [(*of, *file) for of in rows for file in kept_files(of[0].folder, of[2], SUMMARY).items()]
        for run, name, row, file, path in summaries:
            summary = read_kept(path).rstrip()
            if len(summary) > text_room:
                left += 1
                continue
            text_room -= len(summary)
            of_run = f" ({name})" if len(self.runs) > 1 else ""
            head = f"{self.names.case(row.case)}: {file.parent.name}{of_run}"
            yield f"<details class=profile><summary>{escape(head)}</summary><pre tabindex=0>{escape(summary)}</pre>"
            beside = kept_files(run.folder, row, f"{file.parent}/*")
            images = [image for image in beside.values() if image.suffix in IMAGES]
            size = sum(image.stat().st_size for image in images)
            if images and size <= image_room:
                image_room -= size
                yield from map(_image, images)
            elif images:
                where = f"In {run.folder / file.parent}: {', '.join(image.name for image in images)}"
                yield f"<p class=note>{escape(where)}</p>"
            yield "</details>"
        if left:
            yield f"<p class=note>{left} more summaries are in the folder of the run.</p>"

    def environment(self) -> Iterator[str]:
        """Yield a table: a row for each fact, a column for each session."""
        sessions: list[tuple[str, dict[str, str]]] = []
        for run, name in zip(self.runs, self.run_names, strict=True):
            labels = [f"{name}, session {place}" for place in range(1, len(run.sessions) + 1)]
            facts = [dict(_flat(session)) for session in run.sessions]
            sessions += list(zip(labels if labels[1:] else [name], facts, strict=False))[-MOST_SESSIONS:]
        if not sessions:
            yield "<p>The environment was not recorded.</p>"
            return
        table = html_of(facts_table("", sessions), " class=facts")
        yield f'<div class=scroll tabindex=0 role=region aria-label="Environment">{table}</div>'


def figure_of(place: int, chart: charts.Chart, hidden: str = "") -> str:
    """Return the place of the ``chart`` that is drawn as number ``place`` of a document."""
    title = escape(chart.title)
    return (
        f'<figure data-part="{escape(chart.part)}"{hidden}><figcaption>{title}</figcaption>'
        f'<div class=chart data-chart={place} role=group aria-label="{title}"></div></figure>'
    )


def _list(items: Sequence[str], title: str) -> str:
    """Return a list, folded if it is long."""
    if len(items) <= 3:
        return _items(items)
    return f"<details><summary>{escape(title)} ({len(items)})</summary>{_items(items)}</details>"


def _items(items: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(item)}' for item in items)}</ul>" if items else ""


def _section(title: str, items: Sequence[str]) -> str:
    return f"<h4>{escape(title)}</h4>{_items(items)}" if items else ""


def _cell(text: str, value: Any = None) -> str:
    """Return a cell of the table, with the number that it is sorted by."""
    number = finite(value)
    return f"<td>{escape(text)}" if number is None else f"<td data-v={number:.5g}>{escape(text)}"


@cache
def _docs() -> str:
    """Return where the documentation is, by the git remote of this project; "" if that is not known."""
    url = git(ROOT, "config", "--get", "remote.origin.url") if (ROOT / "docs").is_dir() else ""
    place = REMOTE.fullmatch((url or "").strip())
    return f"https://{place[1]}/{place[2]}/blob/HEAD/docs/" if place else ""


def _select(name: str, label: str, values: Sequence[str], *, every: bool = True) -> str:
    """Return a choice of one of ``values``, or of ``every`` one, then with their counts."""
    options = "".join(
        f'<option value="{escape(value)}">{escape(f"{value} ({count})" if every else value)}'
        for value, count in Counter(values).items()
    )
    first = '<option value="">all' if every else ""
    return f"<label>{escape(label)} <select name={name}>{first}{options}</select></label>"


def _flat(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each fact with its dotted name."""
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif value is not None and value != "":
            yield f"{prefix}{name}", str(value)


def _image(path: Path) -> str:
    """Return an image as data. A browser runs no script in it and loads nothing that it names."""
    data = base64.b64encode(path.read_bytes()).decode()
    source = f"data:{IMAGES[path.suffix]};base64,{data}"
    return f'<div class=image tabindex=0><img loading=lazy alt="{escape(path.name)}" src="{source}"></div>'
