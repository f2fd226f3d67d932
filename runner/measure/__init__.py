"""Measurements: a bound call and where it runs → figures by the columns of ``runner.row``. One file each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from runner.case import Scalar

if TYPE_CHECKING:
    from models.workload import Call


class Measurement(Protocol):
    """Fields are those of its YAML; the class stands in the file of its name, and nothing at its top imports torch."""

    def measure(self, call: Call, device: str) -> dict[str, Scalar]:
        """Figures of ``call``, which has been called before and is right, on ``device`` ("cpu" or "cuda")."""
