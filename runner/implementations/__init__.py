"""Implementations: how a workload is computed. Most are files of ``kernels/<op>/``; the others stand here."""

from __future__ import annotations

from runner.experiment import options, schema
from runner.experiment.case import Choice
from runner.experiment.errors import BadInput
from runner.implementations.base import Implementation, Watch
from runner.implementations.kernel import Kernel, kernel, names

__all__ = ["Implementation", "Kernel", "Watch", "build", "find", "kind"]


def build(choice: Choice) -> Implementation:
    """The implementation that ``choice`` says. Raises BadInput if its fields are not what its class takes."""
    return schema.build(kind(choice), choice.fields, "impl")


def kind(choice: Choice) -> type[Implementation]:
    """The class of the implementation that ``choice`` says.

    A name that nothing here has, beside a ``path``, is what a user calls that function: else it is ``impl=file``.
    """
    own = (
        "path" in choice.fields
        and not options.exists("runner.implementations", choice.name)
        and choice.name not in names()
    )
    try:
        return find("file" if own else choice.name)
    except LookupError as error:
        raise BadInput(f"impl={choice.name}: {error}") from None


def find(name: str) -> type[Implementation]:
    """The class behind ``impl=<name>``: one of this folder's, else a file of ``kernels/<op>/``."""
    if name not in ("base", "kernel") and options.exists("runner.implementations", name):
        return options.find("runner.implementations", name)
    return kernel(name)
