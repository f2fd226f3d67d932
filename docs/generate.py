"""Writes the pages that say what the code says: ``docs/groups/*.md`` and ``docs/columns.md``.

    python docs/generate.py           rewrites them
    python docs/generate.py --check   exits 1 if one of them is stale, and names it

Defaults, comments and sweeps come from ``conf/``; allowed values from the types of the dataclass behind each option;
formulas, counts and calls from the docstrings. Nothing is written here twice.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import yaml  # noqa: E402

from runner import implementations  # noqa: E402
from runner.config import grid  # noqa: E402
from runner.experiment import columns, options, results, schema  # noqa: E402
from runner.implementations.kernel import arguments  # noqa: E402

CONF = ROOT / "conf"
PAGES = ROOT / "docs"
NOTE = "<!-- Written by docs/generate.py from the code. Edit the code, then run it again. -->"
ROOMS = {
    "workload": "runner.models",
    "measure": "runner.measure",
    "launcher": "runner.execute",
    "log": "runner.report.logging",
}

GROUPS = {  # group → what it chooses, and where its options live
    "workload": "What to compute. An option is a YAML here and a class in [`models/`](../../models).",
    "impl": "How to compute it. An option is a file in [`kernels/<op>/`](../../kernels), or one of the wrappers below, "
    "whose classes stand in [`runner/impl/`](../../runner/impl).",
    "measure": "What to observe. An option is a YAML here and a class in [`runner/measure/`](../../runner/measure). "
    "Its fields are overridden as `measure.<option>.<field>`.",
    "launcher": "Where the cases run. An option is a YAML here and a class in [`runner/launch/`](../../runner/launch).",
    "log": "Who hears of a run beside its folder. An option is a YAML here and a class in "
    "[`runner/log/`](../../runner/log).",
    "experiment": "Whole studies by one name: choose one with `+experiment=<option>`, and override it like anything "
    "else.",
}


@dataclass(frozen=True)
class Entry:
    """A field of a YAML with the comment beside it."""

    name: str
    default: str  # as it is written
    comment: str


@dataclass(frozen=True)
class Source:
    """A YAML file of ``conf/`` as its author wrote it."""

    head: str  # the comment at the top, as Markdown
    entries: tuple[Entry, ...]
    values: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> Source:
        """The file at ``path``; only fields at its top level are entries."""
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        count = next(i for i, line in enumerate([*lines, ""]) if not line.startswith("#"))
        head = [line[1:] for line in lines[:count] if not line.startswith("# @package")]
        return cls(_markdown(head), tuple(_entries(lines[count:])), yaml.safe_load(text))

    @classmethod
    def nested(cls, path: Path, name: str) -> Source:
        """The fields under the field ``name`` of the file at ``path``."""
        _, _, below = path.read_text(encoding="utf-8").partition(f"\n{name}:\n")
        lines = [line[2:] for line in below.partition("\n\n")[0].splitlines()]
        return cls("", tuple(_entries(lines)), {})


def _entries(lines: list[str]) -> list[Entry]:
    """A comment that stands beside a field is its own, else the block of comments above it."""
    found, above = [], ""
    for line in lines:
        if line.startswith("#"):
            above = f"{above} {line[1:].strip()}".strip()
        elif match := re.match(r"([A-Za-z_]\w*):\s*(.*?)\s*(?:#\s*(.*))?$", line):
            found.append(Entry(match[1], match[2], match[3] or above))
            above = ""
        elif not line.strip():
            above = ""
    return found


def _markdown(comment: list[str]) -> str:
    """Lines of a comment; those indented by two or more are commands."""
    paragraphs: list[str] = []
    for line in comment:
        if line.startswith("   "):
            if not paragraphs or not paragraphs[-1].startswith("```"):
                paragraphs.append("```bash\n```")
            paragraphs[-1] = f"{paragraphs[-1][:-3]}{line.strip()}\n```"
        elif paragraphs and not paragraphs[-1].startswith("```"):
            paragraphs[-1] += f"\n{line.strip()}"
        else:
            paragraphs.append(line.strip())
    return "\n\n".join(paragraphs)


def group_page(group: str) -> str:
    """The page of one config group: every option, in alphabetical order."""
    sources = {path.stem: Source.read(path) for path in sorted((CONF / group).glob("*.yaml"))}
    parts = [f"# {group}", GROUPS[group], "Options: " + ", ".join(f"[{name}](#{name})" for name in sources)]
    if group == "impl":
        parts += _kernels()
    for name, source in sources.items():
        parts += [f"## {name}", source.head, *_option(group, name, source)]
    return _page(parts)


def _option(group: str, name: str, source: Source) -> list[str]:
    if group == "experiment":
        text = (CONF / group / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
        body = "\n".join(line for line in text if line.startswith("# @package") or not line.startswith("#"))
        return [f"```yaml\n{body}\n```"]
    cls = implementations.find(name) if group == "impl" else options.find(ROOMS[group], name)
    where = "measure." + name if group == "measure" else group
    parts = _table(cls, source, where)
    if axes := source.values.get("axes"):
        swept = "; ".join(f"`{where}.{field}` over {', '.join(map(str, values))}" for field, values in axes.items())
        parts.append(f"Default sweep under `-m`: {swept}.")
    if group == "workload":
        parts += _given(name)
        parts += [_counted(cls, "flops", "Operations counted"), _counted(cls, "bytes_min", "Bytes counted")]
        parts.append(f"Formula, reference and tolerance: [`models/{name}.py`](../../models/{name}.py).")
    return parts


def _table(cls: type, source: Source, prefix: str) -> list[str]:
    rules = schema.rules_of(cls)
    entries = [entry for entry in source.entries if entry.name in rules]
    if not entries:
        return ["It has no fields."]
    rows = [
        (f"`{prefix}.{entry.name}`" if prefix else f"`{entry.name}`", f"`{entry.default}`", entry.comment, words)
        for entry in entries
        for words in [schema.words(rules[entry.name][1])]
    ]
    return [_grid(("field", "default", "meaning", "allowed"), rows)]


def _given(op: str) -> list[str]:
    """What a user's function is called with."""
    given = arguments(op)
    if given is None:
        return []
    options = " and ".join(f"`{name}`" for name in given.options)
    also = f"It also gets {options}, if its signature names it. " if options else ""
    return [
        f"A function of yours (`impl=file`) is called as `{op}({given.tensors})`, with {given.shapes}. "
        f"{also}More: [`kernels/{op}`](../../kernels/{op}/__init__.py)."
    ]


