"""Which times count: the verdict of a row, and what follows from it."""

from collections.abc import Mapping
from typing import Any

from ..records.row import Row
from ..timing.statistics import BATCHES
from ..timing.verdict import DRIFTS, GRAVITY, UNTRUE


def is_correct(row: Row) -> bool:
    """Return whether the outputs were checked and are correct: those of ``impl=copy`` are not checked."""
    return row.status == "ok" and row.metrics.get("correct") is True


def is_wrong(row: Row) -> bool:
    """Return whether the outputs of the check, or those of the timed calls, are wrong."""
    return "wrong" in (row.status, row.metrics.get("verdict"))


def certain(row: Row) -> bool:
    """Return whether the time is neither contended nor of doubtful value, has converged, and is of ten samples."""
    figures: Mapping[str, Any] = row.metrics
    enough = figures.get("converged") is True and figures.get("samples", 0) >= BATCHES
    return enough and not contended(row)


def may_win(row: Row) -> bool:
    """Return whether the case of ``row`` can be the fastest: it is correct, and its time can be true."""
    timed = is_correct(row) and row.time_us is not None
    return timed and not row.case.settings.debug and row.metrics.get("verdict") not in UNTRUE


def contended(row: Row) -> bool:
    """Return whether other processes may have made the time of ``row`` longer, or there is a graver doubt about it."""
    return gravity_of(row) <= GRAVITY.index("contended")


def gravity_of(row: Row) -> int:
    """Return the place of the verdict in ``GRAVITY``. One that this version does not know counts as the gravest."""
    word = row.metrics.get("verdict", "ok")
    return GRAVITY.index(word) if word in GRAVITY else 0


DRIFTING = "drifting"  # why a time has not converged, beside a wide interval


def doubt_of(row: Row) -> str:
    """Return the verdict; ``drifting`` for a time that has not converged since it drifts."""
    drifts = verdict(row) == "not_converged" and str(row.metrics.get("verdict_reason", "")).startswith(DRIFTS)
    return DRIFTING if drifts else verdict(row)


def verdict(row: Row) -> str:
    """Return the verdict of a row that is ok, and the status of others."""
    return str(row.metrics.get("verdict", row.status)) if row.status == "ok" else row.status
