"""Compares outputs with the float64 reference, and turns exceptions into statuses."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from runner.experiment.case import Scalar
from runner.experiment.results import Phase, Status, clip
from runner.kernels.unsupported import Unsupported
from runner.models.workload import Expected
from runner.timing import Call

PLAIN = (Tensor, torch.nn.Parameter)  # another subclass may compute its values only when they are read
CHUNK = 2**24  # elements compared at once: temporaries stay near 1 GiB however large the output


@dataclass
class CheckResult:
    """The largest error of each kind over all outputs."""

    max_abs_err: float = 0.0
    max_rel_err: float = 0.0
    err_over_tol: float = 0.0
    tolerance: list[str] = field(default_factory=list)
    compared: bool = True  # False: an output is missing or has another shape, so there is no largest error
    reason: str = ""  # the first output that is wrong, and where its error is largest

    @property
    def correct(self) -> bool:
        """True if no output is wrong."""
        return not self.reason

    def columns(self) -> dict[str, Scalar]:
        """Return the columns of a row. JSON has no infinity: an infinite error is left out."""
        names = ("max_abs_err", "max_rel_err", "err_over_tol") if self.compared else ()
        errors = {name: error for name in names if math.isfinite(error := getattr(self, name))}
        return {"correct": self.correct, **errors, "tolerance": "; ".join(dict.fromkeys(self.tolerance))}


def repeats(call: Call, outputs: Sequence[object]) -> bool:
    """Return whether ``call`` gives the bits of ``outputs`` again, in the first ``CHUNK`` elements of each."""
    before = [_bits(output).clone() for output in outputs if isinstance(output, Tensor)]  # the call may overwrite them
    call.restore()
    after = [_bits(output) for output in call.run() if isinstance(output, Tensor)]
    return len(before) == len(after) and all(map(torch.equal, before, after))


def _bits(output: Tensor) -> Tensor:
    """Return the first elements as bytes. As numbers, NaN differs from itself, and 0 equals -0."""
    return output.detach().reshape(-1)[:CHUNK].contiguous().view(torch.uint8)


def compare(outputs: Sequence[object], expected: Sequence[Expected], dtype: torch.dtype) -> CheckResult:
    """Compare every output with its reference. Equal infinities agree, and so do two NaNs."""
    result = CheckResult(compared=len(outputs) == len(expected))
    if not result.compared:
        result.reason = f"{len(outputs)} outputs where {len(expected)} are expected"
    for output, wanted in zip(outputs, expected, strict=False):
        result.tolerance.append(wanted.tolerance)
        if reason := _misfit(output, wanted.value, dtype):
            result.compared = False
        else:
            reason = _compare(output, wanted, result)  # type: ignore[arg-type]
        result.reason = result.reason or (reason and f"{wanted.name}: {reason}")
    return result


def _misfit(output: object, value: Tensor, dtype: torch.dtype) -> str:
    if not isinstance(output, Tensor) or type(output) not in PLAIN:
        return f"a {type(output).__name__} where a tensor is expected"
    if output.shape != value.shape:
        return f"shape {tuple(output.shape)} where {tuple(value.shape)} is expected"
    if output.dtype != dtype:
        return f"dtype {output.dtype} where {dtype} is expected"
    if output.device != value.device:
        return f"on device {output.device} where {value.device} is expected"
    return ""


def _compare(output: Tensor, wanted: Expected, into: CheckResult) -> str:
    """Add the errors of one output to ``into``. Return where it is wrong; "" if it is correct."""
    wrong, worst, place = 0, -1.0, 0
    flat, reference = output.detach().reshape(-1), wanted.value.reshape(-1)
    atols = wanted.atol.reshape(-1) if isinstance(wanted.atol, Tensor) else None
    for start in range(0, flat.numel(), CHUNK):
        part = slice(start, start + CHUNK)
        y, r = flat[part].double(), reference[part]
        atol = atols[part] if atols is not None else torch.full_like(r, float(wanted.atol))
        same = (y == r) | (y.isnan() & r.isnan())
        error = torch.where(same, 0.0, (y - r).abs().nan_to_num(math.inf, math.inf))
        allowed = atol + wanted.rtol * torch.where(r.isfinite(), r.abs(), 0.0)
        ratio = torch.where(same, 0.0, error / allowed).nan_to_num(math.inf, math.inf)
        top, at = ratio.max(0)
        if top.item() > worst:
            worst, place = top.item(), start + int(at)
        wrong += int((ratio > 1).sum())
        relative = torch.where(r.abs() > atol, error / r.abs(), 0.0).nan_to_num(math.inf, math.inf)
        into.max_abs_err = max(into.max_abs_err, error.max().item())
        into.max_rel_err = max(into.max_rel_err, relative.max().item())
    into.err_over_tol = max(into.err_over_tol, worst)
    if not wrong:
        return ""
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), output.shape))
    got, want = flat[place].item(), reference[place].item()
    return f"{wrong} of {flat.numel()} elements wrong, worst at {index}: got {got:.6g}, want {want:.6g}"


OUT_OF_MEMORY = re.compile(r"out of memory|can't allocate memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED")
NO_SUCH_KERNEL = re.compile(r"not implemented for|not supported for|unsupported dtype", re.IGNORECASE)
LONGEST = 800, 200  # characters of a reason, from its beginning and from its end
COMPILERS = (
    "torch._dynamo",
    "torch._inductor",
    "triton.compiler",
    "triton.runtime.errors",
    "torch.utils.cpp_extension",
    "runner.kernels.cuda_kernel",
)


@dataclass(frozen=True)
class Fault:
    """The failure of a case. A spoiled process must not run another case: its CUDA context is lost."""

    status: Status
    reason: str  # one line
    spoiled: bool = False


def classify(error: BaseException, phase: Phase) -> Fault:
    """Return the fault behind ``error``, which was raised in ``phase``."""
    message = str(error)
    text = next((line.strip() for line in message.splitlines() if line.strip()), "")
    text = "".join(letter if letter.isprintable() else "?" for letter in clip(text, *LONGEST))
    reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, Unsupported):
        return Fault("unsupported", text or "unsupported")
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or OUT_OF_MEMORY.search(message):
        return Fault("oom", reason)
    if "CUDA error" in text or type(error).__name__ == "AcceleratorError":
        return Fault("cuda_error", reason, spoiled=True)
    if isinstance(error, NotImplementedError) or (isinstance(error, RuntimeError) and NO_SUCH_KERNEL.search(text)):
        return Fault("unsupported", reason)
    compiler = type(error).__module__.startswith(COMPILERS)
    if phase == "build" and (compiler or isinstance(error, SyntaxError | ImportError | AttributeError)):
        return Fault("build_failed", reason)
    return Fault("error", reason)
