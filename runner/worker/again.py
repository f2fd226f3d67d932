"""A case once more, in a process that a tool has started: what nsys, ncu and compute-sanitizer look at.

    python -m runner.worker.again <case.json>

The case is built and checked as ever, within the NVTX range ``define_model``. Then come its calls, between start and
stop of CUDA's profiler, each in a range ``call``; in these are the parts that the workload has names for. The result,
with what the calls took by the host's clock, is written where the request says. Exit code 1: there is no such call.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from kernels.spans import span, watched
from models.workload import Call
from runner.case import Case
from runner.worker.job import Job
from runner.worker.point import Point

WARM_UP = 3  # calls before the profiler starts
MODEL, CALL = "define_model", "call"


def main(request: Path) -> int:
    """Do what ``request`` asks for; what came of it is in the file that it names."""
    asked = json.loads(request.read_text(encoding="utf-8"))
    case = Case.from_record(asked["case"])
    try:
        with watched(_range):
            found = again(case, int(asked["calls"]))
    except Exception as error:
        traceback.print_exc()
        found = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    Path(asked["result"]).write_text(json.dumps(found), encoding="utf-8")
    return int("error" in found)


def again(case: Case, calls: int) -> dict[str, Any]:
    """Build, check and call; microseconds of each call by the host's clock, from launch to result."""
    job = Job(case, Point(case), on_phase=lambda phase: None)
    with span(MODEL):
        call = job.ready()
    if job.wrong and not case.time_wrong:
        return {"error": f"wrong: {job.wrong}"}
    for _ in range(WARM_UP):
        _restore(call)
        _once(call)
    _restore(call)  # before the profiler looks: it may launch kernels of its own
    with _profiled():
        calls_us = [_once(call)]
        while len(calls_us) < calls:
            _restore(call)
            calls_us.append(_once(call))
    return {"calls_us": calls_us, "n": calls}


def _restore(call: Call) -> None:
    call.restore()
    _wait()


def _once(call: Call) -> float:
    started = time.perf_counter()
    with span(CALL):
        call.run()
        _wait()
    return (time.perf_counter() - started) * 1e6


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _range(name: str) -> AbstractContextManager[object]:
    return torch.cuda.nvtx.range(name) if torch.cuda.is_available() else nullcontext()


@contextmanager
def _profiled() -> Iterator[None]:
    """Between start and stop of CUDA's profiler, where there is CUDA."""
    if not torch.cuda.is_available():
        yield
        return
    torch.cuda.profiler.start()
    try:
        yield
    finally:
        torch.cuda.profiler.stop()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
