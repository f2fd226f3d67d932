"""Peak rates of this GPU, measured and from data sheets, and a call's time compared with them.

Data-sheet rates hold at a clock that a GPU under load does not keep: an H100 multiplies bfloat16 matrices at 79 % of
its data sheet, and copies at 91 %. The measured peak is the rate of torch's simplest kernels and the vendor's matrix
products on this GPU, with the same pauses between calls as in any measurement.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..device.cache import cache_file, read_record, write_record
from ..device.identity import identity
from ..records.case import Scalar
from ..records.debugging import interpreted
from ..records.replaced import replaced, setting
from . import calibration, ranks
from .call import Work
from .capture import CaptureError, per_gpu
from .instrument import Instrument
from .instruments import CudaEvents
from .preparation import preparation
from .statistics import trimmed_mean
from .timestamps import GraphTimestamps

FORMAT = 4  # format of the file and the measurement; a new number measures again
SURE = 0.9  # share of the shortest time: rates are known to a few percent, and filling is up to 3 % faster than reading
NARROWER = {"float8_e4m3fn": 2.0}  # rate over the rate of 16 bits, on tensor cores that have the type
PLAUSIBLE = 0.5  # share of the data sheet's bandwidth; with less, another process used the GPU: the peak is not kept


@dataclass(frozen=True)
class MeasuredPeak:
    """Measured rates of one GPU."""

    gpu: str
    copy_gbps: float  # 1e9 bytes per second, read and written, of a kernel that copies memory
    read_gbps: float
    tflops: Mapping[str, float]  # type or tf32 → 1e12 operations per second, product of normal numbers
    ceiling_tflops: float  # fastest product of zeros in 16 bits or more, which the power limit affects least
    copies_us: Mapping[str, Sequence[Sequence[float]]]  # "cold" or "warm" L2 → bytes read and written, us of that copy
    taken: str  # ISO date

    def copy_us(self, size_bytes: float, *, cold_l2: bool) -> float:
        """Return the time of a copy that reads and writes ``size_bytes`` in total, between the measured sizes."""
        sizes, times = zip(*self.copies_us["cold" if cold_l2 else "warm"], strict=True)
        if size_bytes > sizes[-1]:
            return float(times[-1] * size_bytes / sizes[-1])
        return float(np.interp(size_bytes, sizes, times))


def kept_peak() -> MeasuredPeak | None:
    """Return the peak of the current GPU from the user's cache folder; None if it is not there."""
    record = read_record(cache_file("measured_peak", identity(), FORMAT))
    return None if record is None else MeasuredPeak(**record["measured_peak"])


@per_gpu
@ranks.alone()
def measured_peak() -> MeasuredPeak:
    """Return the peak of the current GPU from the user's cache folder, or measure it in one or two seconds and keep it.

    It is kept as long as ``identity()`` stays the same. After a change of the power limit or clock, delete the file.

    Raises:
        torch.cuda.OutOfMemoryError: less than about 1 GiB of memory is free.

    """
    if (kept := kept_peak()) is not None:
        return kept
    facts = identity()
    path = cache_file("measured_peak", facts, FORMAT)
    try:
        peak = measure(facts["gpu"])
    finally:
        torch.cuda.empty_cache()
    sheet = peaks(peak.gpu)
    if sheet is None or peak.copy_gbps > PLAUSIBLE * sheet.gbps:
        write_record(path, {"identity": facts, "measured_peak": asdict(peak)})
    return peak


def columns(work: Work, time_us: float, measured: MeasuredPeak, l2_bytes: int, cold_l2: bool) -> dict[str, Scalar]:
    """Compare ``time_us`` of a call that does ``work`` with the measured rates. Unknown figures are left out.

    ``intensity``: operations per byte. ``bound``: "memory" or "compute", whichever takes longer at the measured peak.
    ``pct_of_measured_peak``: the time of a copy of as many bytes, timed in the same way, or that of the operations if
    longer, over ``time_us``; the copy alone if the rate of operations is unknown. So what the L2 cache keeps of the
    results counts on both sides. More than 100 % is possible with a cheaper type: a correct float32 product from three
    float16 products is several times faster than float32. Far less is normal for calls that must move more than
    ``bytes_min``, and for products below 10 us. ``pct_datasheet``: likewise, by the rates of the data sheet, which
    writes that stay in the L2 cache can pass.

    ``fastest_possible_us``: no correct result is faster. It is computed with the fastest type, and too low rather than
    too high. Only types below 16 bits could be faster, which fail the check of a wider type unless the data are zeros;
    or Strassen's algorithm, which saves 1/8 per level, at 97 % of the ceiling or with two levels. Without ``cold_l2``,
    memory does not limit; with it, the last ``l2_bytes`` may stay in the cache.
    """
    result: dict[str, Scalar] = {}
    compute_us, memory_us = _compute_us(work, measured.tflops), _transfer_us(work.bytes_min, measured.copy_gbps)
    if work.bytes_min > 0:
        result["intensity"] = work.flops / work.bytes_min
    if compute_us is not None:
        result["bound"] = "compute" if compute_us > memory_us else "memory"
    if time_us > 0:
        copy_us = measured.copy_us(work.bytes_min, cold_l2=cold_l2) if work.bytes_min else 0.0
        result["pct_of_measured_peak"] = 100 * max(copy_us, compute_us or 0.0) / time_us
        if (sheet := peaks(measured.gpu)) is not None:
            ideal_us = max(_transfer_us(work.bytes_min, sheet.gbps), _compute_us(work, sheet.tflops) or 0.0)
            result["pct_datasheet"] = 100 * ideal_us / time_us
    from_memory_bytes = max(0, work.bytes_min - l2_bytes) if cold_l2 else 0
    fastest_possible_us = max(
        work.flops / (measured.ceiling_tflops * NARROWER.get(work.dtype, 1.0)) / 1e6,
        _transfer_us(from_memory_bytes, max(measured.copy_gbps, measured.read_gbps)),
    )
    return result | ({"fastest_possible_us": SURE * fastest_possible_us} if fastest_possible_us > 0 else {})


