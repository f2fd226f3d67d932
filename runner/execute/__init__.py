"""Launchers run cases and yield their rows. Each has a file with the name of its option in ``conf/launcher``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from ..records.case import CaseRecord
from ..records.paired_rounds import PairedRounds
from ..records.row import Row

if TYPE_CHECKING:
    from ..device.gpus import Gpu
    from .spawn import Zygote

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


Event = Notice | Ready | Started | Row | PairedRounds


class CannotStart(RuntimeError):
    """Raised if no worker can be started; the message is the reason."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Time limits of the phases of a case."""

    start_limit_s: Seconds
    build_limit_s: Seconds
    check_limit_s: Seconds
    measure_limit_s: Seconds


class Launcher(Protocol):
    """A dataclass whose fields are the fields of its YAML file."""

    def run(self, cases: Sequence[CaseRecord], log_path: str, early: Zygote | None = None) -> Iterator[Event]:
        """Yield one Row per case, in the order in which they finish. Workers print to ``log_path``.

        PairedRounds follow the rows of their problem. ``early`` forks workers on this machine; the caller starts and
        closes it.
        """