def _counted(cls: type, method: str, title: str) -> str:
    return f"{title}: {' '.join(inspect.getdoc(getattr(cls, method)).split())}"


def _kernels() -> list[str]:
    """Which file exists for which operation."""
    files = sorted((ROOT / "kernels").glob("*/[!_]*.py"))
    operations = sorted({path.parent.name for path in files})
    names = sorted({path.stem for path in files})
    rows = [
        (f"`{name}`", *("yes" if ROOT / "kernels" / op / f"{name}.py" in files else "" for op in operations))
        for name in names
    ]
    text = (
        "Files there are. A combination without one is a row `unsupported`, for which nothing is started. "
        "`compiled` and `file` work for every workload."
    )
    return [text, _grid(("implementation", *operations), rows)]


def config_page() -> str:
    """The fields of config.yaml itself."""
    source = Source.read(CONF / "config.yaml")
    rows = [f"`{group}`" for group in GROUPS if group != "experiment"]
    axes, resume = (next(entry for entry in source.entries if entry.name == name) for name in ("axes", "resume"))
    return _page(
        [
            "# config",
            f"The fields beside the groups {', '.join(rows)}, and every default of them.",
            *_table(grid.Globals, source, ""),
            f"`axes` (default `{axes.default}`): {axes.comment}",
            "## resume",
            resume.comment,
            *_table(grid.ResumeFields, Source.nested(CONF / "config.yaml", "resume"), "resume"),
            "Statuses: "
            + ", ".join(f"`{status}`" for status in results.STATUSES)
            + " ([what they mean](../columns.md)).",
        ]
    )


