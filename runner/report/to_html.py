"""One page that opens offline: conclusion, table, charts, profiles, environment, commands."""

import base64
import gzip
import json
import re
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
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
from ..records.figures import as_typed, factors, finite, listed
from ..records.grouping import grouped
from . import charts
from .case_table import table_of, words
from .images import convert
from .output import save
from .reference_table import reference_tables
from .reproduce import command
from .table import facts_table, html_of

TEXT_BYTES, IMAGE_BYTES = 250_000, 400_000  # most that a page holds of profiles; other files are named
IMAGES = {".svg": "image/svg+xml", ".png": "image/png"}
MOST_SESSIONS = 6  # most sessions shown of a run, the last ones
RATIO, INTERVAL = "speedup", "95 % interval"  # a column, and the one after it
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
    names, labels, drawn = joint(runs), run_names(runs), charts.charts(runs)
    conclusions = list(map(conclude, runs))
    values = {
        "author": author,
        "runs": list(zip(runs, labels, map(_facts, runs), conclusions, strict=True)),
        "constants": [f"{name}: {text}" for name in names.constants if (text := names.constant(name))],
        "together": together(runs, labels),
        "failures": _remarks(labels, [each.failures for each in conclusions]),
        "doubts": _remarks(labels, [each.doubts for each in conclusions]),
        **_table(runs, labels, names, conclusions),
        "groups": grouped(enumerate(drawn), lambda item: "" if item[1].kind == "roofline" else item[1].group),
        "references": [table for run in runs for table in reference_tables(run.folder, run.rows, names)],
        **_profiles(runs, labels, names),
        "machine": _environment(runs, labels),
        "docs": _docs(),
    }
    title = title or " and ".join(dict.fromkeys(run.plan.name or run.name for run in runs))
    return document("report.html", title, drawn, note, **values)


