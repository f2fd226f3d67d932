"""Cases → rows, in this process, and the cases of one problem side by side when each has its own."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from runner.device import processes as children
from runner.device import tools
from runner.experiment.case import CaseRecord, Scalar
from runner.experiment.results import ERROR, Comparison, Phase, Row, kept
from runner.worker.check import Fault, classify
from runner.worker.job import Job
from runner.worker.problem import Problem

LEFT_BYTES = 2**29  # which no instrument of ours takes; more of it was left by a case
WIPED_BYTES_S = 3e11  # a driver wipes memory that it gets back: 138 GiB kept an H200 2 % slower for 0.36 s
CALIBRATION = "runner.timing.calibration"  # imports Triton, so not before it is needed

_modules_frozen = 0  # how many had been imported when they were last frozen


class Worker:
    """Runs one case at a time; keeps what the cases of one problem share until a case of another problem comes."""

    def __init__(self, on_phase: Callable[[Phase], None] = lambda phase: None, files: Path | None = None) -> None:
        """``files``: where measurements may keep some, in a folder for each case; None: nowhere."""
        self._on_phase, self._files = on_phase, files
        self._settings = settings()
        self._problem: Problem | None = None

    def run(self, case: CaseRecord) -> tuple[Row, bool]:
        """The row of ``case``, and whether this process is spoiled by it. Raises nothing of the implementation's."""
        self._leave_other(case)
        if self._problem is None:
            self._problem = Problem(case)
        row, fault = self._row(case, self._problem)
        if fault is not None and fault.status == "oom" and self._problem.holds_much:
            self._problem.release_caches()
            tidy()
            row, fault = self._row(case, self._problem)
        spoiled = (fault is not None and fault.spoiled) or settings() != self._settings or busy_threads()
        if not spoiled:
            tidy()
        if fault is not None and fault.status == "oom":
            spoiled = self._left_bytes() > LEFT_BYTES  # a process of its own may have room for it
        return self._with_traceback(row), spoiled

    def leftovers(self, case: CaseRecord) -> str:
        """What earlier problems have left in this process, if it is too much for ``case``; asked before that is run."""
        self._leave_other(case)
        if self._problem is not None:
            return ""
        if self._left_bytes() > LEFT_BYTES:
            return "an earlier case has not given back its GPU memory"
        return "an earlier case has left processes running" if left_running() else ""

    def prepare(self, case: CaseRecord) -> dict[str, Scalar]:
        """Compile what ``case`` will want to find in the caches on disk; what that took. Raises nothing."""
        try:
            return Job(case, Problem(case), self._on_phase).compile_only()
        except Exception as error:  # its own worker will say what is wrong with it
            error.__traceback__ = None
            return {}
        finally:
            self._leave()

    def compare(self) -> Comparison:
        """The cases since the last change of problem, side by side. Raises nothing."""
        try:
            self._on_phase("compare")
            return self._problem.compare() if self._problem else Comparison(reason="there is nothing to compare")
        except Exception as error:
            error.__traceback__ = None
            return Comparison(reason=classify(error, "compare").reason)
        finally:
            self._leave()

    def _row(self, case: CaseRecord, problem: Problem) -> tuple[Row, Fault | None]:
        files = None if self._files is None else self._files / case.key
        job, started = Job(case, problem, self._on_phase, files), time.perf_counter()
        fault, detail = None, ""
        try:
            job.run()
            if job.wrong:
                problem.redraw()  # one that is wrong may have changed the inputs, and is not asked to put them back
        except Exception as error:
            fault = classify(error, job.phase)
            if fault.status != "unsupported":
                detail = kept(traceback.format_exc())
                problem.redraw()  # who knows what it has done to the inputs
            error.__traceback__ = None  # its frames hold the case's tensors
        job.metrics["wall_s"] = time.perf_counter() - started
        try:
            return job.row(fault, detail), fault
        except ValueError as error:  # a measurement that returns what it may not
            return Row(case=case, status="error", reason=f"ValueError: {error}", phase=job.phase), fault

    def _with_traceback(self, row: Row) -> Row:
        """``row``, with what it raised in a file too, for people: in the journal it is one line of many."""
        if self._files is None or not row.detail:
            return row
        path = self._files / row.case.key / ERROR
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(row.detail, encoding="utf-8")
        except OSError:  # the row has it
            return row
        return replace(row, files=(*row.files, str(path)))

    def _left_bytes(self) -> int:
        """Return the bytes of GPU memory that earlier cases still hold; 0 on a CPU, where it is not known."""
        if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
            return 0
        held = self._problem.input_bytes if self._problem else 0
        return torch.cuda.memory_allocated() - held

    def _leave_other(self, case: CaseRecord) -> None:
        if self._problem is not None and self._problem.name != case.problem:
            self._leave()

    def _leave(self) -> None:
        """No case of this problem will come again, so nothing compiled for it is needed either."""
        self._problem = None
        forget_compiled()
        tidy()


