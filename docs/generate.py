"""Write the pages that repeat what the code says: ``docs/groups/*.md`` and ``docs/columns.md``.

    python docs/generate.py           write them
    python docs/generate.py --check   exit with 1 if one of them is stale, and name it

Defaults, comments and sweeps come from ``conf/``; allowed values from the types of the dataclass behind each option;
formulas, counts and calls from the docstrings. Nothing is written here twice.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import yaml  # noqa: E402

from runner import implementations  # noqa: E402
from runner.cli.help import ADDED, Entry, entries  # noqa: E402
from runner.config import grid  # noqa: E402
from runner.config.messages import SEVERAL  # noqa: E402
from runner.findings.conclusion import analyses  # noqa: E402
from runner.implementations import call_line  # noqa: E402
from runner.measure import columns as measure_columns  # noqa: E402
from runner.records import columns, schema  # noqa: E402
from runner.records.options import option_class  # noqa: E402
from runner.records.plan import Resume  # noqa: E402
from runner.records.row import HARMLESS  # noqa: E402
from runner.records.schema import rules_of  # noqa: E402

CONF = ROOT / "conf"
PAGES = ROOT / "docs"
NOTE = "<!-- Written by docs/generate.py from the code. Edit the code, then run it again. -->"
ROOMS = {
    "workload": "models",
    "measure": "measure",
    "launcher": "execute",
    "log": "report",
}

GROUPS = {  # group → what it chooses, and where its options live
    "workload": "What to compute. Each option is a YAML file here and a class in [`models/`](../../models).",
    "impl": "How to compute it. Each option is a file in [`kernels/<op>/`](../../kernels), or one of the wrappers "
    "below, whose classes are in [`runner/implementations/`](../../runner/implementations).",
    "measure": "What to measure; a list. Each option is a YAML file here and a class in "
    "[`runner/measure/`](../../runner/measure). Override its fields as `measure.<option>.<field>`.",
    "launcher": "Where the cases run. Each option is a YAML file here and a class in "
    "[`runner/execute/`](../../runner/execute).",
    "log": "Where to report a run beside its folder; a list, `none` for nowhere. Each option is a YAML file here and a "
    "class in [`runner/report/`](../../runner/report). Override its fields as `log.<option>.<field>`.",
    "experiment": "Whole studies by one name. Choose one with `+experiment=<option>`, and override it like anything "
    "else.",
    "shapes": "Sizes of workloads by one name, in the order that the [YAML of the workload](workload.md) names. Choose "
    "a set with `+shapes=<option> -m`, and several with `'+shapes=[<option>,<option>]' -m`. A shape that two of them "
    "have runs once.",
}


@dataclass(frozen=True)
class Source:
    """A YAML file of ``conf/`` as its author wrote it."""

    head: str  # the comment at the top, as Markdown
    entries: tuple[Entry, ...]
    values: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> Source:
        """Read the file at ``path``; its entries are the fields at the top level."""
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        count = next(i for i, line in enumerate([*lines, ""]) if not line.startswith("#"))
        head = [line[1:] for line in lines[:count] if not line.startswith("# @package")]
        return cls(_markdown(head), tuple(entries("\n".join(lines[count:]))), yaml.safe_load(text))

    @classmethod
    def nested(cls, path: Path, name: str) -> Source:
        """Read the fields below the field ``name`` of the file at ``path``."""
        return cls("", tuple(entries(path.read_text(encoding="utf-8"), name)), {})


def _markdown(comment: list[str]) -> str:
    """Return a comment as Markdown; its indented lines are commands."""
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
    """Return the page of one config group: every option, in alphabetical order."""
    sources = {path.stem: Source.read(path) for path in sorted((CONF / group).glob("*.yaml"))}
    parts = [f"# {group}", GROUPS[group], "Options: " + ", ".join(f"[{name}](#{name})" for name in sources)]
    if group == "impl":
        parts += _kernels()
    if group == "experiment":
        parts += _analyses()
    for name, source in sources.items():
        parts += [f"## {name}", source.head, *_option(group, name, source)]
    return _page(parts)


def _option(group: str, name: str, source: Source) -> list[str]:
    if group in ADDED:
        text = (CONF / group / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
        body = "\n".join(line for line in text if line.startswith("# @package") or not line.startswith("#"))
        return [f"```yaml\n{body}\n```"]
    cls = implementations.implementation_class(name) if group == "impl" else option_class(ROOMS[group], name)
    where = f"{group}.{name}" if group in SEVERAL else group
    parts = _table(cls, source, where)
    if shape := source.values.get("shape"):
        parts.append(f"A shape gives its sizes in the order `{where}.shape=[{','.join(shape)}]`.")
    if axes := source.values.get("axes"):
        swept = "; ".join(f"`{where}.{field}` over {', '.join(map(str, values))}" for field, values in axes.items())
        parts.append(f"Default sweep under `-m`: {swept}.")
    if quick := source.values.get("quick"):
        values = ", ".join(f"`{where}.{field}={value}`" for field, value in quick.items())
        parts.append(f"Under `quick=true`: {values}.")
    if group == "workload":
        parts += _given(name)
        parts += [_counted(cls, "flops", "Operations counted"), _counted(cls, "bytes_min", "Bytes counted")]
        parts.append(f"Formula, reference and tolerance: [`models/{name}.py`](../../models/{name}.py).")
    return parts


def _table(cls: type, source: Source, prefix: str) -> list[str]:
    rules = rules_of(cls)
    entries = [entry for entry in source.entries if entry.name in rules]
    if not entries:
        return ["No fields."]
    rows = [
        (f"`{prefix}.{entry.name}`" if prefix else f"`{entry.name}`", f"`{entry.default}`", entry.comment, words)
        for entry in entries
        for words in [schema.words(rules[entry.name][1])]
    ]
    return [_grid(("field", "default", "meaning", "allowed"), rows)]


def _given(op: str) -> list[str]:
    """Return how a user's function is called, and with what: the docstring of ``kernels/<op>``."""
    if not (line := call_line(op)):
        return []
    after = re.split(r" -> \w+\n\n", import_module(f"runner.kernels.{op}").__doc__ or "", maxsplit=1)[-1]
    described = textwrap.dedent(after.partition("\n\n")[0]).rstrip()
    named = "; it gets the options after `*` that its signature names" if "*" in line else ""
    return [
        f"Your own function (`impl=file`) is called as `{line}`{named}. More: "
        f"[`kernels/{op}`](../../kernels/{op}/__init__.py).",
        f"```text\n{described}\n```",
    ]


