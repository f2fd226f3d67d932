"""What others may have written, YAML and run folders: it says what to compute, and not what code to run here."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from runner.case import Case
from runner.errors import BadInput

ALLOW = "allow_code"
PLAIN = re.compile(r"[\w./:@-]+", re.ASCII)  # what neither a shell nor Hydra wants quoted
TYPED = ("impl.path=", "impl.of=")  # a path on the command line is the user's own
MOST_BYTES, MOST_NODES, DEEPEST = 2**20, 10_000, 50  # of one YAML, its aliases written out


def check_code(cases: Iterable[Case], words: Sequence[str], folder: Path | None) -> None:
    """Raise BadInput if a case would run a file that the user has not named.

    Named is what stands on the command line, ``words``, as ``impl.path`` or ``impl.of`` or under a path of
    ``allow_code``; and what the run in ``folder`` has run before, if that folder is the user's alone.
    """
    if folder is not None and _is_own(folder):
        return
    typed = {name for word in words if word.lstrip("+").startswith(TYPED) for name in _values(word)}
    opened = [Path(name).resolve() for word in words if word.startswith(f"{ALLOW}=") for name in _values(word)]
    for field, path in {code for case in cases for code in _code(case) if code[1] not in typed}:
        file = Path(path.rpartition(":")[0]).resolve()
        if not any(file == one or one in file.parents for one in opened):
            raise BadInput(
                f"impl.{field}={path}: this code is not named on the command line; to run it add {_allowing(file)}"
            )


def _allowing(file: Path) -> str:
    """As a shell and Hydra take it."""
    return f"{ALLOW}={file}" if PLAIN.fullmatch(str(file)) else f"'{ALLOW}=\"{file}\"'"


def _code(case: Case) -> Iterator[tuple[str, str]]:
    """Fields of the implementation that name a file to run, with what they say."""
    for field in ("path", "of"):
        if ":" in (path := str(case.impl.fields.get(field))):
            yield field, path


def check_folder(folder: Path) -> None:
    """Raise BadInput if ``folder`` has options for Hydra itself, or a YAML that is too large, too deep, or grows so.

    What a YAML says of Hydra under another name is refused where it is read, in ``runner.compose.loader``.
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


def _values(word: str) -> list[str]:
    """What stands behind ``=``: one value, several, or a list, quoted or not."""
    parts = re.split(r"[,\[\]]", word.partition("=")[2])
    return [name for part in parts if (name := part.strip(" '\""))]


def _is_own(folder: Path) -> bool:
    """Whether nobody but this user can have written in ``folder``."""
    facts = folder.stat()
    return hasattr(os, "getuid") and facts.st_uid == os.getuid() and not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
