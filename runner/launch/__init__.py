"""Launchers: many Cases → many Rows. One file each, named as its option of ``conf/launcher``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from runner.case import Case
from runner.rounds import Rounds
from runner.row import Row


@dataclass(frozen=True)
class Ready:
    """A worker is up; ``environment`` is what it says of its libraries and its device."""

    environment: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Started:
    """A case has been given to a worker."""

    case: Case


Event = Ready | Started | Row | Rounds


class Launcher(Protocol):
    """Fields are those of its YAML."""

    def run(self, cases: Sequence[Case], log_path: str) -> Iterator[Event]:
        """One Row per case, in the order they are done, whatever happens to it; workers print to ``log_path``.

        After the rows of one point come the Rounds in which those cases were compared, if they were.
        """
