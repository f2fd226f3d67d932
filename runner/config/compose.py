"""Compose many cases quickly: use Hydra once per choice of options, then write values into copies.

Hydra takes 40 to 50 ms to read and merge its files. Copying a config takes 0.2 ms by pickle and 1.5 ms by deepcopy, and
copying a plain dict 30 us. Some names below are internal to Hydra, so pyproject.toml keeps hydra-core below 1.4.
"""

from __future__ import annotations

import copy
import pickle
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.utils import create_config_search_path
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, RangeSweep, Transformer, ValueType
from hydra.errors import HydraException, MissingConfigException
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from ..implementations import kernel_names
from ..records.bad_input import BadInput
from ..records.options import CONF
from . import own_workloads
from .grid import check_count
from .messages import YAML_ERRORS, check_yaml

Keys = tuple[str, ...]  # path of a field: ("workload", "rows")

DOTTED = re.compile(r"\w+(\.\w+)*")
ARGUMENTS = ("impl", "args")  # the only node with names that no YAML file has
REFERENCE = re.compile(r"\$\{(\w+(?:\.\w+)*)\}")  # an interpolation that names another field


class Composer:
    """Compose configs from override lines; each equals the result of Hydra's own ``compose``.

    ``folders`` have the YAML files: ``conf/``, and the user's folder if there is one.
    """

    def __init__(self, folders: Sequence[Path] = (CONF,)) -> None:
        self._folders = folders
        path = create_config_search_path(str(CONF))
        for folder in folders[1:]:
            path.prepend("command-line", f"file://{folder.absolute()}", anchor="schema")
            own_workloads.register_named(folder)
        described = {path.stem for path in (CONF / "impl").glob("*.yaml")}
        for name in sorted(set(kernel_names()) - described):  # their only fields are ``args`` and ``rev``
            own_workloads.store("impl", {"name": name, "args": {}, "rev": None}, provider="kernels")
        self._loader = ConfigLoaderImpl(config_search_path=path)
        self._files = self._loader.repository = _ReadOnce(self._loader.repository, folders)  # type: ignore[assignment]
        self._parser = OverridesParser.create(config_loader=self._loader)
        self._parsed: dict[str, Override] = {}
        self._group_exists = cache(self._loader.repository.group_exists)
        self._bases: dict[tuple[str, ...], tuple[DictConfig, frozenset[str]]] = {}  # with the files that it consists of
        self._setting = cache(self._parse_setting)
        self._template = cache(self._make_template)
        self._composed = lru_cache(maxsize=64)(self._compose)  # planning a block asks for the same config several times

    def parse(self, line: str) -> Override:
        """Parse one override. Raises Hydra's OverrideParseException."""
        if line not in self._parsed:
            self._parsed[line] = self._parser.parse_overrides([line])[0]  # the plural form makes glob() work
        return self._parsed[line]

    def expand(self, override: Override) -> list[str]:
        """Return one override line per value of a sweep. Raises BadInput if there is none, or too many for a run."""
        typed, lines = str(override.input_line), []
        if not override.is_sweep_override():
            return [typed]
        try:
            numbers: Any = override.value()
            if isinstance(override.value(), RangeSweep):  # it may be too long for memory
                check_count(int((numbers.stop - numbers.start) // numbers.step), typed)
            for value in override.sweep_iterator():
                line = f"{override.get_key_element()}={Transformer.str(value)}"
                if value is None or isinstance(value, int | float):  # parsing it again would take 0.3 ms
                    element = replace(override, _value=value, value_type=ValueType.ELEMENT, input_line=line)
                    self._parsed.setdefault(line, element)
                lines.append(line)
        except (HydraException, ValueError, ArithmeticError):  # interval(1,9), range(1,9,0), range(0,inf)
            raise BadInput(f"{typed}: not a finite list of values; give one, as in range(256,1025,256)") from None
        seed, count = Counter(lines).most_common(1)[0] if lines else ("", 0)
        if override.key_or_group == "seed" and count > 1:
            again = f"to measure each case again: replicas={count}"
            raise BadInput(f"{typed}: {seed} is given {count} times, and equal cases are measured once; {again}")
        if not lines:
            raise BadInput(f"{typed}: this axis of the sweep is empty; give it at least one value")
        return lines

    def is_group(self, override: Override) -> bool:
        """Return whether ``override`` chooses an option of a config group, rather than setting a value."""
        return bool(self._group_exists(override.key_or_group))

    def options(self, group: str) -> list[str]:
        """Return the names of the options of ``group``."""
        return list(self._loader.get_group_options(group))

    def file(self, group: str, name: str) -> Path | None:
        """Return the YAML file of an option; None if there is none, as for a kernel file without fields."""
        paths = (folder / group / f"{name}.yaml" for folder in self._folders)
        return next(filter(Path.is_file, paths), None)

    def __call__(self, lines: Sequence[str]) -> DictConfig:
        """Compose the config of ``lines``, without sweeps. It must not be changed. Raises Hydra's exceptions."""
        return self._composed(tuple(lines))

    def _compose(self, lines: tuple[str, ...]) -> DictConfig:
        overrides = list(map(self.parse, lines))
        groups = tuple(str(override.input_line) for override in overrides if self.is_group(override))
        config = self._base(groups)
        if values := [override for override in overrides if override.input_line not in groups]:
            config = _copy(config)
            self._loader._apply_overrides_to_config(values, config)
        return config

    def resolved(self, lines: Sequence[str]) -> dict[str, Any]:
        """Compose the same config, resolved, as a plain dict. Raises Hydra's exceptions."""
        settings = {line: self._setting(line) for line in lines}
        template = self._template(tuple(line for line, setting in settings.items() if setting is None))
        filled = template.fill(dict(filter(None, settings.values()))) if template else None
        return filled or OmegaConf.to_container(self(lines), resolve=True)  # type: ignore[return-value]

    def _parse_setting(self, line: str) -> tuple[Keys, object] | None:
        """Return the keys and the value if ``line`` sets a field to a number, a plain word or null, else None."""
        override = self.parse(line)
        value = override.value() if override.type == OverrideType.CHANGE else override
        word = isinstance(value, str) and "${" not in value and value != "???"
        simple = word or value is None or isinstance(value, int | float)
        dotted = not override.package and DOTTED.fullmatch(override.key_or_group) and not self.is_group(override)
        return (_keys(override.key_or_group), value) if simple and dotted else None

    def _make_template(self, lines: tuple[str, ...]) -> _Template | None:
        """Return the template of all configs with the overrides ``lines``, or None if it needs OmegaConf to resolve."""
        values: Any = OmegaConf.to_container(self(lines), resolve=False)
        computed = {field: str(value) for field, value in _leaves(values) if "${" in str(value)}
        targets = {field: _keys(name[1]) for field, text in computed.items() if (name := REFERENCE.fullmatch(text))}
        set_before = [_keys(key_of(self.parse(line))) for line in lines if not self.is_group(self.parse(line))]
        return _Template(values, targets, set_before) if len(targets) == len(computed) else None

    def _base(self, groups: tuple[str, ...]) -> DictConfig:
        if groups not in self._bases:
            base, files = self._exchanged(groups) or self._loaded(groups)
            for group in ("workload", "impl", "launcher"):
                if isinstance(name := base.get(group), str):
                    remedy = f"in the defaults write: override /{group}: {name}"
                    raise BadInput(f"{group}: {name} chooses nothing there; {remedy}")
            with open_dict(base):
                own_workloads.complete(base)
                impl = base.get("impl")
                if isinstance(impl, DictConfig) and "path" in impl:  # a user's file under another name
                    impl.setdefault("rev", None)
                    impl.setdefault("args", {})
                if isinstance(impl, DictConfig) and isinstance(impl.get("args"), DictConfig):
                    OmegaConf.set_struct(impl.args, False)
            self._bases[groups] = base, files
        return self._bases[groups][0]

    def _loaded(self, groups: tuple[str, ...]) -> tuple[DictConfig, frozenset[str]]:
        """Return the config of ``groups`` as Hydra composes it, without the node ``hydra``, and its files."""
        self._files.used.clear()
        try:
            base = self._loader.load_configuration("config", list(groups), run_mode=RunMode.RUN)
        except MissingConfigException as error:  # for a list, measure=[benchmark,nope], it leaves out the options
            options = self._loader.get_group_options((error.missing_cfg_file or "").rpartition("/")[0])
            raise MissingConfigException(str(error), error.missing_cfg_file, error.options or options) from None
        with open_dict(base):
            del base["hydra"]
        return base, frozenset(self._files.used)

    def _exchanged(self, groups: tuple[str, ...]) -> tuple[DictConfig, frozenset[str]] | None:
        """Copy a config that differs from ``groups`` in some options, and replace these: a tenth of Hydra's time.

        Return None if there is no such config, or if Hydra must merge: if a new or replaced option writes to fields
        outside its group, or another file to fields of its group.
        """
        for composed, (base, files) in self._bases.items():
            lines = [line for line in groups if line not in composed]
            added = dict(line.partition("=")[::2] for line in lines)
            dropped = {line.partition("=")[0] for line in composed if line not in groups}
            if len(added) < len(lines) or not dropped <= added.keys() <= base.keys():
                continue
            options = {group: f"{group}/{name}" for group, name in added.items()}
            replaced = {file for file in files if file.partition("/")[0] in options}
            files = files.difference(replaced).union(options.values())
            plain = all(map(self._files.plain, (*replaced, *options.values())))
            if plain and all(self._files.alone(group, files) for group in options):
                exchanged = _copy(base)
                with open_dict(exchanged):
                    for group, file in options.items():
                        exchanged[group] = self._files.load_config(file).config
                return exchanged, files
        return None


@cache
def shipped(kernels: tuple[str, ...]) -> Composer:
    """Return a Composer without files of the user's, the same one each time. ``kernels``: those there are now."""
    return Composer()


class _ReadOnce:
    """Hydra's repository of YAML files, which reads each file once instead of in each composition."""

    def __init__(self, repository: ConfigRepository, folders: Sequence[Path]) -> None:
        self._repository, self._folders = repository, folders
        self._read = cache(self._load)
        self.used: set[str] = set()  # paths that were asked for

    def load_config(self, config_path: str) -> Any:
        self.used.add(config_path)
        return _copy(self._read(config_path))

    def plain(self, path: str) -> bool:
        """Return whether the option ``path`` consists of its own fields alone."""
        option = self._read(path)
        return option is not None and option.header["package"] is None and not option.defaults_list

    def alone(self, group: str, files: Iterable[str]) -> bool:
        """Return whether no file of another group writes to the fields of ``group``, or depends on its option."""
        others = [result for file in files if file.partition("/")[0] != group and (result := self._read(file))]
        return not any(
            result.header["package"] == group or group in result.config or "${" in repr(result.defaults_list)
            for result in others
        )

    def _load(self, path: str) -> ConfigResult | None:
        try:
            return self._repository.load_config(path)
        except YAML_ERRORS:
            for folder in self._folders:
                check_yaml(folder / f"{path}.yaml")
            raise

    def __deepcopy__(self, _: object) -> _ReadOnce:  # by each composition
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._repository, name)


def _copy(config: Any) -> Any:
    return pickle.loads(pickle.dumps(config))  # noqa: S301


def key_of(override: Override) -> str:
    """Return the key of ``override``, without ``+`` or ``~``."""
    return str(override.get_key_element()).lstrip("+~")


@dataclass(frozen=True)
class _Template:
    """An unresolved config as a plain dict, in which each interpolation names another field."""

    values: dict[str, Any]
    references: dict[Keys, Keys]  # field with an interpolation → field that it names
    set_before: Sequence[Keys]  # fields that overrides have set in ``values``

    def fill(self, settings: dict[Keys, object]) -> dict[str, Any] | None:
        """Return a resolved copy with ``settings``, or None if only Hydra and OmegaConf can resolve it."""
        if any(all(map(str.__eq__, earlier, later)) for earlier in self.set_before for later in settings):
            return None  # one contains the other, so their order matters
        config = copy.deepcopy(self.values)
        references = {field: target for field, target in self.references.items() if field not in settings}
        if not references.keys().isdisjoint(references.values()):
            return None
        try:
            for field, value in settings.items():
                _parent(config, field)[field[-1]] = value
            for field, target in references.items():
                _parent(config, field)[field[-1]] = _parent(config, target)[target[-1]]
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