def _counted(cls: type, method: str, title: str) -> str:
    return f"{title}: {' '.join(inspect.getdoc(getattr(cls, method)).split())}"


def _kernels() -> list[str]:
    """Return the table of implementations by workload."""
    files = sorted((ROOT / "kernels").glob("*/[!_]*.py"))
    operations = sorted({path.parent.name for path in files})
    names = sorted({path.stem for path in files})
    rows = [
        (f"`{name}`", *("yes" if ROOT / "kernels" / op / f"{name}.py" in files else "" for op in operations))
        for name in names
    ]
    text = (
        "A combination without a file gives a row `unsupported`, and no worker is started for it; with `impl.args` it "
        "is refused. `compiled`, `file` and `copy` work for every workload, `cudagraph` for every workload on a GPU."
    )
    return [
        "## Implementations by workload",
        _grid(("implementation", *operations), rows),
        text,
        *_arguments(names, operations),
    ]


def _arguments(names: Sequence[str], operations: Sequence[str]) -> list[str]:
    """Return the table of the arguments that the functions of the kernels take beside tensors and options."""
    known = implementations.defaults()
    rows = [
        (f"`{name}`", op, ", ".join(f"`{one}`" for one in own))
        for name in names
        for op in operations
        if (own := implementations.build(known[name]).arguments(op))
    ]
    text = (
        "`impl.args.<name>=...` gives one; what is not given is the kernel's own choice. The docstring of each "
        "function says what its arguments mean ([adding your own](../adding.md#arguments-of-a-kernel))."
    )
    return ["## Arguments of kernels", text, _grid(("implementation", "workload", "arguments"), rows)]


def _analyses() -> list[str]:
    """Return the table of the analyses that an experiment's ``conclusion`` may name."""
    rows = []
    for name, function in analyses().items():
        given = [one for one in inspect.signature(function).parameters.values() if one.kind is one.KEYWORD_ONLY]
        fields = [one.name if one.default is one.empty else f"{one.name}={one.default}" for one in given]
        rows.append((f"`{name}`", ", ".join(f"`{field}`" for field in fields), inspect.getdoc(function) or ""))
    rows = [(name, fields, " ".join(text.split()).replace("``", "`")) for name, fields, text in rows]
    text = (
        "An experiment with a `question` ends with a conclusion: what the analyses of its `conclusion` say of its "
        "rows. The run's folder keeps both. The [studies](../studies/README.md) are such experiments. An analysis is a "
        "function in [`runner/findings/analyses.py`](../../runner/findings/analyses.py):"
    )
    return ["## Analyses", text, _grid(("analysis", "fields", "meaning"), rows)]


