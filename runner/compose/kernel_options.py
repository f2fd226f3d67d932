"""Every file of kernels/<op>/ is an option of ``impl``, with or without a YAML of its own."""

from __future__ import annotations

from pathlib import Path

from hydra.core.config_store import ConfigStore

import kernels
from runner.compose import CONF


def register() -> None:
    """Offer the implementations that have no ``conf/impl/*.yaml``; they have no fields but their name."""
    described = {path.stem for path in (CONF / "impl").glob("*.yaml")}
    files = Path(kernels.__path__[0]).glob("*/[!_]*.py")
    for name in sorted({path.stem for path in files} - described):
        ConfigStore.instance().store(group="impl", name=name, node={"name": name}, provider="kernels")
