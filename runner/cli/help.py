"""Print the help of a run: commands, groups, options and fields. It also completes words for a shell.

It reads the YAML files of ``conf/`` and the classes behind their options.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml

from .. import config
from ..config import grid
from ..config.compose import Composer
from ..config.messages import ADDED
from ..records.options import CONF, option_class, option_names, option_summaries
from ..records.plain_text import printable
from ..records.schema import rules_of
from . import FIRST_WORDS

GROUPS = ("workload", "impl", "measure", "launcher", "log")
PACKAGES = {**grid.PACKAGES, "impl": "implementations", "launcher": "execute", "log": "report"}
ENTRY = re.compile(r"( *)([A-Za-z_]\w*):\s*(.*?)\s*(?:#\s*(.*))?$")  # a line of YAML: ``field: value  # meaning``
WIDEST = 44  # characters of ``field=value`` beside which meanings are aligned
LONGEST = 140  # characters of a meaning; of a longer one the first sentence is shown
TEMPLATE = """\
{first}
== Commands: python -m runner COMMAND --help has more ==
{commands}

== Groups: choose with group=option, sweep with group=a,b -m ==
{groups}

== Fields of the options chosen: override with field=value ==
{fields}
Hydra's own flags: --hydra-help. Exit codes: 0 all well, 1 a case failed, 2 bad input, 130 interrupted.
"""
QUERY = "query="  # Hydra's word for a question of the shell, as in ``-sc query=bash``


def main(argv: Sequence[str]) -> int:
    """Print the help, or answer a shell. Raises BadInput."""
    words = [word for word in argv if not word.startswith((QUERY, "-sc", "--shell-completion"))]
    with config.composer(words) as (compose, flags):
        if queries := [word for word in argv if word.startswith(QUERY)]:
            completions = complete(compose, os.environ.get("COMP_LINE", ""))
            print(("\n" if queries[0].endswith("fish") else " ").join(completions))
        else:
            print(help_text(compose, flags.overrides), end="")
    return 0


@dataclass(frozen=True)
class Entry:
    """A field of a YAML file, its default as written there, and the comment beside it or above it."""

    name: str
    default: str
    comment: str


def entries(text: str, below: str = "") -> list[Entry]:
    """Return the fields at the top level of the YAML ``text``, or within its field ``below``."""
    fields, above, parent = [], "", ""
    for line in text.splitlines():
        match = ENTRY.match(line)
        if line.lstrip().startswith("#"):
            above = f"{above} {line.lstrip()[1:].strip()}".strip()
            continue
        if match:
            parent = parent if match[1] else match[2]
            if match[1] == ("  " if below else "") and (not below or parent == below):
                fields.append(Entry(match[2], match[3], match[4] or above))
        if match or not line.strip():
            above = ""
    return fields


def help_text(compose: Composer, overrides: Sequence[str]) -> str:
    """Return the help: the options of each group, and the fields of those that ``overrides`` choose.

    Raises Hydra's exceptions.
    """
    chosen = _compose(compose, overrides)
    groups = [f"{group}: {', '.join(sorted(compose.options(group)))}" for group in sorted((*GROUPS, *ADDED))]
    source = (CONF / "config.yaml").read_text(encoding="utf-8")
    lines: list[str] = []
    for where, group, values in _options(chosen):
        path = compose.file(group, values["name"])
        meanings = _meanings(path.read_text(encoding="utf-8") if path else "")
        fields = {f"{where}.{name}": value for name, value in values.items() if name != "name"}
        lines += [f"{group}={values['name']}", *_fields(fields, {"axes": "default sweep under -m", **meanings}), ""]
    top = {name: value for name, value in chosen.items() if name not in (*GROUPS, *ADDED, "resume")}
    resume = {f"resume.{name}": value for name, value in (chosen.get("resume") or {}).items()}
    lines += ["of the run", *_fields(top, _meanings(source)), *_fields(resume, _meanings(source, "resume")), ""]
    commands = [f"  {name:<8}  {summary}" for name, summary in option_summaries("cli").items()]
    parts = {"commands": commands, "groups": groups, "fields": lines}
    return TEMPLATE.format(first=FIRST_WORDS, **{name: "\n".join(texts) for name, texts in parts.items()})


def _compose(compose: Composer, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the config of ``overrides``, with the first value of each sweep."""
    expanded = [compose.expand(compose.parse(line)) for line in overrides]
    return compose.resolved([values[0] for values in expanded if values])


