"""Runs cases in this process, one at a time, and compares the cases of one problem when all of them are done."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from runner.device import processes
from runner.experiment.case import CaseRecord, Scalar
from runner.experiment.results import ERROR, Comparison, Phase, Row, clip
from runner.timing import clock as time
from runner.worker.check import Fault, classify
from runner.worker.job import Job
from runner.worker.problem import Problem
from runner.worker.process_state import or_none, read_state

LEFT_BYTES = 2**29  # more GPU memory than the runner itself keeps between two problems
WIPED_BYTES_S = 3e11  # the driver wipes freed memory: 138 GiB slowed an H200 by 2 % for 0.36 s
CALIBRATION = "runner.timing.calibration"  # imports Triton, so it is imported only when it is needed
# Inductor's own processes: the pool that compiles, also for later cases, and those that time candidates.
INDUCTOR = re.compile(rb"\btorch[./]_inductor[./](compile_worker|\w*autotune\w*)")

_modules_frozen = 0  # modules that were imported when gc.freeze was last called


class Worker:
    """Runs one case at a time, and keeps what the cases of one problem share until another problem comes."""

    def __init__(self, on_phase: Callable[[Phase], None] = lambda phase: None, files: Path | None = None) -> None:
        """Measurements keep files in a folder per case of ``files``; None: they keep none."""
        self._on_phase, self._files = on_phase, files
        self._state = read_state()
        self._changed = ""  # what a call has changed in the paired rounds
        self._problem: Problem | None = None

    def run(self, case: CaseRecord) -> tuple[Row, bool]:
        """Return the row of ``case``, and whether this process must not run another case."""
        self._end_other_problem(case)
        problem = self._problem = self._problem or Problem(case)
        row, fault = self._row(case, problem)
        if fault and fault.status == "oom" and problem.release_caches():
            tidy()
            row, fault = self._row(case, problem)
        if changed := self._changes():
            row = replace(row, metrics={**row.metrics, "side_effects": changed})
        spoiled = (fault is not None and fault.spoiled) or bool(changed)
        if not spoiled:
            tidy()
            # After an out-of-memory, a new process may have room for the case that this one has not.
            spoiled = fault is not None and fault.status == "oom" and self._left_bytes() > LEFT_BYTES
        return self._with_traceback(row), spoiled

    def leftovers(self, case: CaseRecord) -> str:
        """Return what earlier cases left in this process, if that is too much to run ``case`` here; else ""."""
        if self._changed:
            return f"an earlier case has changed {self._changed}"
        self._end_other_problem(case)
        if self._problem is not None:
            return ""
        if self._left_bytes() > LEFT_BYTES:
            return "an earlier case has not given back its GPU memory"
        return "an earlier case has left processes running" if left_running() else ""

    def prepare(self, case: CaseRecord) -> dict[str, Scalar]:
        """Compile ``case`` into the caches on disk, and return the columns about that; {} if it fails."""
        try:
            return Job(case, Problem(case), self._on_phase).compile_only()
        except Exception as error:  # the row of the case will tell
            error.__traceback__ = None
            return {}
        finally:
            self._end_problem()

    def compare(self) -> Comparison:
        """Compare the cases of the current problem in paired rounds. Raises nothing."""
        try:
            self._on_phase("compare")
            found = self._problem.compare() if self._problem else Comparison(reason="there is nothing to compare")
        except Exception as error:
            error.__traceback__ = None
            found = Comparison(reason=classify(error, "compare").reason)
        self._changed = self._changes()
        if self._changed:
            found = Comparison(reason=f"not compared side by side: a call has changed {self._changed}")
        self._end_problem()
        return found

    def _changes(self) -> str:
        """Return what has changed in this process since the last call, or since the start; "" if nothing has."""
        before, self._state = self._state, read_state()
        return ", ".join(self._state.changes_since(before))

    def _row(self, case: CaseRecord, problem: Problem) -> tuple[Row, Fault | None]:
        files = None if self._files is None else self._files / case.key
        job, started = Job(case, problem, self._on_phase, files), time.perf_counter()
        fault, detail = None, ""
        try:
            job.run()
            if job.wrong:
                problem.redraw()  # a wrong implementation may have changed the inputs, and its reset is not trusted
        except Exception as error:
            fault = classify(error, job.phase)
            if fault.status != "unsupported":
                detail = clip(traceback.format_exc())
                problem.redraw()  # it may have changed the inputs
            error.__traceback__ = None  # its frames hold the case's tensors
        job.metrics["wall_s"] = time.perf_counter() - started
        return job.row(fault, detail), fault

    def _with_traceback(self, row: Row) -> Row:
        """Write the traceback into a file of the case, where people find it, if that is possible."""
        if self._files is not None and row.detail:
            path = self._files / row.case.key / ERROR
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(row.detail, encoding="utf-8")
                return replace(row, files=(*row.files, str(path)))
        return row

    def _left_bytes(self) -> int:
        """Return the bytes of GPU memory that earlier cases still hold; 0 on a CPU, where it is not known."""
        if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
            return 0
        return torch.cuda.memory_allocated() - (self._problem.input_bytes if self._problem else 0)

    def _end_other_problem(self, case: CaseRecord) -> None:
        if self._problem is not None and self._problem.name != case.problem:
            self._end_problem()

    def _end_problem(self) -> None:
        """Free what the cases of the problem shared, and what was compiled for them."""
        self._problem = None
        forget_compiled()
        tidy()


def forget_compiled() -> None:
    """Forget what torch.compile has made in this process. If it has made nothing, do not import Inductor for that."""
    if (frames := sys.modules.get("torch._dynamo.convert_frame")) and frames.FRAME_COUNTER:
        torch._dynamo.reset()


def tidy() -> None:
    """Free what a case held, so that the next case finds the process and the GPU as this one did.

    Objects that survive a collection after imports belong to modules: 300,000 of them are torch's, and each later
    collection would spend a tenth of a second on them. gc.freeze leaves them out.
    """
    global _modules_frozen
    gc.collect()
    if len(sys.modules) > _modules_frozen:
        gc.freeze()
        _modules_frozen = len(sys.modules)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        held = torch.cuda.memory_reserved()
        torch.cuda.empty_cache()
        time.sleep((held - torch.cuda.memory_reserved()) / WIPED_BYTES_S)


def warm_up(device: str, like: CaseRecord | None = None) -> None:
    """Do early what a process does once, which takes seconds on a GPU. Raises nothing.

    The measurements of ``like`` also measure what they need to know of the machine; None: the parent sends that.
    """
    with contextlib.suppress(Exception):  # the first case will tell
        importlib.import_module(f"runner.timing.{device}").warm_up()
        for measure in Problem(like).measures if like else ():
            if prepare := getattr(measure, "prepare", None):
                prepare(device)


def calibrations() -> Mapping[str, float]:
    """Return what this process has measured of its instruments."""
    module = sys.modules.get(CALIBRATION)
    return module.known if module else {}


def recall(found: Mapping[str, float]) -> None:
    """Take over the ``calibrations`` of another process of this run on the same GPU."""
    importlib.import_module(CALIBRATION).known.update(found)


def left_running() -> list[int]:
    """Return the live children of this process, without Inductor's. There are none where there is no /proc.

    A process that has left its parent is not among them. It is killed when the worker ends.
    """
    commands = {pid: or_none(Path(f"/proc/{pid}/cmdline").read_bytes) for pid in processes.children(os.getpid())}
    return [pid for pid, command in commands.items() if command and not INDUCTOR.search(command)]  # b"": it has ended
