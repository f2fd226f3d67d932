"""What launchers of several machines share: a ``Local`` on each of them, and how its events travel.

So whatever happens to a worker is dealt with in one place, on the machine where it happens. What is left for the
launcher itself is that a whole machine may go.
"""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from runner.device import gpus
from runner.device.gpus import Gpu
from runner.execute import CannotStart, Event, Notice, Ready, Started
from runner.execute.local import Local, Seconds
from runner.experiment.case import Case
from runner.experiment.errors import BadInput
from runner.experiment.results import Comparison, Row
from runner.store.fingerprint import Fingerprints

MOST_DEATHS = 2  # of machines or tasks with the same case in flight: it may be the case that kills them


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Those of the ``Local`` on each machine."""

    start_limit_s: Seconds
    build_limit_s: Seconds
    check_limit_s: Seconds
    measure_limit_s: Seconds

    def local(self, gpus: int, ahead: int | None = None) -> dict[str, Any]:
        """The fields of a ``Local`` that uses all the ``gpus`` which it is shown, JSON-ready."""
        names = Limits.__dataclass_fields__
        return {"gpus": "all" if gpus else 0, "precompile": ahead} | {name: getattr(self, name) for name in names}


def need(package: str, extra: str) -> None:
    """Raises BadInput if ``package``, which ``launcher=<extra>`` needs, is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:  # a mere folder of that name has no origin
        raise BadInput(f"launcher={extra} needs the package {package}: pip install -e '.[{extra}]' in the checkout")


def problems(cases: Iterable[Case]) -> list[list[Case]]:
    """The cases of each problem, replicas included: what is to run on one machine, so that it compares."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(case.problem, []).append(case)
    return list(found.values())


def serve(
    local: Mapping[str, Any], cases: Sequence[Case], log_path: str, count: int, facts: Mapping[str, Any]
) -> Iterator[Event]:
    """On the machine itself: the events of ``cases``, on the ``count`` GPUs that this process is shown, 0: the CPU.

    Rows say what they were made with here; environments tell the host, and ``facts``. Raises CannotStart, also if GPUs
    are asked for and none is there.
    """
    host = socket.gethostname()
    if not count:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif why := gpus.look()[1]:
        raise CannotStart(why)
    made_with = Fingerprints()
    for event in Local(**local).run(cases, log_path):
        match event:
            case Ready():
                yield replace(event, environment={"hostname": host, **facts, **event.environment})
            case Notice():
                yield Notice(f"{host}: {event.text}")
            case Started():
                made_with.of(event.case)
                yield event
            case Row():
                yield replace(event, fingerprint=made_with.of_row(event.case))
            case Comparison():
                yield event


def to_record(event: Event) -> dict[str, Any]:
    """``event`` as JSON-ready values under ``record``, the kind it is, as a journal has them."""
    match event:
        case Ready():
            gpu = None if event.gpu is None else asdict(event.gpu)
            return {"record": "ready", "environment": event.environment, "gpu": gpu}
        case Notice():
            return {"record": "notice", "text": event.text}
        case Started():
            return {"record": "start", "key": event.case.key}
        case Row():
            return {"record": "row", **event.to_record()}
        case Comparison():
            return {"record": "rounds", **event.to_record()}


def from_record(record: Mapping[str, Any], cases: Mapping[str, Case]) -> Event | None:
    """The inverse; None if it is another record, or of none of ``cases``. Raises ValueError, KeyError, TypeError."""
    values = {name: value for name, value in record.items() if name not in ("record", "end")}  # as a journal spells it
    match record["record"]:
        case "ready":
            return Ready(values["environment"], None if values["gpu"] is None else Gpu(**values["gpu"]))
        case "notice":
            return Notice(values["text"])
        case "start":
            return Started(cases[values["key"]]) if values["key"] in cases else None
        case "row":
            return Row.from_record(values) if values["key"] in cases else None
        case "rounds":
            rounds = Comparison.from_record(values)
            return rounds if rounds.batches_us.keys() <= cases.keys() else None
    return None


def lost(case: Case, why: str, detail: str = "") -> Row:
    """The row of a case whose machine has gone, and that is not to be tried again."""
    return Row(
        case=case, status="lost", reason=f"{why}; to try again: resume.retry=[lost]", phase="plan", detail=detail
    )


def one_line(error: BaseException) -> str:
    """The first line that says something, for a sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