def settings() -> tuple[object, ...]:
    """What an implementation may change for all that run after it in this process, and nothing of ours does.

    Read after each case, in 4 us; none of it starts CUDA. Raises nothing.
    """
    return (
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_anomaly_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
        torch._C._len_torch_function_stack(),  # modes that were entered and not left
        torch._C._len_torch_dispatch_stack(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.enabled,
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.deterministic,
        _cudnn_tf32(),
        torch._C._get_mkldnn_enabled(),
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        _folder(),
    )


def _cudnn_tf32() -> bool | None:
    """Whether convolutions and RNNs use TF32; None if a case has set the two apart: from 2.9 on torch then raises."""
    with contextlib.suppress(RuntimeError):
        return torch.backends.cudnn.allow_tf32
    return None


def _folder() -> str:
    """That paths of later cases are seen from."""
    with contextlib.suppress(OSError):  # it has been removed meanwhile
        return os.getcwd()
    return ""


def forget_compiled() -> None:
    """What torch.compile has made in this process. Where it has made nothing, to forget it would import Inductor."""
    if (frames := sys.modules.get("torch._dynamo.convert_frame")) and frames.FRAME_COUNTER:
        torch._dynamo.reset()


def tidy() -> None:
    """Give back what a case held, so that the next one finds the process and the GPU as this one did.

    What is left after a collection that followed imports is modules: 300,000 objects of torch's, which each later
    collection would walk again for a tenth of a second. Frozen, they are left out.
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
    """What a process does once, and takes seconds on a GPU: done before there is a case. Raises nothing.

    With what cases ``like`` one will want to know of the machine; None: an earlier process hands that over.
    """
    with contextlib.suppress(Exception):  # the first case will tell
        importlib.import_module(f"runner.timing.{device}").warm_up()
        for measure in Problem(like).measures if like else ():
            if prepare := getattr(measure, "prepare", None):
                prepare(device)


def calibrations() -> Mapping[str, float]:
    """What this process has found out of its instruments."""
    module = sys.modules.get(CALIBRATION)
    return module.known() if module else {}


def recall(found: Mapping[str, float]) -> None:
    """Another process of this run, on the same GPU, has found this out."""
    importlib.import_module(CALIBRATION).recall(found)


# Inductor's own: its pool, which compiles for later cases too, and the processes in which it tries what is fastest.
INDUCTOR = re.compile(rb"\btorch[./]_inductor[./](compile_worker|\w*autotune\w*)")

LOOK_S, BUSY = 0.005, 0.25  # how long threads are watched, and the share of it beyond which one works


def busy_threads() -> bool:
    """Whether a thread of Python's that is not the main one works; False at once where there is none.

    Those of Inductor, of a progress bar or of a pool wait. False where there is no Linux.
    """
    others = [one.native_id for one in threading.enumerate() if one is not threading.main_thread() and one.native_id]
    if not others:
        return False
    before = {thread: _ran_ns(thread) for thread in others}
    time.sleep(LOOK_S)
    return any(_ran_ns(thread) - ran_ns > BUSY * LOOK_S * 1e9 for thread, ran_ns in before.items())


def _ran_ns(thread: int) -> int:
    """On a CPU, so far."""
    try:
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):  # it has ended, or this kernel does not count
        return 0


def left_running() -> list[int]:
    """Live children of this process that neither torch nor the runner has started; none where there is no Linux.

    One that has left its parent is not among them: it is found when the worker ends.
    """
    inductor = sys.modules.get("torch._inductor.config")
    if getattr(inductor, "worker_start_method", "subprocess") != "subprocess":
        return []  # forked, its pool looks as any other child does
    me = _command("self")
    return [pid for pid in children.children(os.getpid()) if _is_left(pid, me)]


def _is_left(pid: int, me: bytes) -> bool:
    command = _command(str(pid))
    if not command:  # it has ended, and nobody has waited for it
        return False
    if command == me:  # forked; the modules that a worker is started with are named in it too
        return True
    return not INDUCTOR.search(command) and tools.owner(pid) is None


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
