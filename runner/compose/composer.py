"""Compose many cases fast: Hydra once per choice of groups, then only value overrides on a copy.

Hydra re-reads and merges its config files at every composition (40 to 50 ms); a copy costs under 1 ms. Two
of the calls below are Hydra's internals, which is why pyproject.toml keeps hydra-core below 1.4.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import DictConfig, open_dict


class Composer:
    """Command-line overrides → config, equal to what Hydra's own ``compose`` gives."""

    def __init__(self, loader: Any, config_name: str) -> None:  # Hydra's ConfigLoaderImpl
        self._loader = loader
        self._config_name = config_name
        self._parser = OverridesParser.create(config_loader=loader)
        self._parsed: dict[str, Override] = {}
        self._bases: dict[tuple[str, ...], DictConfig] = {}

    def parse(self, line: str) -> Override:
        """One override, parsed at most once. Raises Hydra's OverrideParseException."""
        if line not in self._parsed:
            self._parsed[line] = self._parser.parse_overrides([line])[0]  # the plural form makes glob() work
        return self._parsed[line]

    def is_group(self, override: Override) -> bool:
        """True if it chooses an option of a config group, false if it sets a value."""
        return bool(self._loader.repository.group_exists(override.key_or_group))

    def __call__(self, lines: Sequence[str]) -> DictConfig:
        """The config under the overrides ``lines``, none of them a sweep. Raises Hydra's exceptions."""
        overrides = [self.parse(line) for line in lines]
        groups = tuple(str(override.input_line) for override in overrides if self.is_group(override))
        config = copy.deepcopy(self._base(groups))
        values = [override for override in overrides if override.input_line not in groups]
        self._loader._apply_overrides_to_config(values, config)
        return config

    def _base(self, groups: tuple[str, ...]) -> DictConfig:
        if groups not in self._bases:
            base = self._loader.load_configuration(self._config_name, list(groups), run_mode=RunMode.RUN)
            with open_dict(base):
                del base["hydra"]
            self._bases[groups] = base
        return self._bases[groups]
