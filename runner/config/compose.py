"""Compose many cases fast: Hydra once per choice of groups, then only value overrides on a copy.

Hydra re-reads and merges its config files at every composition (40 to 50 ms); a copy of its config takes 1.5 ms; a
plain dict with some values of its own takes 10 us, and will do where overrides set numbers and words. Two of the calls
below are Hydra's internals, which is why pyproject.toml keeps hydra-core below 1.4.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, Transformer, ValueType
from hydra.errors import MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from runner.config import CONF
from runner.implementations import names

Path = tuple[str, ...]

DOTTED = re.compile(r"\w+(\.\w+)*")
REFERENCE = re.compile(r"\$\{(\.*)(\w+(?:\.\w+)*)\}")  # an interpolation that is another field, and nothing more


class Composer:
    """Compose configs from override lines; each equals what Hydra's own ``compose`` gives.

    ``config_dir``: a folder of the user's YAMLs, searched after ``conf/``.
    """

    def __init__(self, config_dir: str | None = None) -> None:
        path = create_config_search_path(str(CONF))
        if config_dir is not None:
            path.prepend("command-line", f"file://{os.path.abspath(config_dir)}", anchor="schema")
        register_kernels()
        self._loader = ConfigLoaderImpl(config_search_path=path)
        self._parser = OverridesParser.create(config_loader=self._loader)
        self._parsed: dict[str, Override] = {}
        self._is_group: dict[str, bool] = {}
        self._settings: dict[str, tuple[Path, object] | None] = {}
        self._bases: dict[tuple[str, ...], DictConfig] = {}
        self._templates: dict[tuple[str, ...], _Template | None] = {}

    def parse(self, line: str) -> Override:
        """One override, parsed at most once. Raises Hydra's OverrideParseException."""
        if line not in self._parsed:
            self._parsed[line] = self._parser.parse_overrides([line])[0]  # the plural form makes glob() work
        return self._parsed[line]

    def spell(self, override: Override) -> list[str]:
        """One override line per value of a sweep; numbers need not be parsed again, which takes 0.3 ms each."""
        if not override.is_sweep_override():
            return [str(override.input_line)]
        lines = []
        for value in override.sweep_iterator():
            line = f"{override.get_key_element()}={Transformer.str(value)}"
            if value is None or isinstance(value, int | float):
                one = replace(override, _value=value, value_type=ValueType.ELEMENT, input_line=line)
                self._parsed.setdefault(line, one)
            lines.append(line)
        return lines

    def is_group(self, override: Override) -> bool:
        """True if it chooses an option of a config group, false if it sets a value."""
        key = override.key_or_group
        if key not in self._is_group:
            self._is_group[key] = bool(self._loader.repository.group_exists(key))
        return self._is_group[key]

    def options(self, group: str) -> list[str]:
        """The names that ``group`` has."""
        return list(self._loader.get_group_options(group))

    def file(self, group: str, name: str) -> FilePath | None:
        """The YAML of an option; None if it has none, as a kernel file without fields."""
        for source in reversed(self._loader.get_search_path().get_path()):
            path = FilePath(str(source.path).removeprefix("file://"), group, f"{name}.yaml")
            if path.is_file():
                return path
        return None

    def __call__(self, lines: Sequence[str]) -> DictConfig:
        """The config under the overrides ``lines``, none of them a sweep. Raises Hydra's exceptions."""
        overrides = [self.parse(line) for line in lines]
        groups = tuple(str(override.input_line) for override in overrides if self.is_group(override))
        config = copy.deepcopy(self._base(groups))
        values = [override for override in overrides if override.input_line not in groups]
        self._loader._apply_overrides_to_config(values, config)
        return config

    def plain(self, lines: Sequence[str]) -> dict[str, Any]:
        """The same, resolved, as a plain dict, to be read only: parts of it are shared with others'."""
        settings = {line: self._setting(line) for line in lines}
        template = self._template(tuple(line for line, setting in settings.items() if setting is None))
        given = [setting for setting in settings.values() if setting]
        if template is None or not all(template.has(path) for path, _ in given):
            found: Any = OmegaConf.to_container(self(lines), resolve=True)
            return dict(found)
        return template.fill(given)

    def _setting(self, line: str) -> tuple[Path, object] | None:
        """Path and value, if all that ``line`` does is to give a field a number or a word."""
        if line not in self._settings:
            override = self.parse(line)
            value = override.value() if override.type == OverrideType.CHANGE else override
            word = isinstance(value, str) and "${" not in value and value != "???"
            simple = word or value is None or isinstance(value, int | float)
            dotted = not override.package and DOTTED.fullmatch(override.key_or_group) and not self.is_group(override)
            path = tuple(override.key_or_group.split("."))
            self._settings[line] = (path, value) if simple and dotted else None
        return self._settings[line]

    def _template(self, lines: tuple[str, ...]) -> _Template | None:
        """What the settings of points that share ``lines`` are put into; None if there is no such thing."""
        if lines not in self._templates:
            touched = [self.parse(line).key_or_group for line in lines if not self.is_group(self.parse(line))]
            values: Any = OmegaConf.to_container(self(lines), resolve=False)
            self._templates[lines] = _Template.of(values, touched)
        return self._templates[lines]

    def _base(self, groups: tuple[str, ...]) -> DictConfig:
        if groups not in self._bases:
            base = self._load(groups)
            with open_dict(base):
                del base["hydra"]
            self._bases[groups] = base
        return self._bases[groups]

    def _load(self, groups: tuple[str, ...]) -> DictConfig:
        try:
            base: DictConfig = self._loader.load_configuration("config", list(groups), run_mode=RunMode.RUN)
        except MissingConfigException as error:  # of a list, measure=[benchmark,nope], Hydra does not tell the options
            options = self._loader.get_group_options((error.missing_cfg_file or "").rpartition("/")[0])
            raise MissingConfigException(str(error), error.missing_cfg_file, error.options or options) from None
        return base


