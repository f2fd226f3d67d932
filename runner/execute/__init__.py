"""Launchers: many Cases → many Rows. One file each, named as its option of ``conf/launcher``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from runner.experiment.case import CaseRecord
from runner.experiment.results import Comparison, Row

if TYPE_CHECKING:
    from runner.device.gpus import Gpu
    from runner.execute.worker_process import Forker


@dataclass(frozen=True)
class Ready:
    """A worker is up; ``environment`` is what it says of its libraries and its device."""

    environment: dict[str, Any] = field(default_factory=dict)
    gpu: Gpu | None = None


@dataclass(frozen=True)
class Started:
    """A case has been given to a worker."""

    case: CaseRecord


@dataclass(frozen=True)
class Notice:
    """Something the user should hear of now, in a sentence."""

    text: str


Event = Notice | Ready | Started | Row | Comparison


class CannotStart(RuntimeError):
    """No worker can be had; the message says why."""


class Launcher(Protocol):
    """Fields are those of its YAML."""

    def run(self, cases: Sequence[CaseRecord], log_path: str, early: Forker | None = None) -> Iterator[Event]:
        """One Row per case, in the order they are done, whatever happens to it; workers print to ``log_path``.

        ``early`` forks workers on this machine; the caller has started it and ends it.

        After the rows of one problem come the Comparison in which those cases were compared, if they were.
        """
