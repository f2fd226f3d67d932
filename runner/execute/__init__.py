"""Launchers turn Cases into Rows. Each is one file, named as its option of ``conf/launcher``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from runner.experiment.case import CaseRecord
from runner.experiment.results import Comparison, Row

if TYPE_CHECKING:
    from runner.device.gpus import Gpu
    from runner.execute.worker_process import Zygote

Seconds = Annotated[float, "above 0"]


@dataclass(frozen=True)
class Ready:
    """A worker is ready. ``environment`` describes its libraries and its device."""

    environment: dict[str, Any]
    gpu: Gpu | None = None


@dataclass(frozen=True)
class Started:
    """A case was given to a worker."""

    case: CaseRecord


@dataclass(frozen=True)
class Notice:
    """A sentence for the user."""

    text: str


Event = Notice | Ready | Started | Row | Comparison


class CannotStart(RuntimeError):
    """No worker can be started; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Time limits of the phases of a case."""

    start_limit_s: Seconds
    build_limit_s: Seconds
    check_limit_s: Seconds
    measure_limit_s: Seconds


class Launcher(Protocol):
    """A launcher's fields are those of its YAML file."""

    def run(self, cases: Sequence[CaseRecord], log_path: str, early: Zygote | None = None) -> Iterator[Event]:
        """Yield one Row per case, in the order in which they finish. Workers print to ``log_path``.

        The rows of a problem are followed by its Comparison, if its cases were compared. ``early`` forks workers on
        this machine; the caller has started it and closes it.
        """