def config_page() -> str:
    """Return the page of the fields of config.yaml itself."""
    source = Source.read(CONF / "config.yaml")
    rows = [f"`{group}`" for group in GROUPS if group not in ADDED]
    described = {entry.name: entry for entry in source.entries}
    study = [described[name] for name in (*grid.AXES, "conclusion")]
    return _page(
        [
            "# config",
            f"Fields without a group. The groups are {', '.join(rows)}.",
            *_table(grid.Globals, source, ""),
            *(f"`{entry.name}` (default `{entry.default}`): {entry.comment}" for entry in study),
            "## resume",
            described["resume"].comment,
            *_table(Resume, Source.nested(CONF / "config.yaml", "resume"), "resume"),
            "Statuses: "
            + ", ".join(f"`{status}`" for status in columns.STATUSES)
            + " ([what they mean](../columns.md)).",
        ]
    )


OF_ANY_ROW = {
    "Times": columns.TIMES,
    "How it was timed": columns.TIMING,
    "The case": columns.CASE,
    "The check": columns.CHECKED,
}


def columns_page() -> str:
    """Return the page of columns, statuses, and figures derived from rows."""
    measured = []
    declared = {f"measure={name}": group for name, group in measure_columns.columns().items() if group}
    for title, group in {**OF_ANY_ROW, **declared}.items():
        measured += [f"### {title}", _columns(group)]
    statuses = [
        (f"`{status}`", meaning, "no" if status in HARMLESS else "yes") for status, meaning in columns.STATUSES.items()
    ]
    return _page(
        [
            "# Rows and their columns",
            "Every case gets exactly one row. Its record in `rows.jsonl` has the case, a `status`, a `reason` (empty "
            "exactly when the status is `ok`), the `device`, the `phase` it reached, its `metrics` by the columns "
            "below, a `detail` (the traceback, or the end of what the case printed), and a `fingerprint` (the sources "
            "and versions that the row is valid for). If a case has several rows, the last one counts.",
            "The columns of a measurement are declared beside it, in [`runner/measure/`](../runner/measure); all "
            "others in [`runner/records/columns.py`](../runner/records/columns.py). A column of "
            "another version, which is not declared here, is shown as it is.",
            "## Statuses",
            _grid(("status", "meaning", "makes the exit code 1"), statuses),
            "A run also exits with 1 if none of its cases could be run and checked.",
            "## Verdicts",
            "The verdict names the gravest doubt about the time of a case, and `verdict_reason` explains it in a "
            "sentence. `python -m runner show --explain` says what the words of a table mean, as the page of "
            "`report html` does.",
            _grid(("verdict", "meaning"), [(f"`{word}`", text) for word, text in columns.VERDICTS.items()]),
            "## Other words",
            _grid(("word", "meaning"), list(columns.TERMS.items())),
            "## Columns",
            "A row has the columns that apply to it. Only rows `ok`, and `wrong` with `time_wrong=true`, have times.",
            *measured,
            "## Derived from rows",
            "`rows.csv` and `runner.api.frame.load(folder)` have one line per case, with its fields of workload and "
            "implementation, everything else that varies over the grid (`debug`, `measure.benchmark.cold_l2`), and "
            "the figures below. `load` takes several folders, and adds `run`: the run that a line is from.",
            _columns(columns.DERIVED),
            "## Of the device",
            "Properties of the GPU or CPU that a row is from, by the environment that its run keeps. They are shown, "
            "and are in `rows.csv`, where `columns=` names them: `python -m runner show columns=time_us,sms,l2_bytes`.",
            _columns(columns.DEVICE),
            "## Series",
            "Lists of numbers, which a row of `rows.jsonl` has under `series`:",
            _columns(columns.SERIES),
            "`rows.jsonl` also has a record `rounds` for each problem of which several implementations were timed: ten "
            "batch means of each, by the keys of the cases; the n-th of all were taken at the same time. Records "
            "`session`, `start` and `stopped` tell what was in flight when a session ended "
            "([runner/store/journal.py](../runner/store/journal.py)).",
        ]
    )


def _columns(group: Mapping[str, columns.Column]) -> str:
    """Return the table of ``group``."""
    lines = [(f"`{name}`", column.unit, column.meaning, column.better) for name, column in group.items()]
    return _grid(("column", "unit", "meaning", "better"), lines)


def _grid(titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [titles, tuple("---" for _ in titles), *(tuple(map(_cell, row)) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(text: str) -> str:
    """Escape ``text`` for a table: Markdown reads bars as columns and angle brackets as HTML."""
    text = text.replace("|", r"\|")
    return text if text.startswith("`") else text.replace("<", "&lt;")


def _page(parts: list[str]) -> str:
    return "\n\n".join([NOTE, *parts]) + "\n"


def pages() -> dict[Path, str]:
    """Return every generated page by its path."""
    return {
        PAGES / "columns.md": columns_page(),
        PAGES / "groups" / "config.md": config_page(),
        **{PAGES / "groups" / f"{group}.md": group_page(group) for group in GROUPS},
    }


def main(check: bool) -> int:
    """Write the pages, or with ``check`` say which are stale."""
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
