"""``python -m runner --help`` and shell completion.

Both read the YAML files of ``conf/`` and the classes behind their options.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import yaml

import runner.config as config
from runner.config import CONF, grid
from runner.experiment import schema
from runner.experiment.results import printable

if TYPE_CHECKING:
    from runner.config.compose import Composer

GROUPS = ("workload", "impl", "measure", "launcher", "log")
ADDED = ("experiment", "shapes")  # groups of which no option is chosen unless it is added: +experiment=demo
ROOMS = {**grid.ROOMS, "impl": "runner.implementations", "launcher": "runner.execute", "log": "runner.report"}
ENTRY = re.compile(r"( *)([A-Za-z_]\w*):\s*(.*?)\s*(?:#\s*(.*))?$")  # of a YAML: ``field: value  # meaning``
WIDEST = 44  # characters of ``field=value`` beside which meanings are aligned
LONGEST = 140  # characters of a meaning; of a longer one the first sentence is shown
QUERY = "query="  # Hydra's word for a question of the shell, as in ``-sc query=bash``


def main(argv: Sequence[str]) -> int:
    """Print the help, or answer a shell. Raises BadInput."""
    words = [word for word in argv if not word.startswith((QUERY, "-sc", "--shell-completion"))]
    with config.composer(words) as (compose, asked):
        if queries := [word for word in argv if word.startswith(QUERY)]:
            found = complete(compose, os.environ.get("COMP_LINE", ""))
            print(("\n" if queries[0].endswith("fish") else " ").join(found))
        else:
            print(text(compose, asked.overrides), end="")
    return 0


@dataclass(frozen=True)
class Entry:
    """A field of a YAML file, its default as written there, and the comment beside it or above it."""

    name: str
    default: str
    comment: str


def entries(text: str, below: str = "") -> list[Entry]:
    """Return the fields at the top level of the YAML ``text``, or those of its field ``below``."""
    found, above, parent = [], "", ""
    for line in text.splitlines():
        match = ENTRY.match(line)
        if line.lstrip().startswith("#"):
            above = f"{above} {line.lstrip()[1:].strip()}".strip()
            continue
        if match:
            parent = parent if match[1] else match[2]
            if match[1] == ("  " if below else "") and (not below or parent == below):
                found.append(Entry(match[2], match[3], match[4] or above))
        if match or not line.strip():
            above = ""
    return found


def text(compose: Composer, overrides: Sequence[str]) -> str:
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
    template: str = yaml.safe_load(source)["hydra"]["help"]["template"]
    return template.replace("$APP_CONFIG_GROUPS", "\n".join(groups) + "\n").replace("$CONFIG", "\n".join(lines))


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
    texts = {path: printable(f"{path}={_yaml(value)}") for path, value in values.items()}
    width = max([len(one) for one in texts.values() if len(one) <= WIDEST], default=0)
    for path, one in texts.items():
        meaning = meanings.get(path.rpartition(".")[2], "")
        meaning = meaning if len(meaning) <= LONGEST else meaning.partition(". ")[0]
        yield f"  {one:{width}}  {meaning}".rstrip()


def _yaml(value: object) -> str:
    return " ".join(yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("...\n").split())


def complete(compose: Composer, line: str) -> list[str]:
    """Return what the last word of a shell's ``line`` may become.

    That is options and fields, allowed values of a field, one more value after a comma, and, as the first word,
    sub-commands.
    """
    commands = [name for name in schema.names("runner.cli") if name not in ("run", "help")]
    _, *done = line.split()  # without the program
    word = done.pop() if done and not line[-1:].isspace() else ""
    done = done[2:] if done[:2] == ["-m", "runner"] else done
    if done and done[0] in commands:  # its overrides are those of a run
        done, commands = done[1:], []
    try:
        chosen = _compose(compose, [one for one in done if "=" in one and not one.startswith("-")])
    except Exception:  # the words before cannot be composed: complete without them
        chosen = _compose(compose, [])
    key, equals, value = word.partition("=")
    if equals:
        head, comma, last = value.rpartition(",")
        names = [name for name in _allowed(compose, chosen, key) if name not in head.split(",")]
        return [f"{key}={head}{comma}{name}" for name in names if name.startswith(last)]
    names = [*GROUPS, *(f"+{group}" for group in ADDED), *_paths(chosen, "")]
    found = [*(f"{name}=" for name in names), *([] if done else commands)]
    return [one for one in dict.fromkeys(found) if one.startswith(word)]


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
                classes.append(schema.find(ROOMS[group], values["name"]))
            except LookupError:  # a kernel file, which has no fields
                return []
    return [word for cls in classes for word in _words(schema.rules_of(cls).get(field, ("", None))[1])]


def _words(rule: Any) -> list[str]:
    """Return the words that the type ``rule`` allows."""
    origin, args = get_origin(rule), get_args(rule)
    if origin is Literal:
        return [str(word) for word in args]
    if origin is Annotated:
        return _words(args[0])
    if origin in (Union, UnionType):
        return [word for arm in args for word in _words(arm)]
    return {bool: ["true", "false"], NoneType: ["null"]}.get(rule, [])
