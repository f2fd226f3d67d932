"""Rates that this GPU reaches: copying, reading, and multiplying matrices of each type."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
from torch import Tensor

from runner.experiment.case import interpreted
from runner.timing.call import Instrument
from runner.timing.capture import CaptureError
from runner.timing.instruments import CudaEvents
from runner.timing.preparation import preparation
from runner.timing.statistics import trimmed_mean
from runner.timing.timestamps import GraphTimestamps

T = TypeVar("T")

CAPTURES, WARMUP, SAMPLES = 2, 4, 20
BUFFER_BYTES = 2**30  # an L2 cache of 50 MiB hides 2 % of it from a copy, since it keeps what was written last
LEAST_OVER_L2 = 4  # smallest buffer, in sizes of the L2 cache, that shows the rate of the memory
SIZES = {  # square matrices
    "float8_e4m3fn": 8192,
    "float16": 8192,
    "bfloat16": 8192,
    "tf32": 8192,
    "float32": 4096,
    "float64": 2048,
}
LONGEST_US = 10_000.0  # of one product; matrices are smaller if it would take longer
TENSOR_CORES_32 = (8, 0)  # lowest compute capability with tf32 and bfloat16


def measure() -> dict[str, Any]:
    """Return ``copy_gbps``, ``read_gbps``, ``tflops`` by type, and ``ceiling_tflops``."""
    copy_gbps, read_gbps = bandwidths()
    tflops = products()
    return {"copy_gbps": copy_gbps, "read_gbps": read_gbps, "tflops": tflops, "ceiling_tflops": ceiling(tflops)}


def bandwidths() -> tuple[float, float]:
    """Return the rates of a copy and of a reduction, in 1e9 bytes per second.

    The copy changes the sign, so that it is a kernel. A plain copy is a copy node in a graph, which reaches 2450 on an
    H100, whereas kernels reach 3040.
    """
    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size

    def attempt(size_bytes: int) -> tuple[float, float]:
        source = normal(size_bytes // 4, dtype=torch.float32)
        copy, most = torch.empty_like(source), torch.empty((), device="cuda")
        copied_us = trimmed_mean(times_us(lambda: torch.neg(source, out=copy)))
        read_us = trimmed_mean(times_us(lambda: torch.amax(source, dim=0, out=most)))
        return 2 * source.nbytes / copied_us / 1e3, source.nbytes / read_us / 1e3

    torch.cuda.empty_cache()  # count memory that torch keeps for reuse as free
    size_bytes, least_bytes = min(BUFFER_BYTES, torch.cuda.mem_get_info()[0] // 4), LEAST_OVER_L2 * l2_bytes
    if size_bytes < least_bytes:
        raise torch.cuda.OutOfMemoryError(f"the measured peak takes {4 * least_bytes / 2**20:.0f} MiB of free memory")
    return shrinking(size_bytes, least_bytes, attempt)


def products() -> dict[str, float]:
    """Return the rate of matrix products by type, without types that this GPU or its library does not support."""
    old = torch.cuda.get_device_capability() < TENSOR_CORES_32  # torch accepts both types and computes in another
    rates = {}
    for name in SIZES:
        if old and name in ("bfloat16", "tf32"):
            continue
        with float32_precision("high" if name == "tf32" else "highest"):
            try:
                rates[name] = _product_tflops(name, normal, trimmed_mean)
            except torch.cuda.OutOfMemoryError:
                raise
            except RuntimeError:
                continue
    return rates


def ceiling(tflops: Mapping[str, float]) -> float:
    """Return the rate of the fastest sample of zeros in 16 bits, or a faster one in ``tflops`` other than float8.

    float16 is accumulated in float16, which is twice as fast on GPUs made for graphics, and which any kernel may do.
    """
    matmul = torch.backends.cuda.matmul
    narrow = getattr(matmul, "allow_fp16_accumulation", None)  # torch 2.7 and later
    try:
        if narrow is not None:
            matmul.allow_fp16_accumulation = True
        zeros = [_product_tflops(name, torch.zeros, min) for name in ("float16", "bfloat16") if name in tflops]
        return max(*zeros, *(rate for name, rate in tflops.items() if name != "float8_e4m3fn"))
    finally:
        if narrow is not None:
            matmul.allow_fp16_accumulation = narrow


def _product_tflops(name: str, make: Callable[..., Tensor], of: Callable[[Sequence[float]], float]) -> float:
    """Return the rate of square matrices of ``SIZES``, or smaller if ``LONGEST_US`` or the memory require it."""
    dtype = getattr(torch, {"tf32": "float32", "float8_e4m3fn": "float16"}.get(name, name))

    def product(size: int) -> Callable[[], object]:
        a, b = (make(size, size, dtype=dtype, device="cuda") for _ in range(2))
        if name == "float8_e4m3fn":
            a, b, one = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t(), torch.ones((), device="cuda")
            return lambda: torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
        c = torch.empty_like(a)
        return lambda: torch.mm(a, b, out=c)

    def attempt(size: int) -> float:
        return 2 * size**3 / of(times_us(product(size))) / 1e6

    size = SIZES[name]
    probe = size // 4
    expected_us = _roughly_us(product(probe)) * (size / probe) ** 3
    while expected_us > LONGEST_US and size > probe:
        size, expected_us = size // 2, expected_us / 8
    return shrinking(size, probe, attempt)


def normal(*shape: int, dtype: torch.dtype, device: str = "cuda") -> Tensor:
    """Return normal numbers without a change of torch's own generator."""
    return torch.randn(*shape, dtype=dtype, device=device, generator=torch.Generator(device).manual_seed(0))


def times_us(call: Callable[[], object]) -> list[float]:
    """Sample ``call`` with a cold L2 cache, by timestamps in graphs, or by events if there are none."""
    before = preparation(None, cold_l2=True)
    instrument: Instrument | None = None
    if not interpreted():
        with suppress(CaptureError):
            instrument = GraphTimestamps(call, before, captures=CAPTURES, constant_us=0.0)
    instrument = instrument or CudaEvents(call, before)
    instrument.samples(WARMUP)
    return instrument.samples(SAMPLES)


def _roughly_us(call: Callable[[], object], calls: int = 3) -> float:
    """Return the rough time of ``call`` by the host's clock, after a first call that may load something."""
    call()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(calls):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / calls * 1e6


def shrinking(size: int, least: int, attempt: Callable[[int], T]) -> T:
    """Return ``attempt(size)``; while memory does not suffice, halve ``size``, down to ``least``."""
    while True:
        try:
            return attempt(size)
        except torch.cuda.OutOfMemoryError:
            if size // 2 < least:
                raise
        size //= 2


@contextmanager
def float32_precision(precision: str) -> Iterator[None]:
    """Multiply float32 in "highest" (float32) or "high" (tf32) precision inside, and as before afterwards.

    This is the setting that the worker uses. Since torch 2.9, reading it raises if ``allow_tf32`` was set too.
    """
    try:
        found = torch.get_float32_matmul_precision()
    except RuntimeError:
        found = "high" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "highest"
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(found)
