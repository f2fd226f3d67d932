"""Hydra calls what its own settings name; so they are the project's and the command line's, and of no YAML of others.

A YAML says them in more ways than its text shows: by a key, its package header, the defaults list of another one. What
they come to is known where Hydra has read it, before anything is called.
"""

from __future__ import annotations

from hydra._internal import hydra as start
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import IConfigRepository
from hydra.core.default_element import ResultDefault
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig

from runner.experiment.errors import BadInput

OURS = "main"  # what Hydra calls the folder of config.yaml


class Loader(ConfigLoaderImpl):
    """Hydra's, but that it takes a node ``hydra`` from no other folder than ours."""

    def _load_single_config(self, default: ResultDefault, repo: IConfigRepository) -> ConfigResult:
        """Raises BadInput."""
        found = super()._load_single_config(default, repo)
        theirs = found.provider != OURS and found.path.startswith("file:")
        if theirs and isinstance(found.config, DictConfig) and "hydra" in list(found.config.keys()):
            raise BadInput(
                f"{found.path.removeprefix('file://')}/{default.config_path}.yaml: sets hydra, which a YAML of yours "
                "cannot; leave that out, and give hydra... on the command line"
            )
        return found


def register() -> None:
    """Let Hydra start with ``Loader``."""
    start.ConfigLoaderImpl = Loader  # type: ignore[attr-defined]
