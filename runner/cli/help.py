"""``python -m runner --help``: every field with its meaning. And completion, from the same sources.

Both read the YAMLs of ``conf/`` and the classes behind their options.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import yaml

from runner import config
from runner.config import CONF, grid, normalize
from runner.experiment import schema

if TYPE_CHECKING:
    from runner.config.compose import Composer

GROUPS = ("workload", "impl", "measure", "launcher", "log")
ROOMS = {**grid.ROOMS, "impl": "runner.implementations", "launcher": "runner.execute", "log": "runner.report"}
ENTRY = re.compile(r"( *)([A-Za-z_]\w*):\s*(.*?)\s*(?:#\s*(.*))?$")  # of a YAML: ``field: value  # meaning``
WIDEST = 44  # characters of ``field=value`` beside which meanings are lined up
LONGEST = 140  # characters of a meaning; of a longer one the first sentence is shown
OF_GROUP = "default sweep under -m"  # what ``axes`` of a workload means


QUERY = "query="  # Hydra's word for a shell's question, as in ``-sc query=bash``


def main(argv: Sequence[str]) -> int:
    """Print the page, or answer a shell. Raises BadInput."""
    words = [normalize(word) for word in argv if not word.startswith(QUERY)]
    with config.composer([word for word in words if word not in ("-sc", "--shell-completion")]) as (compose, asked):
        if queries := [word for word in argv if word.startswith(QUERY)]:
            found = complete(compose, os.environ.get("COMP_LINE", ""))
            print(("\n" if queries[0].endswith("fish") else " ").join(found))
        else:
            print(text(compose, asked.overrides), end="")
    return 0


@dataclass(frozen=True)
class Entry:
    """A field of a YAML file, its default as written there, and the comment beside it, or else above it."""

    name: str
    default: str
    comment: str


def entries(text: str, below: str = "") -> list[Entry]:
    """The fields at the top level of the YAML ``text``, or those of its field ``below``."""
    found, above, parent = [], "", ""
    for line in text.splitlines():
        match = ENTRY.match(line)
        if line.lstrip().startswith("#"):
            above = f"{above} {line.lstrip()[1:].strip()}".strip()
        elif match:
            parent = match[2] if not match[1] else parent
            if (not below and not match[1]) or (below and parent == below and match[1] == "  "):
                found.append(Entry(match[2], match[3], match[4] or above))
            above = ""
        elif not line.strip():
            above = ""
    return found


def text(compose: Composer, overrides: Sequence[str]) -> str:
    """What ``--help`` prints: the options of each group, and the fields of those that ``overrides`` choose.

    Raises Hydra's exceptions.
    """
    chosen = _first(compose, overrides)
    named = [f"{group}: {', '.join(sorted(compose.options(group)))}" for group in sorted((*GROUPS, "experiment"))]
    head: str = yaml.safe_load((CONF / "config.yaml").read_text(encoding="utf-8"))["hydra"]["help"]["template"]
    fields = "\n".join(_sections(compose, chosen))
    return head.replace("$APP_CONFIG_GROUPS", "\n".join(named) + "\n").replace("$CONFIG", fields)


def _first(compose: Composer, overrides: Sequence[str]) -> dict[str, Any]:
    """The config of ``overrides``, of which a sweep counts with its first value."""
    lines = [spelled[0] for line in overrides if (spelled := compose.expand(compose.parse(line)))]
    return compose.resolved(lines)


def _sections(compose: Composer, chosen: Mapping[str, Any]) -> Iterator[str]:
    for where, group, values in _chosen(chosen):
        yield f"{group}={values['name']}"
        meanings = _meanings(compose.file(group, values["name"]))
        yield from _lines(where, {name: value for name, value in values.items() if name != "name"}, meanings)
        yield ""
    of_run = (CONF / "config.yaml").read_text(encoding="utf-8")
    yield "of the run"
    top = {name: value for name, value in chosen.items() if name not in (*GROUPS, "resume")}
    yield from _lines("", top, {entry.name: entry.comment for entry in entries(of_run)})
    nested = {entry.name: entry.comment for entry in entries(of_run, "resume")}
    yield from _lines("resume", chosen.get("resume") or {}, nested)
    yield ""


def _chosen(values_of: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Each option chosen: where its fields are, its group, and they themselves."""
    for group in GROUPS:
        node = values_of.get(group) or {}
        if "name" in node:
            yield group, group, node
        else:
            yield from ((f"{group}.{name}", group, values) for name, values in node.items())


