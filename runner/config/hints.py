"""What a field that is not there may have been meant for, by the YAMLs that have one of its name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml
from omegaconf import DictConfig

PACKAGE = re.compile(r"^# @package ([\w.]+)", re.MULTILINE)  # where a YAML's fields go, if not under its group
EVERYWHERE = "_global_"  # the package of experiments, whose fields are those of others
SHARED = ("name", "axes")  # of every option, or of the group: they tell none from another


@dataclass(frozen=True)
class Field:
    """A field of an option of ``conf/``, or of a folder of the user's."""

    key: str  # as it is overridden: workload.layers, measure.ncu.set
    group: str
    option: str  # that has it


def meant(key: str, parent: DictConfig, folders: Iterable[Path]) -> str:
    """The rest of the sentence ``key: ...``: where a field of that name is to be had; empty if nowhere.

    ``parent`` is the node that has no such field; ``folders`` hold the groups.
    """
    chosen, name = parent._get_root(), key.rpartition(".")[2]
    assert isinstance(chosen, DictConfig)
    fields = [field for field in _fields(folders) if field.key.rpartition(".")[2] == name]
    if same := [field for field in fields if field.key == key]:
        group = same[0].group
        options = list(dict.fromkeys(field.option for field in same))
        have = "has" if len(options) == 1 else "have"
        own = chosen.get(group)
        asked = f"{group}={own.get('name')}" if isinstance(own, DictConfig) else group
        return f"{asked} has no such field; {', '.join(options)} {have}: {group}={options[0]}"
    if here := sorted(path for path in _paths(chosen, "") if path.rpartition(".")[2] == name and ".axes." not in path):
        return f"no such field; did you mean {' or '.join(here)}?"
    others = dict.fromkeys(f"{key}, of {group}={','.join(options)}" for key, group, options in _by_key(fields))
    return f"no such field; did you mean {' or '.join(others)}?" if others else ""


def _by_key(fields: Iterable[Field]) -> Iterator[tuple[str, str, list[str]]]:
    """Each key with its group and the options that have it."""
    options: dict[tuple[str, str], list[str]] = {}
    for field in fields:
        options.setdefault((field.key, field.group), []).append(field.option)
    for (key, group), names in options.items():
        yield key, group, list(dict.fromkeys(names))


def _fields(folders: Iterable[Path]) -> Iterator[Field]:
    for path in (path for folder in folders for path in sorted(folder.glob("*/*.yaml"))):
        try:
            text = path.read_text(encoding="utf-8")
            values = yaml.safe_load(text)
        except (OSError, UnicodeDecodeError, yaml.YAMLError):
            continue  # it is told of where it is chosen
        header = PACKAGE.search(text)
        package, group = header[1] if header else path.parent.name, path.parent.name
        if package != EVERYWHERE and isinstance(values, dict):
            yield from (Field(f"{package}.{name}", group, path.stem) for name in values if name not in SHARED)


def _paths(config: DictConfig, prefix: str) -> Iterator[str]:
    """Every field of ``config``, and those within it, but for Hydra's own."""
    for name in map(str, config):
        if prefix or name != "hydra":
            yield f"{prefix}{name}"
            inner = config._get_node(name)
            if isinstance(inner, DictConfig) and not inner._is_none():
                yield from _paths(inner, f"{prefix}{name}.")