def columns_page() -> str:
    """What a row may say: columns, statuses, verdicts, and what follows from rows."""
    measured = []
    for title, group in columns.GROUPS.items():
        measured += [f"### {title}", _columns(group)]
    statuses = [
        (f"`{status}`", meaning, "no" if status in results.HARMLESS else "yes")
        for status, meaning in _commented(results, "Status = Literal[", "]", r'"(\w+)",')
    ]
    return _page(
        [
            "# Rows and their columns",
            "A case becomes one row, whatever happens to it. Its record in `rows.jsonl` has the case, a `status`, "
            "a `reason` (empty exactly when the status is `ok`), the `device`, the `phase` it came to, its `metrics` "
            "by the columns below, a `detail`: the traceback, or the end of what the case printed; and a "
            "`fingerprint`: the sources and versions that it holds for. Of several rows of a case the last counts.",
            "Declared in [`runner/experiment/columns.py`](../runner/experiment/columns.py); a column that is not declared there is refused.",
            "## Statuses",
            _grid(("status", "meaning", "makes the exit code 1"), statuses),
            "A run also exits 1 if not one of its cases could be run and checked.",
            "## Columns",
            "A row has those that apply to it. Only rows `ok`, and `wrong` with `time_wrong=true`, have times.",
            *measured,
            "## Worked out from rows",
            "`rows.csv` and `runner.report.frame.load(folder)` have a line per case, with its fields of workload and "
            "implementation, whatever else varies over the grid (`debug`, `measure.benchmark.cold_l2`), and these. "
            "`load` takes several folders, and has `run` and `commit` as well: which of them, made by which sources.",
            _columns(columns.DERIVED),
            "## Series",
            "Numbers by the dozen, which a row of `rows.jsonl` has under `series`:",
            _columns(columns.SERIES),
            "Beside the rows, `rows.jsonl` has a record `rounds` for each size at which several implementations were "
            "timed: ten batch means of each, by the keys of the cases, the n-th of all taken at one time. Records "
            "`session`, `start` and `stopped` tell what was in flight when a session ended "
            "([runner/store/journal.py](../runner/store/journal.py)).",
        ]
    )


def _columns(group: Mapping[str, columns.Column]) -> str:
    """A table of them."""
    lines = [
        (f"`{name}`", column.unit, column.meaning, column.better and f"{column.better} is better")
        for name, column in group.items()
    ]
    return _grid(("column", "unit", "meaning", "sense"), lines)


def _commented(module: Any, start: str, end: str, pattern: str) -> list[tuple[str, str]]:
    """Names and the comments beside them, between two marks of a module's source."""
    text = inspect.getsource(module).partition(start)[2].partition(f"\n{end}")[0]
    found = re.findall(rf"^ +{pattern}(?:  # (.*))?$", text, re.MULTILINE)
    assert found, f"{module.__name__}: nothing between {start} and {end}"
    return found


def _grid(titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [titles, tuple("---" for _ in titles), *(tuple(map(_cell, row)) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(text: str) -> str:
    """Text as it reads in a table: Markdown would take bars for columns, and angle brackets for HTML."""
    text = text.replace("|", r"\|")
    return text if text.startswith("`") else text.replace("<", "&lt;")


def _page(parts: list[str]) -> str:
    return "\n\n".join([NOTE, *parts]) + "\n"


def pages() -> dict[Path, str]:
    """Every generated page by its place."""
    return {
        PAGES / "columns.md": columns_page(),
        PAGES / "groups" / "config.md": config_page(),
        **{PAGES / "groups" / f"{group}.md": group_page(group) for group in GROUPS},
    }


def main(check: bool) -> int:
    """Writes the pages, or with ``check`` says which are stale."""
    wanted = pages()
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    stray = sorted(set((PAGES / "groups").glob("*.md")) - set(wanted))
    if unknown := sorted({path.parent.name for path in CONF.glob("*/*.yaml")} - set(GROUPS)):
        print(f"docs/generate.py: say what these groups are for: {', '.join(unknown)}", file=sys.stderr)
        return 1
    if check:
        for path in [*stale, *stray]:
            print(f"{path.relative_to(ROOT)} is stale; run: python docs/generate.py", file=sys.stderr)
        return 1 if stale or stray else 0
    for path in stray:
        path.unlink()
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