@dataclass(frozen=True)
class _Template:
    """A config as a plain dict, whose interpolations are all references to single fields."""

    values: dict[str, Any]
    references: dict[Path, Path]
    touched: frozenset[Path]  # fields that a setting must leave alone, since the order might matter

    @classmethod
    def of(cls, values: dict[str, Any], touched: Iterable[str]) -> _Template | None:
        """None if some interpolation is more than a reference, or refers to itself in the end."""
        references: dict[Path, Path] = {}
        for path, value in _leaves(values, ()):
            if "${" in str(value):
                match = REFERENCE.fullmatch(value) if isinstance(value, str) else None
                if match is None:
                    return None
                above = path[: -len(match[1])] if match[1] else ()
                references[path] = (*above, *match[2].split("."))
        for target in references.values():
            for _ in references:
                target = references.get(target, target)
            if target in references:
                return None
        template = cls(values, references, frozenset(tuple(key.split(".")) for key in touched))
        return template if all(map(template.has, references.values())) else None

    def has(self, path: Path) -> bool:
        """Whether ``path`` leads to a number or a word, and none of ``touched`` is on the way."""
        found: Any = self.values
        for depth, name in enumerate(path, 1):
            if not isinstance(found, dict) or name not in found or path[:depth] in self.touched:
                return False
            found = found[name]
        return not isinstance(found, dict | list)

    def fill(self, settings: Iterable[tuple[Path, object]]) -> dict[str, Any]:
        """The config with ``settings``, the last of each field, and with what its references then refer to."""
        given = dict(settings)
        top = dict(self.values)
        own: dict[Path, dict[str, Any]] = {}
        for path in (*given, *self.references):
            at = top
            for depth, name in enumerate(path[:-1], 1):
                if path[:depth] not in own:
                    at[name] = own[path[:depth]] = dict(at[name])
                at = at[name]
            at[path[-1]] = self._value(path, given)
        return top

    def _value(self, path: Path, given: dict[Path, object]) -> object:
        while path not in given and path in self.references:
            path = self.references[path]
        if path in given:
            return given[path]
        found: Any = self.values
        for name in path:
            found = found[name]
        return found


def _leaves(value: object, path: Path) -> Iterator[tuple[Path, object]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, (*path, str(name)))
    else:
        yield path, value


def register_kernels() -> None:
    """Offer the implementations that have no ``conf/impl/*.yaml``; they have no fields but their name."""
    described = {path.stem for path in (CONF / "impl").glob("*.yaml")}
    for name in sorted(set(names()) - described):
        ConfigStore.instance().store(group="impl", name=name, node={"name": name}, provider="kernels")
