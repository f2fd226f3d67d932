"""A declarative experiment runner for GPU operations."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

__version__ = "0.1.0"

BESIDE = ("kernels", "models")


class _Beside:
    """Finds the packages beside this one: folders of those names where the command was typed would come first."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [str(Path(__file__).parent.parent)], target) if name in BESIDE else None


sys.meta_path.insert(0, _Beside)
