"""Compose many cases quickly: Hydra once per choice of options, then values written into copies.

Hydra takes 40 to 50 ms to read and merge its files, and 1.5 ms to copy a config. Copying a plain dict and writing a few
values into it takes 30 us. Three things below are internal to Hydra, so pyproject.toml keeps hydra-core below 1.4.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.utils import create_config_search_path
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, RangeSweep, Transformer, ValueType
from hydra.errors import MissingConfigException
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from runner.config import CONF
from runner.config.grid import check_count
from runner.implementations import names

Keys = tuple[str, ...]  # of a field: ("workload", "rows")

DOTTED = re.compile(r"\w+(\.\w+)*")
ARGUMENTS = ("impl", "args")  # the only node whose names are not those of a YAML
REFERENCE = re.compile(r"\$\{(\w+(?:\.\w+)*)\}")  # an interpolation that names another field


class Composer:
    """Compose configs from override lines; each equals the result of Hydra's own ``compose``.

    ``config_dir``: a folder of the user's YAML files, searched after ``conf/``.
    """

    def __init__(self, config_dir: str | None = None) -> None:
        path = create_config_search_path(str(CONF))
        if config_dir is not None:
            path.prepend("command-line", f"file://{os.path.abspath(config_dir)}", anchor="schema")
        _register_kernels()
        self._loader = ConfigLoaderImpl(config_search_path=path)
        self._files = self._loader.repository = _ReadOnce(self._loader.repository)  # type: ignore[assignment]
        self._parser = OverridesParser.create(config_loader=self._loader)
        self._parsed: dict[str, Override] = {}
        self._is_group: dict[str, bool] = {}
        self._settings: dict[str, tuple[Keys, object] | None] = {}
        self._bases: dict[tuple[str, ...], DictConfig] = {}
        self._templates: dict[tuple[str, ...], _Template | None] = {}

    def parse(self, line: str) -> Override:
        """Parse one override. Raises Hydra's OverrideParseException."""
        if line not in self._parsed:
            self._parsed[line] = self._parser.parse_overrides([line])[0]  # the plural form makes glob() work
        return self._parsed[line]

    def expand(self, override: Override) -> list[str]:
        """Return one override line per value of a sweep. Raises BadInput if a range has more than a run has cases."""
        if not override.is_sweep_override():
            return [str(override.input_line)]
        numbers: Any = override.value()
        if isinstance(override.value(), RangeSweep):  # it may be longer than memory holds
            check_count(int((numbers.stop - numbers.start) // numbers.step), str(override.input_line))
        lines = []
        for value in override.sweep_iterator():
            line = f"{override.get_key_element()}={Transformer.str(value)}"
            if value is None or isinstance(value, int | float):  # parsing it again would take 0.3 ms
                one = replace(override, _value=value, value_type=ValueType.ELEMENT, input_line=line)
                self._parsed.setdefault(line, one)
            lines.append(line)
        return lines

    def is_group(self, override: Override) -> bool:
        """Return whether ``override`` chooses an option of a config group, rather than setting a value."""
        key = override.key_or_group
        if key not in self._is_group:
            self._is_group[key] = bool(self._loader.repository.group_exists(key))
        return self._is_group[key]

    def options(self, group: str) -> list[str]:
        """Return the names of the options of ``group``."""
        return list(self._loader.get_group_options(group))

    def file(self, group: str, name: str) -> Path | None:
        """Return the YAML file of an option, or None if it has none, like a kernel file without fields."""
        for source in reversed(self._loader.get_search_path().get_path()):
            path = Path(str(source.path).removeprefix("file://"), group, f"{name}.yaml")
            if path.is_file():
                return path
        return None

    def __call__(self, lines: Sequence[str]) -> DictConfig:
        """Compose the config of the overrides ``lines``, none of them a sweep. It must not be changed.

        Raises Hydra's exceptions.
        """
        overrides = [self.parse(line) for line in lines]
        groups = tuple(str(override.input_line) for override in overrides if self.is_group(override))
        config = self._base(groups)
        if values := [override for override in overrides if override.input_line not in groups]:
            config = copy.deepcopy(config)  # most of the time of a composition
            self._loader._apply_overrides_to_config(values, config)
        return config

    def resolved(self, lines: Sequence[str]) -> dict[str, Any]:
        """Compose the same config, resolved, as a plain dict. Raises Hydra's exceptions."""
        settings = {line: self._setting(line) for line in lines}
        template = self._template(tuple(line for line, setting in settings.items() if setting is None))
        config = template.fill(dict(filter(None, settings.values()))) if template else None
        return config or dict(OmegaConf.to_container(self(lines), resolve=True))  # type: ignore[arg-type]

    def _setting(self, line: str) -> tuple[Keys, object] | None:
        """Return the keys and the value if ``line`` gives a field a number, a plain word or null, else None."""
        if line not in self._settings:
            override = self.parse(line)
            value = override.value() if override.type == OverrideType.CHANGE else override
            word = isinstance(value, str) and "${" not in value and value != "???"
            simple = word or value is None or isinstance(value, int | float)
            dotted = not override.package and DOTTED.fullmatch(override.key_or_group) and not self.is_group(override)
            self._settings[line] = (_keys(override.key_or_group), value) if simple and dotted else None
        return self._settings[line]

    def _template(self, lines: tuple[str, ...]) -> _Template | None:
        """Return the template of all configs with the overrides ``lines``, or None if it needs OmegaConf to resolve."""
        if lines not in self._templates:
            values: Any = OmegaConf.to_container(self(lines), resolve=False)
            references = {
                field: REFERENCE.fullmatch(str(value)) for field, value in _leaves(values) if "${" in str(value)
            }
            targets = {field: _keys(match[1]) for field, match in references.items() if match}
            set_before = [_keys(key_of(self.parse(line))) for line in lines if not self.is_group(self.parse(line))]
            simple = len(targets) == len(references)
            self._templates[lines] = _Template(values, targets, set_before) if simple else None
        return self._templates[lines]

    def _base(self, groups: tuple[str, ...]) -> DictConfig:
        if groups not in self._bases:
            self._bases[groups] = base = self._exchanged(groups) or self._loaded(groups)
            with open_dict(base):
                impl = base.get("impl")
                if isinstance(impl, DictConfig) and "path" in impl:  # a user's file by its own name
                    impl.setdefault("rev", None)
                    impl.setdefault("args", {})
                if isinstance(impl, DictConfig) and isinstance(impl.get("args"), DictConfig):
                    OmegaConf.set_struct(impl.args, False)
        return self._bases[groups]

    def _loaded(self, groups: tuple[str, ...]) -> DictConfig:
        """Return the config of the options ``groups`` as Hydra composes it, without the node ``hydra``."""
        try:
            base = self._loader.load_configuration("config", list(groups), run_mode=RunMode.RUN)
        except MissingConfigException as error:  # for a list, measure=[benchmark,nope], it leaves out the options
            options = self._loader.get_group_options((error.missing_cfg_file or "").rpartition("/")[0])
            raise MissingConfigException(str(error), error.missing_cfg_file, error.options or options) from None
        with open_dict(base):
            del base["hydra"]
        return base

    def _exchanged(self, groups: tuple[str, ...]) -> DictConfig | None:
        """Copy a config that differs from ``groups`` in one option, and replace that option: a tenth of Hydra's time.

        Return None if no composed config differs in one option alone, or if another file writes to the option's fields:
        then Hydra must merge them.
        """
        for known, base in self._bases.items():
            added, dropped = set(groups) - set(known), set(known) - set(groups)
            group, _, name = min(added, default="").partition("=")
            same = len(added) == 1 and len(dropped) <= 1 and all(one.startswith(f"{group}=") for one in dropped)
            if same and group in base and self._files.alone(group, name):
                exchanged = copy.deepcopy(base)
                with open_dict(exchanged):
                    exchanged[group] = self._files.load_config(f"{group}/{name}").config  # type: ignore[union-attr]
                return exchanged
        return None


class _ReadOnce:
    """Hydra's repository of YAML files, reading each file once instead of once a composition."""

    def __init__(self, repository: ConfigRepository) -> None:
        self._repository = repository
        self._results: dict[str, ConfigResult | None] = {}

    def load_config(self, config_path: str) -> ConfigResult | None:
        return copy.deepcopy(self._read(config_path))

    def alone(self, group: str, name: str) -> bool:
        """Return whether no other file read so far writes to the fields of an option, or depends on the choice."""
        option = self._read(f"{group}/{name}")
        others = [one for path, one in self._results.items() if one and not path.startswith(f"{group}/")]
        return (
            option is not None
            and option.header["package"] is None
            and not option.defaults_list
            and not any(one.header["package"] == group or group in one.config for one in others)
            and not any("${" in repr(one.defaults_list) for one in others)
        )

    def _read(self, path: str) -> ConfigResult | None:
        if path not in self._results:
            self._results[path] = self._repository.load_config(path)
        return self._results[path]

    def __deepcopy__(self, _: object) -> _ReadOnce:  # by each composition
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._repository, name)


def key_of(override: Override) -> str:
    """Return the key of ``override``, without ``+`` or ``~``."""
    return str(override.get_key_element()).lstrip("+~")


@dataclass(frozen=True)
class _Template:
    """An unresolved config as a plain dict, in which every interpolation names another field."""

    values: dict[str, Any]
    references: dict[Keys, Keys]  # field with an interpolation → field that it names
    set_before: Sequence[Keys]  # fields that overrides have set in ``values``

    def fill(self, settings: dict[Keys, object]) -> dict[str, Any] | None:
        """Return a resolved copy with ``settings``, or None where only Hydra and OmegaConf can tell the result."""
        if any(all(map(str.__eq__, one, other)) for one in self.set_before for other in settings):
            return None  # one is within the other, so their order matters
        config = copy.deepcopy(self.values)
        references = {field: named for field, named in self.references.items() if field not in settings}
        if not references.keys().isdisjoint(references.values()):
            return None
        try:
            for field, value in settings.items():
                _parent(config, field)[field[-1]] = value
            for field, named in references.items():
                _parent(config, field)[field[-1]] = _parent(config, named)[named[-1]]
        except (KeyError, TypeError):  # no such field
            return None
        return config


def _parent(config: dict[str, Any], field: Keys) -> dict[str, Any]:
    """Return the dict that holds ``field``. Raises KeyError or TypeError unless the field has a single value."""
    node = config
    for name in field[:-1]:
        node = node[name]
    if isinstance(node.get(field[-1]) if field[:-1] == ARGUMENTS else node[field[-1]], dict | list):
        raise TypeError(field)
    return node


def _keys(dotted: str) -> Keys:
    return tuple(dotted.split("."))


def _leaves(value: object, field: Keys = ()) -> Iterator[tuple[Keys, object]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, (*field, str(name)))
    else:
        yield field, value


def _register_kernels() -> None:
    """Offer the implementations without a ``conf/impl/*.yaml``; their only fields are ``args`` and ``rev``."""
    described = {path.stem for path in (CONF / "impl").glob("*.yaml")}
    for name in sorted(set(names()) - described):
        ConfigStore.instance().store(
            group="impl", name=name, node={"name": name, "args": {}, "rev": None}, provider="kernels"
        )