def _options(config: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield each chosen option: the path of its fields, its group, and the fields."""
    for group in GROUPS:
        node = config.get(group) or {}
        if "name" in node:
            yield group, group, node
        else:
            yield from ((f"{group}.{name}", group, values) for name, values in node.items())


def _meanings(text: str, below: str = "") -> dict[str, str]:
    return {entry.name: entry.comment for entry in entries(text, below) if entry.comment}


def _fields(values: Mapping[str, Any], meanings: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each field in ``values``, which has them by their paths."""
    dumped = {path: yaml.safe_dump(value, default_flow_style=True, width=10**6) for path, value in values.items()}
    lines = {path: " ".join(text.removesuffix("...\n").split()) for path, text in dumped.items()}
    texts = {path: printable(f"{path}={line}") for path, line in lines.items()}
    width = max([len(text) for text in texts.values() if len(text) <= WIDEST], default=0)
    for path, text in texts.items():
        meaning = meanings.get(path.rpartition(".")[2], "")
        meaning = meaning if len(meaning) <= LONGEST else meaning.partition(". ")[0]
        yield f"  {text:{width}}  {meaning}".rstrip()


def complete(compose: Composer, line: str) -> list[str]:
    """Return the completions of the last word of a shell's ``line``.

    These are options and fields, allowed values of a field, one more value after a comma, and, for the first word,
    sub-commands.
    """
    commands = option_names("cli")
    _, *done = line.split()  # without the program
    word = done.pop() if done and not line[-1:].isspace() else ""
    done = done[2:] if done[:2] == ["-m", "runner"] else done
    if done and done[0] in commands:  # it takes the overrides of a run
        done, commands = done[1:], []
    try:
        chosen = _compose(compose, [before for before in done if "=" in before and not before.startswith("-")])
    except Exception:  # the words before cannot be composed: complete without them
        chosen = _compose(compose, [])
    key, equals, value = word.partition("=")
    if equals:
        head, comma, last = value.rpartition(",")
        names = [name for name in _allowed(compose, chosen, key) if name not in head.split(",")]
        return [f"{key}={head}{comma}{name}" for name in names if name.startswith(last)]
    names = [*GROUPS, *(f"+{group}" for group in ADDED), *_paths(chosen, "")]
    completions = dict.fromkeys([*(f"{name}=" for name in names), *([] if done else commands)])
    return [completion for completion in completions if completion.startswith(word)]


def _paths(values: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict) and name not in grid.BESIDE:
            yield from _paths(value, f"{prefix}{name}.")
        elif name != "name" or not prefix:
            yield f"{prefix}{name}"


def _allowed(compose: Composer, chosen: Mapping[str, Any], key: str) -> list[str]:
    """Return the values that a group or a field may have; none if they cannot be listed."""
    if key.lstrip("+") in (*GROUPS, *ADDED):
        return sorted(compose.options(key.lstrip("+")))
    if key == "resume":
        return ["last"]
    where, _, field = key.rpartition(".")
    classes: list[Any] = [] if where else [grid.Globals]
    for path, group, values in _options(chosen):
        if path == where:
            try:
                classes.append(option_class(PACKAGES[group], values["name"]))
            except LookupError:  # a kernel file, which has no fields
                return []
    return [word for cls in classes for word in _words(rules_of(cls).get(field, ("", None))[1])]


def _words(rule: Any) -> list[str]:
    """Return the words that a field of the type ``rule`` allows; none of those that cannot be listed."""
    origin, args = get_origin(rule), get_args(rule)
    if origin is Literal:
        return [str(word) for word in args]
    if origin is Annotated:
        return _words(args[0])
    if origin in (Union, UnionType):
        return [word for arm in args for word in _words(arm)]
    return {bool: ["true", "false"], NoneType: ["null"]}.get(rule, [])