def document(template: str, title: str, drawn: Sequence[charts.Chart], note: str = "", **values: Any) -> str:
    """Return the page of ``template``, which gets ``values``, with its charts. Raises BadInput without vl-convert."""
    library = _library(convert())
    from jinja2 import Environment, FileSystemLoader
    from markdown_it import MarkdownIt  # which rich needs too

    folder = FileSystemLoader(Path(__file__).parent)
    pages = Environment(loader=folder, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    data = _packed(json.dumps([{"spec": chart.spec, "data": list(chart.data)} for chart in drawn]))
    values |= {"title": title, "note": MarkdownIt("js-default").render(note), "drawn": drawn}
    return pages.get_template(template).render(values, data=data, library=library)


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


def _facts(run: Run) -> str:
    """Return when, where and how ``run`` ended."""
    began = str(run.sessions[0].get("started", "")) if run.sessions else ""
    facts = [began.replace("T", " ")[:16] or run.folder.resolve().parent.name, run.devices]
    facts += [run.outcome(run.rows), f"commit {run.commits}" if run.commits else ""]
    facts += [f"unreadable records left out: {run.unreadable}"] if run.unreadable else []
    return " · ".join(filter(None, facts))


def _remarks(labels: Sequence[str], parts: Sequence[Sequence[str]]) -> list[str]:
    """Return the sentences of a part of each conclusion, each once, after the runs that it is of, unless it is all."""
    told = [(text, label) for label, part in zip(labels, parts, strict=True) for text in part]
    runs = {text: [label for _, label in members] for text, members in grouped(told, itemgetter(0)).items()}
    return [text if of == labels else f"{listed(of)}: {text}" for text, of in runs.items()]


def _table(
    runs: Sequence[Run], labels: Sequence[str], names: Names, conclusions: Sequence[Conclusion]
) -> dict[str, Any]:
    """Return the parts of the table: heads, rows by problem, what they can be chosen by, notes and words."""
    every = [(label, line) for run, label in zip(runs, labels, strict=True) for line in run.lines]
    ordered = list(chain.from_iterable(grouped(every, lambda pair: names.heading(pair[1].case)).values()))
    lines, chosen = [line for _, line in ordered], runs[0].plan.columns if not runs[1:] else ()
    table = table_of(lines, names, chosen)
    columns = table.names[1:-1]

    def figures(line: Line, texts: Sequence[str]) -> Iterator[tuple[str, float | None]]:
        """Yield the cells of a row, each with the number that it is sorted by."""
        for text, column in zip(texts, columns, strict=True):
            base = 1.0 if column == RATIO and line.baseline else None
            yield text, finite(base or names.value(line if chosen else line.shown, column))
            if column == RATIO:
                yield factors(line.speedup_low, line.speedup_high), None

    titled = zip(table.heads[1:-1], columns, strict=True)
    heads = [text for head, column in titled for text in ([head, INTERVAL] if column == RATIO else [head])]
    heads[1:1] = ["verdict", *["run"] * (len(runs) > 1), "problem"]  # at once beside the time, for a narrow window
    rows = [
        (label, line, first.strip(), verdict, list(figures(line, texts)), _reason(line), command(line.case))
        for (label, line), (first, *texts, verdict) in zip(ordered, table.rows, strict=True)
    ]
    filters = {
        "problem": ("workload", [line.case.workload.name for line in lines]),  # a problem begins with it
        "run": ("run", [label for label, _ in ordered]),
        "implementation": ("implementation", [names.impl(line.case) for line in lines]),
        "verdict": ("verdict", [row[-1] for row in table.rows]),
    }
    unclear = [text for each in conclusions for text in each.unclear]
    return {
        "heads": ["implementation", *heads, "reason", "command"],
        "problems": grouped(rows, lambda row: names.heading(row[1].case)),
        "names": names,
        "wins": WINS,
        "filters": [(name, label, Counter(words)) for name, (label, words) in filters.items() if len({*words}) > 1],
        "footnotes": list(footnotes(lines, names)),
        "meanings": words(table, " ".join([INTERVAL, *unclear])),
    }


def _reason(line: Line) -> str:
    more = line.row.metrics.get("not_measured")
    return reason_of(line.row) or (f"not measured: {more}" if more else "")


def _profiles(runs: Sequence[Run], labels: Sequence[str], names: Names) -> dict[str, Any]:
    """Return the summaries and images of profilers, as far as there is room, and how many more summaries there are."""
    text_room, image_room, left, shown = TEXT_BYTES, IMAGE_BYTES, 0, list[tuple[Any, ...]]()
    rows = [(run, label, row) for run, label in zip(runs, labels, strict=True) for row in run.rows]
    summaries = [(*of, *file) for of in rows for file in kept_files(of[0].folder, of[2], SUMMARY).items()]
    for run, label, row, file, path in summaries:
        summary = read_kept(path).rstrip()
        if len(summary) > text_room:
            left += 1
            continue
        text_room -= len(summary)
        heading = f"{names.case(row.case)}: {file.parent.name}{f' ({label})' if runs[1:] else ''}"
        beside = kept_files(run.folder, row, f"{file.parent}/*")
        images = [image for image in beside.values() if image.suffix in IMAGES]
        size, elsewhere = sum(image.stat().st_size for image in images), ""
        if size <= image_room:
            image_room -= size
        else:
            elsewhere = f"In {run.folder / file.parent}: {', '.join(image.name for image in images)}"
            images = []
        shown.append((heading, summary, [(image.name, _source(image)) for image in images], elsewhere))
    return {"summaries": shown, "summaries_left": left}


def _source(image: Path) -> str:
    """Return an image as data. A browser runs no script in it and loads nothing that it names."""
    return f"data:{IMAGES[image.suffix]};base64,{base64.b64encode(image.read_bytes()).decode()}"


def _environment(runs: Sequence[Run], labels: Sequence[str]) -> str:
    """Return a table in HTML: a row for each fact, a column for each session; "" if none was recorded."""
    sessions: list[tuple[str, dict[str, str]]] = []
    for run, label in zip(runs, labels, strict=True):
        own = [f"{label}, session {place}" for place in range(1, len(run.sessions) + 1)]
        facts = [dict(_flat(session)) for session in run.sessions]
        sessions += list(zip(own if own[1:] else [label], facts, strict=False))[-MOST_SESSIONS:]
    return html_of(facts_table(sessions), " class=facts") if sessions else ""


@cache
def _docs() -> str:
    """Return the address of the documentation, by the git remote of this project; "" if unknown."""
    url = git(ROOT, "config", "--get", "remote.origin.url") if (ROOT / "docs").is_dir() else ""
    place = REMOTE.fullmatch((url or "").strip())
    return f"https://{place[1]}/{place[2]}/blob/HEAD/docs/" if place else ""


def _flat(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each fact with its dotted name."""
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif value is not None and value != "":
            yield f"{prefix}{name}", as_typed(value)
