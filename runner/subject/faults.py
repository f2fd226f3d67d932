"""Turn exceptions into statuses of a case."""

import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ..kernels.unsupported import TRITON_NEEDS_GPU, Unsupported
from ..records.debugging import interpreted
from ..records.figures import figure
from ..records.plain_text import printable
from ..records.redaction import clip
from ..records.row import Phase, Status
from ..timing import ranks
from ..timing.correctness import WrongOutput

OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|Storage size calculation overflowed|CU(BLAS|DNN)_STATUS_ALLOC_FAILED"
)
REQUESTED = re.compile(r"you tried to allocate (\d+) bytes")  # by torch on a CPU
REQUESTED_ON_GPU = re.compile(  # by torch; the amount that it holds already is in the last words
    r"Tried to allocate ([\d.]+ \w+)\. .*capacity of ([\d.]+ \w+) .* ([\d.]+ \w+) is allocated by PyTorch"
)
NO_SUCH_KERNEL = re.compile(  # the last under deterministic_algorithms=true
    r"not implemented for|not supported for|unsupported dtype|does not have a deterministic implementation",
    re.IGNORECASE,
)
NO_DRIVER = re.compile(r"0 active drivers|cannot be accessed from Triton \(cpu tensor\?\)")  # by Triton
NO_GPU = re.compile(  # by torch: without CUDA, without a driver, and by its extensions without a toolkit; and by users
    r"Torch not compiled with CUDA|without ATen_cuda|requires CUDA support|Tried to instantiate dummy base class"
    r"|No CUDA GPUs are available|Found no NVIDIA driver|no NVIDIA GPU|CUDA_HOME environment variable is not set"
    r"|Expected a cuda device, but got: cpu|^assert .*cuda"
)
NO_NETWORK = re.compile(  # exceptions of sockets, urllib, requests, httpx and huggingface_hub
    "ConnectionError|ConnectError|ConnectTimeout|gaierror|URLError|OfflineModeIsEnabled|LocalEntryNotFoundError"
)
LONGEST = 800, 200  # characters of a reason, from its beginning and from its end
COMPILERS = re.compile(r"torch\.(_dynamo|_inductor|utils\.cpp_extension)|triton\.(compiler|runtime\.errors)")


@dataclass(frozen=True)
class Fault:
    """The failure of a case. A spoiled process must not run another case: its CUDA context is lost."""

    status: Status
    reason: str  # one line
    spoiled: bool = False


def without_gpu(error: Exception) -> Unsupported | None:
    """Return ``error`` as a refusal that says what to do if it is raised where there is no GPU; else None."""
    if isinstance(error, Unsupported):
        return error
    if NO_DRIVER.search(str(error)):
        return Unsupported(TRITON_NEEDS_GPU)
    text = " ".join((str(error) or _asserted(error)).split())
    if NO_GPU.search(text) or NO_GPU.search(_asserted(error)):
        reason = printable(clip(f"{type(error).__name__}: {text}", *LONGEST))
        advice = "; leave that line out for debug=interpret" * interpreted()
        return Unsupported(f"it asks for a GPU, and torch sees none here ({reason}){advice}")
    return None


def _asserted(error: BaseException) -> str:
    """Return the first line of the assertion that has failed; "" for another exception."""
    frames = traceback.extract_tb(error.__traceback__) if isinstance(error, AssertionError) else []
    return str(frames[-1].line) if frames else ""


def classify(error: BaseException, phase: Phase) -> Fault:
    """Return the fault behind ``error``, which was raised in ``phase``."""
    message = str(error) or _asserted(error)
    text = next((line.strip() for line in message.splitlines() if line.strip()), "")
    name = type(error).__name__  # may have several lines, if the case has made the class
    reason = printable(clip(f"{name}: {text}" if text else name, *LONGEST))
    if isinstance(error, WrongOutput):
        return Fault("wrong", message)
    if isinstance(error, Unsupported):
        return Fault("unsupported", printable(clip(text, *LONGEST)) or "unsupported")
    if isinstance(error, Exception) and not torch.cuda.is_available() and (refusal := without_gpu(error)):
        return Fault("unsupported", str(refusal))
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or OUT_OF_MEMORY.search(message):
        if requested := REQUESTED.search(message):
            size = figure(int(requested[1]), "byte")
            reason = f"cannot allocate {size} ({requested[1]} bytes); give smaller sizes"
        elif on_gpu := REQUESTED_ON_GPU.search(message):
            more, whole, held = map(_bytes, on_gpu.groups())
            needed, lacking, has, gpu = (figure(size, "byte") for size in (more + held, more, held, whole))
            is_shared = "Process " in message and more + held < whole
            beside = ", a part of which other processes hold: end them, or" if is_shared else ";"
            reason = f"needs at least {needed} ({more + held} bytes): {lacking} more than the {has} that it has"
            reason += f"; the GPU has {gpu}{beside} give smaller sizes"
        return Fault("oom", reason)
    if "CUDA error" in text or name == "AcceleratorError":
        return Fault("cuda_error", reason, spoiled=True)
    if isinstance(error, ModuleNotFoundError) and phase == "inputs":
        return Fault("unsupported", f"its inputs need the package {error.name}; install it to run this")
    if any(NO_NETWORK.fullmatch(type(cause).__name__) for cause in _causes(error)):
        return Fault("unsupported", f"it needs the network, which cannot be reached here ({reason})")
    if isinstance(error, NotImplementedError) or (isinstance(error, RuntimeError) and NO_SUCH_KERNEL.search(text)):
        return Fault("unsupported", reason)
    if "Default process group has not been initialized" in text and ranks.current.count == 1:
        several = "a file runs on several ranks if one of its functions has a parameter rank or world_size"
        reason = f"{reason.removesuffix('.')}; {several}"
    if "does not require grad and does not have a grad_fn" in text and phase != "measure":  # not in ``bench``
        reason += "; without an optimizer among the inputs a training step begins with module.requires_grad_()"
    # BuildFailed is of kernels/, of any revision.
    by_compiler = COMPILERS.match(type(error).__module__) or name == "BuildFailed"
    if phase == "build" and (by_compiler or isinstance(error, SyntaxError | ImportError | AttributeError)):
        return Fault("build_failed", reason)
    return Fault("error", reason)


def _bytes(size: str) -> int:
    """Return a size as torch writes it, such as 1.50 GiB, in bytes."""
    number, unit = size.split()
    return round(float(number) * 2.0 ** (10 * ["bytes", "KiB", "MiB", "GiB"].index(unit)))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and those that it was raised from, or while handling them, each once."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
