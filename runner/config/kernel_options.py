"""Every file of kernels/<op>/ is an option of ``impl``, with or without a YAML of its own."""

from __future__ import annotations

from hydra.core.config_store import ConfigStore

from runner.config import CONF
from runner.implementations.kernel import names


def register() -> None:
    """Offer the implementations that have no ``conf/impl/*.yaml``; they have no fields but their name."""
    described = {path.stem for path in (CONF / "impl").glob("*.yaml")}
    for name in sorted(set(names()) - described):
        ConfigStore.instance().store(group="impl", name=name, node={"name": name}, provider="kernels")
