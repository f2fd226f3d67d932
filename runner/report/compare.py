"""Compare the same cases of two or more runs, or the cases of one run that differ in one field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from runner.experiment.results import Row
from runner.report.past import Run
from runner.timing.statistics import Ratio, Word

Source = Literal[
    "paired rounds",  # both were sampled in turn, in one process
    "replicas",  # at least three processes on each side
    "verify",  # the certificate of the machine: two separate times of a call in one process
    "unknown",  # there is no conclusion
]


@dataclass(frozen=True)
class Pair:
    """A case that both sides have a time of."""

    problem: str  # workload and what varies: ``gelu cols=1024``
    implementation: str  # its label: ``compiled(mode=default)``
    reference: Row  # the replicas merged into one
    row: Row
    replicas: tuple[int, int]  # processes behind each of the two times
    ratio: Ratio  # time of ``row`` over that of ``reference``; its half-width is infinite without a known spread
    source: Source  # where the spread comes from
    doubt: str  # why there is no conclusion; "" if the spread is known
    word: Word = "unclear"  # how ``row`` is compared to ``reference``, corrected for the number of comparisons


@dataclass(frozen=True)
class LeftOut:
    """A case that cannot be compared."""

    problem: str
    implementation: str
    reason: str  # ``only in A``, ``wrong in B: ...``
    reference: Row | None  # None: that side does not have it
    row: Row | None


@dataclass(frozen=True)
class Comparison:
    """One side against the reference. Pairs of a problem stand together."""

    reference: str  # name of the reference side: A, or a value of the field
    name: str
    pairs: Sequence[Pair]
    left_out: Sequence[LeftOut]


def pairs(a: Run, b: Run, names: tuple[str, str] = ("A", "B")) -> Comparison:
    """Return how each case of ``b`` compares to the same case of ``a``."""
    raise NotImplementedError


def runs(reference: Run, others: Sequence[Run]) -> list[Comparison]:
    """Return how each of ``others`` compares to ``reference``. All words are corrected together."""
    raise NotImplementedError


def by(run: Run, field: str, reference: str | None = None) -> list[Comparison]:
    """Return how the cases of each value of ``field`` compare to those of ``reference``, by default its first value.

    ``field`` is named as on the command line, also without its group: ``workload.dtype``, ``dtype``, ``seed``.

    Raises BadInput if there is no such field or value, or no two cases differ in it alone.
    """
    raise NotImplementedError


def differences(a: Run, b: Run, names: tuple[str, str] = ("A", "B")) -> list[str]:
    """Return what differs between the environments and settings of two runs: ``torch: 2.12.0 in A, 2.13.0 in B``."""
    raise NotImplementedError