def _meanings(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    return {"axes": OF_GROUP} | {
        entry.name: entry.comment for entry in entries(path.read_text(encoding="utf-8")) if entry.comment
    }


def _lines(where: str, values: Mapping[str, Any], meanings: Mapping[str, str]) -> Iterator[str]:
    prefix = f"{where}." if where else ""
    texts = {name: f"{prefix}{name}={_spelled(value)}" for name, value in values.items()}
    width = max([len(one) for one in texts.values() if len(one) <= WIDEST], default=0)
    for name, one in texts.items():
        meaning = meanings.get(name, "")
        meaning = meaning if len(meaning) <= LONGEST else meaning.partition(". ")[0]
        yield f"  {one:{width}}  {meaning}".rstrip()


def _spelled(value: object) -> str:
    return " ".join(yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("...\n").split())


def complete(compose: Composer, line: str) -> list[str]:
    """What the last word of a shell's ``line`` may become.

    Options and fields, allowed values of a field, one more after a comma, and sub-commands as the first word.
    """
    commands = [name for name in schema.names("runner.cli") if name not in ("run", "help")]
    _, *done = line.split()  # without the program
    word = done.pop() if done and not line[-1:].isspace() else ""
    done = done[2:] if done[:2] == ["-m", "runner"] else done
    if done[:1] and done[0] in commands:  # its overrides are those of a run
        done, commands = done[1:], []
    given = [one for one in done if "=" in one and not one.startswith("-")]
    try:
        chosen = _first(compose, given)
    except Exception:  # what stands there cannot be composed: complete as if it did not
        chosen = _first(compose, [])
    key, equals, value = word.partition("=")
    if equals:
        head, comma, last = value.rpartition(",")
        names = [name for name in _allowed(compose, chosen, key) if name not in head.split(",")]
        return [f"{key}={head}{comma}{name}" for name in names if name.startswith(last)]
    found = [f"{group}=" for group in (*GROUPS, "+experiment")]
    found += [f"{path}=" for path in _paths(chosen, "")]
    found += [] if done else commands
    return [one for one in dict.fromkeys(found) if one.startswith(word)]


def _paths(values: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict) and name != "axes":
            yield from _paths(value, f"{prefix}{name}.")
        elif name != "name" or not prefix:
            yield f"{prefix}{name}"


def _allowed(compose: Composer, chosen: Mapping[str, Any], key: str) -> list[str]:
    """The values that ``key``, a group or a field, may have; none if they cannot be listed."""
    if key.lstrip("+") in (*GROUPS, "experiment"):
        return sorted(compose.options(key.lstrip("+")))
    if key == "resume":
        return ["last"]
    where, _, field = key.rpartition(".")
    if not where:
        return _words(schema.rules_of(grid.Globals).get(field, ("", None))[1])
    for place, group, values in _chosen(chosen):
        if place == where:
            try:
                rules = schema.rules_of(schema.find(ROOMS[group], values["name"]))
            except LookupError:  # a kernel file: it has no fields
                return []
            return _words(rules.get(field, ("", None))[1])
    return []


def _words(rule: Any) -> list[str]:
    origin, args = get_origin(rule), get_args(rule)
    if origin is Literal:
        return [str(word) for word in args]
    if origin is Annotated:
        return _words(args[0])
    if origin in (Union, UnionType):
        return [word for arm in args for word in _words(arm)]
    return {bool: ["true", "false"], NoneType: ["null"]}.get(rule, [])
