"""Rows of functions that a program times, like those of a run: cases, statuses, and rounds by their keys."""

from __future__ import annotations

import inspect
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..device.import_path import is_installed
from ..device.used_paths import stamp
from ..records.case import BENCH, CaseRecord, Choice, Scalar
from ..records.paired_rounds import PairedRounds
from ..records.redaction import clip
from ..records.row import Row
from ..records.settings import Settings

if TYPE_CHECKING:
    from ..subject.in_process import Measured
    from ..timing.call import Batches
    from ..timing.timer import Timer

LONGEST = 100  # characters of the arguments in the name of a problem


class Rows:
    """The rows of several functions at one size after the other, with their samples and paired rounds."""

    def __init__(
        self, functions: Mapping[str, Callable[..., Any]], timer: Timer, *, swept: bool, grad: bool, ranks: bool
    ) -> None:
        self.rows: list[Row] = []
        self.samples: dict[str, Sequence[float]] = {}  # in us, by the keys of the cases
        self.rounds: list[PairedRounds] = []
        self.error: Exception | None = None  # the first one
        self.lost = ""  # why no function can be called any more
        self._files = {name: source_file(function) for name, function in functions.items()}
        self._swept, self._grad, self._ranks, self._device = swept, grad, ranks, ""
        self._measure = Choice(BENCH, dict(vars(timer)))

    def add(
        self, size: Any, args: Sequence[Any], device: str, found: Sequence[Measured], rounds: Sequence[Batches]
    ) -> None:
        """Add the rows of the functions of one size. ``device``: "cpu", the name of the GPU, or "" for the last one."""
        self._device = device or self._device
        workload = self._workload(args, size)
        cases = [self._case(workload, name) for name in self._files]
        for case, one in zip(cases, found, strict=True):
            file = self._files[case.impl.name]
            self.rows.append(replace(self._row(case, one, device), fingerprint={file: stamp(file)} if file else {}))
        self.samples |= {case.key: one.samples_us for case, one in zip(cases, found, strict=True)}
        keys = [case.key for case, one in zip(cases, found, strict=True) if one.is_timed]
        if rounds:
            self.rounds.append(PairedRounds.of(dict(zip(keys, rounds, strict=True))))

    def skip(self, size: Any) -> None:
        """Add rows of functions that are not called at ``size``, since an earlier fault has ended the GPU's context."""
        reason = f"not started: {self.lost}"
        cases = [self._case(self._workload((), size), name) for name in self._files]
        self.rows += [Row(case=case, status="skipped", reason=reason, phase="plan") for case in cases]
        self.samples |= {case.key: () for case in cases}

    def _case(self, workload: Choice, name: str) -> CaseRecord:
        settings = Settings("cpu" if self._device in ("", "cpu") else "cuda", 0)
        return CaseRecord(workload, Choice(name, {}), (self._measure,), settings)

    def _workload(self, args: Sequence[Any], size: Any) -> Choice:
        """Return the size, or what the arguments are: ``4096x1024 float32``."""
        fields: dict[str, Scalar] = {"n": scalar(size)} if self._swept else {}
        if self._grad:
            fields["grad"] = True
        if self._ranks:
            import torch.distributed as dist

            fields["ranks"] = dist.get_world_size() if dist.is_initialized() else 1
        return Choice("size" if self._swept else described(args), fields)

    def _row(self, case: CaseRecord, found: Measured, device: str) -> Row:
        if found.error is None:
            from ..timing.statistics import batch_means

            series = {"batches_us": batch_means(found.samples_us)} if found.samples_us else {}
            statuses = (("wrong", found.wrong), ("unsupported", found.refused))
            status, reason = next((pair for pair in statuses if pair[1]), ("ok", ""))
            return Row(case=case, status=status, reason=reason, device=device, metrics=found.columns, series=series)  # type: ignore[arg-type]
        from ..subject.faults import classify

        fault = classify(found.error, "measure")
        self.error = self.error or found.error
        self.lost = self.lost or (fault.reason if fault.spoiled else "")
        detail = clip("".join(traceback.format_exception(found.error)))
        return Row(case=case, status=fault.status, reason=fault.reason, device=device, detail=detail)


def source_file(function: Any) -> str:
    """Return the user's file that defines a function or a module; "" for one of Python, of a package, or of a cell."""
    while isinstance(function, partial):
        function = function.func
    for name in ("_torchdynamo_orig_callable", "_orig_mod", "__wrapped__"):  # by torch.compile, and by decorators
        function = getattr(function, name, function)
    with suppress(TypeError, OSError):
        defined = function if inspect.isroutine(function) or isinstance(function, type) else type(function)
        path = os.path.abspath(inspect.getsourcefile(defined) or "")
        return path if os.path.isfile(path) and not is_installed(path) else ""
    return ""


def scalar(size: Any) -> Scalar:
    """Return ``size`` as a field of a workload has it: a tuple becomes its text."""
    return size if isinstance(size, int | float | str) else str(size)


def described(args: Sequence[Any]) -> str:
    """Return the shapes and types of ``args``, and the values of numbers and words: ``256x512 float32, -1``."""
    text = ", ".join(map(_described, args)) or "call"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(args)} arguments)"


def _described(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{'x'.join(map(str, value.shape)) or 'scalar'} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_described, value))}]"
    if isinstance(value, Mapping):
        return f"[{', '.join(f'{key}: {_described(item)}' for key, item in value.items())}]"
    return str(value) if isinstance(value, bool | int | float | str | None) else type(value).__name__
