"""Run cases in this process, one at a time, and compare the cases of a problem when all of them are done."""

import contextlib
import gc
import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import torch

from .. import implementations
from ..device import processes
from ..device.files import text_in
from ..device.used_paths import FILES, MODULE
from ..implementations import loader, revisions
from ..records.case import CaseRecord, Scalar
from ..records.paired_rounds import PairedRounds
from ..records.redaction import clip
from ..records.row import ERROR, Phase, Row
from ..subject.faults import Fault, classify
from ..tasks import own_file
from ..timing import clock as time
from ..timing import ranks
from ..timing.cpu import all_threads
from .job import Job
from .problem import ProblemState
from .process_state import computing, read_state
from .used_files import LINKED, UsedFiles

AGAIN = "kernel_runner.worker.again"  # program that runs a case again under a tool
LEFT_BYTES = 2**29  # GPU memory: more than the runner itself keeps between two problems
WIPED_BYTES_S = 3e11  # the driver wipes freed memory: 138 GiB slowed an H200 by 2 % for 0.36 s
# Inductor's processes: the pool that compiles, also for later cases, and the processes that time candidates.
INDUCTOR = re.compile(r"\btorch[./]_inductor[./](compile_worker|\w*autotune\w*)")

# A worker ignores Ctrl-C, so KeyboardInterrupt is raised by the case. Its SystemExit ends the process: ``crashed``.
RAISED = (Exception, KeyboardInterrupt)

_modules_frozen = 0  # modules that were imported when gc.freeze was last called


class Worker:
    """Runs one case at a time, and keeps the state that cases of one problem share until another problem comes."""

    def __init__(self, on_phase: Callable[[Phase], None] = lambda phase: None, files: Path | None = None) -> None:
        """Measurements keep their files in a folder per case in ``files``; None: they keep none."""
        self._on_phase, self._files = on_phase, files
        self._used = UsedFiles()
        self._state = read_state()
        self._changed = ""  # side effects of the paired rounds
        self._threads = all_threads()
        self._problem: ProblemState | None = None

    def run(self, case: CaseRecord) -> tuple[Row, bool]:
        """Return the row of ``case``, and whether this process must not run another case."""
        self._end_other_problem(case)
        problem = self._problem = self._problem or ProblemState(case)
        row, fault = self._row(case, problem)
        # Other ranks do not run the case again: the parent gives it to new processes.
        if fault and fault.status == "oom" and ranks.current.count == 1 and problem.release_caches():
            tidy()
            row, fault = self._row(case, problem)
        before = self._state
        if changed := self._changes():
            row = replace(row, metrics={**row.metrics, "side_effects": changed})
            if row.status == "ok" and self._state.computes_otherwise(before):
                row = _judged_anew(row, problem)
        spoiled = (fault is not None and fault.spoiled) or bool(changed)
        if not spoiled:
            tidy()
            # After an out-of-memory error, a new process may have enough memory for the case.
            spoiled = fault is not None and fault.status == "oom" and self._left_bytes() > LEFT_BYTES
        return self._with_traceback(row), spoiled

    def leftovers(self, case: CaseRecord) -> str:
        """Return the leftovers of earlier cases that prevent running ``case`` in this process, else ""."""
        if self._changed:
            return f"an earlier case has changed {self._changed}"
        threads = all_threads()
        if left := computing(threads - self._threads):
            return f"an earlier case has left threads computing ({', '.join(left)})"
        self._threads = threads
        self._end_other_problem(case)
        if self._problem is not None:
            return ""
        if self._left_bytes() > LEFT_BYTES:
            return "an earlier case has not given back its GPU memory"
        return "an earlier case has left processes running" if left_running() else ""

    def prepare(self, case: CaseRecord) -> dict[str, Scalar]:
        """Compile ``case`` into the caches on disk, and return columns about the compilation; {} if it fails."""
        try:
            return Job(case, ProblemState(case), self._on_phase).compile_only()
        except Exception as error:  # the row of the case reports it
            error.__traceback__ = None
            return {}
        finally:
            self._end_problem()

    def compare(self) -> PairedRounds:
        """Compare the cases of the current problem in paired rounds. Does not raise."""
        try:
            self._on_phase("compare")
            rounds = self._problem.compare() if self._problem else PairedRounds(reason="there is nothing to compare")
        except RAISED as error:
            error.__traceback__ = None
            rounds = PairedRounds(reason=classify(error, "compare").reason)
        self._changed = self._changes()
        if self._changed:
            rounds = PairedRounds(reason=f"no paired rounds: a call has changed {self._changed}")
        self._end_problem()
        return rounds

    def _changes(self) -> str:
        """Return the names of changes in this process since the last call, or since the start; "" without changes."""
        before, self._state = self._state, read_state()
        return ", ".join(self._state.changes_since(before))

    def _row(self, case: CaseRecord, problem: ProblemState) -> tuple[Row, Fault | None]:
        files = self._folder(case)
        job, started = Job(case, problem, self._enter, files, AGAIN), time.perf_counter()
        fault, detail = None, ""
        loader.columns()  # of what an earlier case has left
        self._used.start(case)
        try:
            job.run()
            if job.wrong:
                problem.redraw()  # a wrong implementation may have changed the inputs, and its reset is not trusted
        except RAISED as error:
            fault = classify(error, job.phase)
            if fault.status != "unsupported" or not str(error):  # a bare NotImplementedError says no more than where
                detail = "" if fault.status == "wrong" else clip(traceback.format_exc())
                problem.redraw()  # it may have changed the inputs
            error.__traceback__ = None  # its frames hold the case's tensors
        job.count()
        job.metrics.update(loader.columns())
        job.metrics["wall_s"] = time.perf_counter() - started
        used = self._used.finish()
        # A failure is perhaps by inputs or a reference that the revision has not, but for what its own code lacks.
        lacks = fault is not None and fault.status == "unsupported" and job.phase not in ("inputs", "reference")
        failed = bool(job.wrong or fault) and not lacks
        read = used.keys() - {FILES} if failed else self._used.implementation()
        if shared := _of_worktree(case, read, shared=failed):
            job.metrics["worktree_files"] = ", ".join(shared)
            job.fallback = f"it read {shared[0]} of the working tree, which differs in {case.impl.revision}"
        return replace(job.row(fault, detail), fingerprint=used), fault

    def _folder(self, case: CaseRecord) -> Path | None:
        """Return the folder for files of ``case``, a folder inside it on ranks but the first; None: nothing is kept."""
        folder = self._files and self._files / case.key
        return folder / f"rank{ranks.current.rank}" if folder and ranks.current.rank else folder

    def _enter(self, phase: Phase) -> None:
        self._used.enter(phase)
        self._on_phase(phase)

    def _with_traceback(self, row: Row) -> Row:
        """Write the traceback into a file of the case, if possible."""
        if row.detail and (folder := self._folder(row.case)):
            path = folder / ERROR
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(row.detail, encoding="utf-8")
                return replace(row, files=(*row.files, str(path)))
        return row

    def _left_bytes(self) -> int:
        """Return the bytes of GPU memory that earlier cases still hold; 0 on a CPU, where they are unknown."""
        if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
            return 0
        return torch.cuda.memory_allocated() - (self._problem.input_bytes if self._problem else 0)

    def _end_other_problem(self, case: CaseRecord) -> None:
        if self._problem is not None and self._problem.name != case.problem:
            self._end_problem()

    def _end_problem(self) -> None:
        """Free the state that the cases of the problem shared, and code that was compiled for them."""
        self._problem = None
        loader.forget_tuned()
        if (frames := sys.modules.get("torch._dynamo.convert_frame")) and frames.FRAME_COUNTER:
            torch._dynamo.reset()  # it imports Inductor, also if nothing was compiled
        tidy()