def _compute_us(work: Work, tflops: Mapping[str, float]) -> float | None:
    """Return the time of the operations of ``work`` at the rate of its type; None if the rate is unknown."""
    tf32 = work.dtype == "float32" and work.tf32 and "tf32" in tflops  # GPUs without tf32 ignore the setting
    rate = tflops.get("tf32" if tf32 else work.dtype)
    return None if rate is None else work.flops / rate / 1e6


def _transfer_us(size_bytes: float, gbps: float) -> float:
    return size_bytes / gbps / 1e3


CAPTURES, WARMUP, SAMPLES = 2, 4, 20
BUFFER_BYTES = 2**30  # an L2 cache of 50 MiB hides 2 % of it, since it keeps the last data written
COPIES = [2**power for power in (12, 14, 16, 18, *range(20, 32))]  # bytes
LEAST_OVER_L2 = 4  # smallest buffer that shows the rate of the memory, in sizes of the L2 cache
# Square matrices.
SIZES = {"float8_e4m3fn": 8192, "float16": 8192, "bfloat16": 8192, "tf32": 8192, "float32": 4096, "float64": 2048}
LONGEST_US = 10_000.0  # longest product; matrices become smaller until it is shorter


def measure(gpu: str) -> MeasuredPeak:
    """Measure the rates of the current GPU, named ``gpu``."""
    copy_gbps, read_gbps = bandwidths()
    tflops, today = products(), datetime.now(UTC).date().isoformat()
    copied = {"cold": copies_us(cold_l2=True), "warm": copies_us(cold_l2=False)}
    return MeasuredPeak(gpu, copy_gbps, read_gbps, tflops, ceiling(tflops), copied, today)


