"""What others may have written, YAML and run folders: it says what to compute, and not what code to run here."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import yaml

from runner.experiment import schema
from runner.experiment.case import Case, Choice, Plan
from runner.experiment.schema import BadInput

ALLOW = "allow_code"
PLAIN = re.compile(r"[\w./:@-]+", re.ASCII)  # what neither a shell nor Hydra wants quoted
MOST_BYTES, MOST_NODES, DEEPEST = 2**20, 10_000, 50  # of one YAML, its aliases written out


def check_code(plan: Plan, words: Sequence[str], config_dir: Path | None, folder: Path | None) -> None:
    """Raise BadInput if ``plan`` would run a file, or tell a program something, that the user has not named.

    Others may have written in ``config_dir``, and in ``folder``, of the run that is gone on with, unless it is the
    user's alone. All the rest is the project's own, or stands on the command line, ``words``. Named is what stands
    there under the same field, and a file under a path of ``allow_code``; and whatever they say if they are under one.
    """
    theirs = [place for place in (config_dir, folder) if place and not (place == folder and _is_own(place))]
    if not theirs:
        return
    typed = _typed(words)
    opened = [Path(name).resolve() for name in typed.get(ALLOW, ())]
    theirs = [place for place in theirs if not _within(place, opened)]
    if not theirs:
        return
    cases = plan.cases if (folder or config_dir) in theirs else ()
    for field, path in _files(cases):
        file = Path(path.rpartition(":")[0])
        if path not in typed.get(field, ()) and not _within(file, opened):
            raise BadInput(
                f"{field}={path}: this code is not named on the command line; to run it add {_allowing(file)}"
            )
    for field, word in (*_of_measures(cases), *_of_launcher(plan.launcher)):
        if word not in typed.get(field, ()):
            raise BadInput(
                f"{field}: {word!r} is for a program, and not on the command line; give {field}=... there, or trust "
                f"all that stands in {theirs[-1]}: {_allowing(theirs[-1])}"
            )


def _allowing(path: Path) -> str:
    """As a shell and Hydra take it."""
    text = str(path.resolve())
    return f"{ALLOW}={text}" if PLAIN.fullmatch(text) else f"'{ALLOW}=\"{text}\"'"


def _within(path: Path, folders: Sequence[Path]) -> bool:
    file = path.resolve()
    return any(file == one or one in file.parents for one in folders)


def _typed(words: Sequence[str]) -> dict[str, list[str]]:
    """What the command line gives each field, every value of a list or of a sweep."""
    from hydra.core.override_parser.overrides_parser import OverridesParser  # 0.2 s, which an own run goes on without
    from hydra.errors import OverrideParseException

    from runner.config.messages import one_line

    try:
        overrides = OverridesParser.create().parse_overrides(list(words))
    except OverrideParseException as error:
        raise BadInput(one_line(error)) from error
    found: dict[str, list[str]] = {}
    for override in overrides:
        for field, value in _leaves(override.key_or_group, override.value()):
            found.setdefault(field, []).append(value)
    return found


def _leaves(field: str, value: object) -> Iterator[tuple[str, str]]:
    inner = getattr(value, "list", getattr(value, "text", value))  # of Hydra's ChoiceSweep, and QuotedString
    if isinstance(inner, Mapping):
        for name, one in inner.items():
            yield from _leaves(f"{field}.{name}", one)
    elif isinstance(inner, list | tuple):
        for one in inner:
            yield from _leaves(field, one)
    elif inner is not None:
        yield field, str(inner)


def _files(cases: Iterable[Case]) -> Iterator[tuple[str, str]]:
    """Fields of the implementations that name a file to run, with what they say."""
    for choice in {case.impl.text: case.impl for case in cases}.values():
        for field in ("path", "of"):
            if ":" in (path := str(choice.fields.get(field))):
                yield f"impl.{field}", path


def _of_measures(cases: Iterable[Case]) -> Iterator[tuple[str, str]]:
    for choice in {one.text: one for case in cases for one in case.measures}.values():
        yield from _programs("runner.measure", f"measure.{choice.name}", choice)


def _of_launcher(choice: Choice) -> Iterator[tuple[str, str]]:
    yield from _programs("runner.execute", "launcher", choice)


def _programs(room: str, where: str, choice: Choice) -> Iterator[tuple[str, str]]:
    """Each word of ``choice`` that is for a program, as its class says, with the field."""
    try:
        cls = schema.find(room, choice.name)
    except LookupError:  # which is refused when it is to start
        return
    rules = schema.rules_of(cls) if is_dataclass(cls) else {}
    for name, (_, rule) in rules.items():
        if schema.promises(rule, schema.PROGRAM):
            yield from _leaves(f"{where}.{name}", choice.fields.get(name))


def check_folder(folder: Path) -> None:
    """Raise BadInput if ``folder`` has options for Hydra itself, or a YAML that is too large, too deep, or grows so.

    What a YAML says of Hydra under another name is refused where it is read, in ``runner.config.compose``.
    """
    if (folder / "hydra").is_dir():
        raise BadInput(f"{folder / 'hydra'}: a folder of yours has no options for Hydra itself; take it out")
    for path in _yamls(folder):
        if why := _unbounded(path):
            raise BadInput(f"{path}: {why}")


def _yamls(folder: Path) -> Iterator[Path]:
    """What Hydra can read there, through links as well, and each folder once: a link may lead back."""
    seen: set[tuple[int, int]] = set()
    for place, inner, names in os.walk(folder, followlinks=True):
        facts = os.stat(place)
        if (facts.st_dev, facts.st_ino) in seen:
            inner.clear()
            continue
        seen.add((facts.st_dev, facts.st_ino))
        paths = [Path(place, name) for name in sorted(names) if name.endswith(".yaml")]
        yield from (path for path in paths if path.is_file())  # an editor's lock is a link to nothing


def _unbounded(path: Path) -> str:
    try:
        return _excess(path)
    except OSError as error:
        return f"it cannot be read ({error.strerror}); take it out, or make it readable"


def _excess(path: Path) -> str:
    """Raises OSError."""
    if path.stat().st_size > MOST_BYTES:
        return f"a config of more than {MOST_BYTES} bytes is not read"
    try:
        text = path.read_text(encoding="utf-8")
        if max(_depths(yaml.parse(text, Loader=yaml.SafeLoader)), default=0) > DEEPEST:
            return f"it is nested deeper than {DEEPEST}"
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError):
        return ""  # Hydra will say what is wrong with it
    return f"with its aliases written out it has more than {MOST_NODES} values" if _size(root, {}) > MOST_NODES else ""


def _depths(events: Iterable[Any]) -> Iterator[int]:
    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        yield depth


def _size(node: Any, known: dict[int, int]) -> int:
    """Nodes in ``node``, each as often as it would be there without aliases; one within itself counts as too many."""
    if id(node) in known:
        return known[id(node)]
    known[id(node)] = MOST_NODES + 1
    parts = node.value if isinstance(node, yaml.CollectionNode) else []
    inner = [one for part in parts for one in (part if isinstance(part, tuple) else (part,))]
    known[id(node)] = 1 + sum(_size(one, known) for one in inner)
    return known[id(node)]


def _is_own(folder: Path) -> bool:
    """Whether nobody but this user can have written in ``folder``."""
    facts = folder.stat()
    return hasattr(os, "getuid") and facts.st_uid == os.getuid() and not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
