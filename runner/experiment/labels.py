"""What the implementations of a grid are called: ``compiled``, or ``compiled(of=torch)`` beside others of that name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from runner.experiment.case import Choice
from runner.experiment.errors import BadInput, choices


class Labels:
    """Of the implementations ``impls``, which may come more than once."""

    def __init__(self, impls: Iterable[Choice]) -> None:
        self._impls = {impl.text: impl for impl in impls}
        self._varying = varying(self._impls.values())

    def label(self, impl: Choice) -> str:
        """Its name, and the fields in which those of that name differ."""
        shown = [f"{name}={value}" for name, value in impl.fields.items() if name in self._varying[impl.name]]
        return f"{impl.name}({', '.join(shown)})" if shown else impl.name

    def check(self, baseline: str | None) -> None:
        """Raise BadInput unless ``baseline`` is None or means one of them."""
        if baseline is not None and not any(is_called(impl, baseline) for impl in self._impls.values()):
            known = choices(baseline, map(self.label, self._impls.values()))
            raise BadInput(f"baseline={baseline}: not in this sweep; {known}")


def is_called(impl: Choice, label: str) -> bool:
    """Whether ``label`` is the name of ``impl``, or that with some of its fields in their order, as a table has them.

    A table of a part of the grid shows fewer fields: of which grid the label is, does not matter.
    """
    name, _, fields = label.partition("(")
    if name != impl.name or not fields.endswith(")"):
        return label == impl.name
    rest = f"{fields[:-1]}, "
    for field, value in impl.fields.items():
        rest = rest.removeprefix(f"{field}={value}, ")
    return not rest


def varying(chosen: Iterable[Choice]) -> dict[str, set[str]]:
    """For each option, the fields that take several values."""
    options: dict[str, list[Mapping[str, Any]]] = {}
    for choice in chosen:
        options.setdefault(choice.name, []).append(choice.fields)
    return {option: several(fields) for option, fields in options.items()}


def several(records: Iterable[Mapping[str, Any]]) -> set[str]:
    """The fields that take several values in those of ``records`` that have them."""
    values: dict[str, set[Any]] = {}
    for record in records:
        for name, value in record.items():
            values.setdefault(name, set()).add(value)
    return {name for name, some in values.items() if len(some) > 1}