def bandwidths() -> tuple[float, float]:
    """Return the rates of a copy and of a reduction, in 1e9 bytes per second.

    The copy changes the sign, so that it is a kernel, which reaches 3040 on an H100. A plain copy becomes a copy node
    of a graph, which reaches 2450.
    """
    torch.cuda.empty_cache()  # so that memory that torch keeps for reuse counts as free
    least_bytes = LEAST_OVER_L2 * torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    size_bytes = min(BUFFER_BYTES, torch.cuda.mem_get_info()[0] // 4)
    if size_bytes < least_bytes:
        raise torch.cuda.OutOfMemoryError(f"the measured peak takes {4 * least_bytes / 2**20:.0f} MiB of free memory")
    source = normal(size_bytes // 4, dtype=torch.float32)
    copy, most = torch.empty_like(source), torch.empty((), device="cuda")
    copied_us = trimmed_mean(times_us(lambda: torch.neg(source, out=copy)))
    read_us = trimmed_mean(times_us(lambda: torch.amax(source, dim=0, out=most)))
    return 2 * source.nbytes / copied_us / 1e3, source.nbytes / read_us / 1e3


def copies_us(*, cold_l2: bool) -> list[list[float]]:
    """Return bytes read and written, and the time of that copy in us, for copies of 4 KiB to 2 GiB.

    On an H100, whose L2 cache keeps the last results, a copy of 128 MiB moves 10 % more bytes per second than one of
    2 GiB.
    """
    most = min(BUFFER_BYTES, torch.cuda.mem_get_info()[0] // 4)
    whole = normal(most // 4, dtype=torch.float32)
    kept = torch.empty_like(whole)
    copied: list[list[float]] = []
    for size_bytes in (size for size in COPIES if size <= 2 * most):
        source, copy = (tensor[: size_bytes // 8] for tensor in (whole, kept))
        us = trimmed_mean(net_times_us(partial(torch.neg, source, out=copy), cold_l2=cold_l2))
        copied.append([float(size_bytes), max(us, copied[-1][1] if copied else 0.0)])  # fewer bytes take no longer
    return copied


def products() -> dict[str, float]:
    """Return the rate of matrix products by type, without types that this GPU or its library does not support."""
    old = torch.cuda.get_device_capability() < (8, 0)  # has neither tf32 nor bfloat16; torch computes in another type
    rates = {}
    for name in SIZES:
        if old and name in ("bfloat16", "tf32"):
            continue
        precision = "high" if name == "tf32" else "highest"
        with setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, precision):
            try:
                rates[name] = _product_tflops(name, normal, trimmed_mean)
            except torch.cuda.OutOfMemoryError:
                raise
            except RuntimeError:
                continue
    return rates


def ceiling(tflops: Mapping[str, float]) -> float:
    """Return the rate of the fastest sample of zeros in 16 bits, or a faster one in ``tflops`` other than float8.

    float16 is accumulated in float16, which any kernel may do, and which is twice as fast on graphics GPUs.
    """
    with ExitStack() as stack:
        if hasattr(torch.backends.cuda.matmul, "allow_fp16_accumulation"):  # torch 2.7 and later
            stack.enter_context(replaced(torch.backends.cuda.matmul, "allow_fp16_accumulation", True))
        zeros = [_product_tflops(name, torch.zeros, min) for name in ("float16", "bfloat16") if name in tflops]
        return max(*zeros, *(rate for name, rate in tflops.items() if name != "float8_e4m3fn"))


def _product_tflops(name: str, make: Callable[..., Tensor], of: Callable[[Sequence[float]], float]) -> float:
    """Return the rate of square matrices of ``SIZES``, or smaller if one product would exceed ``LONGEST_US``."""
    from torch.utils.benchmark import Timer

    dtype = getattr(torch, {"tf32": "float32", "float8_e4m3fn": "float16"}.get(name, name))

    def product(size: int) -> Callable[[], object]:
        a, b = (make(size, size, dtype=dtype, device="cuda") for _ in range(2))
        if name == "float8_e4m3fn":
            a, b, scale = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t(), torch.ones((), device="cuda")
            return lambda: torch._scaled_mm(a, b, scale, scale, out_dtype=torch.bfloat16, use_fast_accum=True)
        c = torch.empty_like(a)
        return lambda: torch.mm(a, b, out=c)

    size = SIZES[name]
    probe = size // 4
    expected_us = Timer("call()", globals={"call": product(probe)}).timeit(3).mean * 1e6 * (size / probe) ** 3
    while expected_us > LONGEST_US and size > probe:
        size, expected_us = size // 2, expected_us / 8
    return 2 * size**3 / of(times_us(product(size))) / 1e6


def normal(*shape: int, dtype: torch.dtype, device: str = "cuda") -> Tensor:
    """Return normal numbers without using torch's global generator."""
    return torch.randn(*shape, dtype=dtype, device=device, generator=torch.Generator(device).manual_seed(0))


def times_us(call: Callable[[], object]) -> list[float]:
    """Return times of ``call`` with a cold L2 cache in us, by timestamps in graphs, else by events."""
    before = preparation(None, cold_l2=True)
    instrument: Instrument | None = None
    if not interpreted():
        with suppress(CaptureError):
            instrument = GraphTimestamps(call, before, captures=CAPTURES, constant_us=0.0)
    instrument = instrument or CudaEvents(call, before)
    instrument.samples(WARMUP)
    return instrument.samples(SAMPLES)


def net_times_us(call: Callable[[], object], *, cold_l2: bool) -> list[float]:
    """Return times of a short ``call`` in us, by timestamps as those of a case: less their offset, which must not move.

    By events, their offset is part of the times.
    """
    before, captures = preparation(None, cold_l2=cold_l2), calibration.CAPTURES
    if interpreted():
        return CudaEvents(call, before).samples(SAMPLES)
    offset_us = partial(calibration.graph_constant_us, cold_l2=cold_l2, captures=captures)
    instrument = GraphTimestamps(call, before, captures=captures, constant_us=offset_us)
    instrument.samples(WARMUP)
    return calibration.undisturbed(lambda: instrument.samples(SAMPLES), [instrument], cold_l2=cold_l2)[0]


@dataclass(frozen=True)
class DatasheetPeaks:
    """Data-sheet rates of one GPU. Types without a published rate are missing."""

    gbps: float  # memory, 1e9 bytes per second
    tflops: Mapping[str, float]  # type, or tf32 → 1e12 operations per second


def peaks(gpu_name: str) -> DatasheetPeaks | None:
    """Return the rates of ``gpu_name``, as ``torch.cuda.get_device_name()`` gives it. None if unknown, or for MIG."""
    return SHEETS.get(gpu_name.removeprefix("NVIDIA ").removeprefix("Tesla "))


# Rates without sparsity. bfloat16 has the rate of float16 where tensor cores have both. GPUs made for graphics have 2
# float64 units for 128 of float32 (CUDA C++ Programming Guide, throughput of native arithmetic instructions, compute
# capability 8.6, 8.9 and 12.0).
TYPES = ("float64", "float32", "tf32", "float16", "bfloat16", "float8_e4m3fn")
with open(Path(__file__).with_name("datasheets.csv"), encoding="utf-8") as _file:
    SHEETS = {
        sheet["gpu"]: DatasheetPeaks(float(sheet["gbps"]), {name: float(sheet[name]) for name in TYPES if sheet[name]})
        for sheet in csv.DictReader(_file)
    }
