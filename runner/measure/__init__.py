"""Measurements: a bound call and where it runs → figures by the columns of ``runner.row``. One file each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from runner.case import Scalar

if TYPE_CHECKING:
    from models.workload import Call


class Measurement(Protocol):
    """Fields are those of its YAML; the class stands in the file of its name, and nothing at its top imports torch."""

    def measure(self, call: Call, device: str) -> Mapping[str, Scalar | Sequence[float]]:
        """Figures of ``call``, which has been called before and is right, on ``device`` ("cpu" or "cuda").

        A number, a word, or a series of numbers each. A ``verdict`` of "wrong" makes the row wrong.
        """


@runtime_checkable
class Comparing(Protocol):
    """A measurement that can also take several calls of one point side by side."""

    def compare(
        self, calls: Sequence[tuple[Call, Mapping[str, Scalar]]], device: str
    ) -> list[tuple[str, list[float]]] | None:
        """Of each call, which comes with its figures, the instrument and ten batch means; None if it cannot be."""