def _judged_anew(row: Row, problem: ProblemState) -> Row:
    """Return ``row`` as a fresh process judges it, since this process does not compute with torch's own kernels."""
    from .judge_anew import judge_anew

    if (call := problem.call_of(row.case)) is None:
        return row
    try:
        if ranks.current.count > 1:
            raise RuntimeError("that process would be alone, without the other ranks")
        call.restore()
        anew = judge_anew(row.case, call.run(), AGAIN)
        note = "judged again in a fresh process"
    except Exception as error:
        anew = {"columns": {"correct": None}, "wrong": ""}
        note = f"right or wrong is unknown, since judging it again in a fresh process failed: {error}"
    side_effects = f"{row.metrics['side_effects']}; {note}"
    correct = anew["columns"]["correct"] or None
    row = replace(row, metrics={**row.metrics, **anew["columns"], "correct": correct, "side_effects": side_effects})
    return row.found_wrong(anew["wrong"]) if anew["wrong"] else row


def _of_worktree(case: CaseRecord, used: Iterable[str], *, shared: bool = False) -> list[str]:
    """Return the paths of the working tree that a case of a git revision has ``used`` and that differ in the revision.

    Inputs and reference come from the working tree, so what belongs to them counts only if ``shared``.
    """
    place = implementations.build(case.impl).revised() if case.impl.commit else None
    if place is None:
        return []
    snapshot = revisions.snapshot(str(case.impl.fields["rev"]), place)

    def counts(path: str) -> bool:
        if path != case.own_file:
            return shared or not path.startswith((*LINKED,))
        return shared and own_file.differs(Path(path), snapshot.place(Path(path)), own_file.PARTS)

    changed = [path for path in sorted(used) if snapshot.differs(path) and counts(path)]
    return [os.path.relpath(path.removesuffix(MODULE), snapshot.worktree) for path in changed]


def tidy() -> None:
    """Free the memory of a case, so that the next case finds the process and the GPU as this case did.

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


def warm_up_process(device: str, like: CaseRecord | None = None) -> None:
    """Warm up CUDA, CUPTI and OpenMP, which takes seconds on a GPU, and calibrate for ``like``. Does not raise."""
    with contextlib.suppress(Exception):  # the first case reports it
        importlib.import_module(f"..timing.{device}", __package__).warm_up()
        for measure in ProblemState(like).measures if like else ():
            if prepare := getattr(measure, "prepare", None):
                prepare(device)


def left_running() -> list[int]:
    """Return the live children of this process, without Inductor's; [] without /proc.

    A process that has left its parent is missing. It is killed when the worker ends.
    """
    commands = {pid: text_in(f"/proc/{pid}/cmdline") for pid in processes.children(os.getpid())}
    return [pid for pid, command in commands.items() if command and not INDUCTOR.search(command)]  # "": it has ended
