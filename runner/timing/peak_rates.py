"""Rates that this GPU reaches: copying, reading, and multiplying matrices of each type."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from runner.experiment.case import interpreted
from runner.timing.capture import CaptureError
from runner.timing.instruments import CudaEvents
from runner.timing.preparation import preparation
from runner.timing.statistics import trimmed_mean

if TYPE_CHECKING:
    from runner.timing.timestamps import GraphTimestamps

T = TypeVar("T")

CAPTURES, WARMUP, SAMPLES = 2, 4, 20
BUFFER_BYTES = 2**30  # of which a cache of 50 MiB can hide 2 % from a copy, by keeping what was written last
LEAST_OVER_L2 = 4  # a buffer smaller than this many caches says nothing of the memory
SIZES = {  # square matrices
    "float8_e4m3fn": 8192,
    "float16": 8192,
    "bfloat16": 8192,
    "tf32": 8192,
    "float32": 4096,
    "float64": 2048,
}
LONGEST_US = 10_000.0  # of one product; where it would take longer, the matrices are smaller
TENSOR_CORES_32 = (8, 0)  # the compute capability from which on there are tf32 and bfloat16


def bandwidths() -> tuple[float, float]:
    """Return the rates of a copy and of a reduction, in 1e9 bytes per second.

    The copy changes the sign, so that it is a kernel: a plain one is a copy node in a graph, which on an H100 reaches
    2450 where kernels, in a graph or not, reach 3040.
    """
    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size

    def attempt(size_bytes: int) -> tuple[float, float]:
        source = _normal(size_bytes // 4, dtype=torch.float32)
        copy, most = torch.empty_like(source), torch.empty((), device="cuda")
        copied_us = trimmed_mean(_times_us(lambda: torch.neg(source, out=copy)))
        read_us = trimmed_mean(_times_us(lambda: torch.amax(source, dim=0, out=most)))
        return 2 * source.nbytes / copied_us / 1e3, source.nbytes / read_us / 1e3

    torch.cuda.empty_cache()  # what torch merely keeps for later is free too
    size_bytes, least_bytes = min(BUFFER_BYTES, torch.cuda.mem_get_info()[0] // 4), LEAST_OVER_L2 * l2_bytes
    if size_bytes < least_bytes:
        raise torch.cuda.OutOfMemoryError(f"a measured_peak takes {4 * least_bytes / 2**20:.0f} MiB of free memory")
    return _shrinking(size_bytes, least_bytes, attempt)


def products() -> dict[str, float]:
    """By type, without those that this GPU or its library does not know."""
    old = torch.cuda.get_device_capability() < TENSOR_CORES_32  # torch takes these types, and does something else
    rates = {}
    for name in SIZES:
        if old and name in ("bfloat16", "tf32"):
            continue
        with _float32_products("high" if name == "tf32" else "highest"):
            try:
                rates[name] = _product_tflops(name, _normal, trimmed_mean)
            except torch.cuda.OutOfMemoryError:
                raise
            except RuntimeError:
                continue
    return rates


def ceiling(tflops: Mapping[str, float]) -> float:
    """The fastest sample of zeros in 16 bits, or whatever was faster in ``tflops``; float8 has one of its own.

    float16 is summed in float16, which is twice as fast on GPUs made for graphics, and open to any kernel.
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
    """Rate of square matrices as large as ``SIZES`` says, or as ``LONGEST_US`` and the memory allow."""
    dtype = getattr(torch, {"tf32": "float32", "float8_e4m3fn": "float16"}.get(name, name))

    def product(size: int) -> Callable[[], object]:
        a, b = (make(size, size, dtype=dtype, device="cuda") for _ in range(2))
        if name == "float8_e4m3fn":
            a, b, one = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t(), torch.ones((), device="cuda")
            return lambda: torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
        c = torch.empty_like(a)
        return lambda: torch.mm(a, b, out=c)

    def attempt(size: int) -> float:
        return 2 * size**3 / of(_times_us(product(size))) / 1e6

    size = SIZES[name]
    probe = size // 4
    expected_us = _roughly_us(product(probe)) * (size / probe) ** 3
    while expected_us > LONGEST_US and size > probe:
        size, expected_us = size // 2, expected_us / 8
    return _shrinking(size, probe, attempt)


def _normal(*shape: int, dtype: torch.dtype, device: str = "cuda") -> Tensor:
    """Normal numbers that leave torch's own generator as it was."""
    return torch.randn(*shape, dtype=dtype, device=device, generator=torch.Generator(device).manual_seed(0))


def _times_us(call: Callable[[], object]) -> list[float]:
    """Samples of ``call`` with the L2 cache cold, by the best instrument there is."""
    instrument = _instrument(call)
    instrument.samples(WARMUP)
    return instrument.samples(SAMPLES)


def _instrument(call: Callable[[], object]) -> GraphTimestamps | CudaEvents:
    """Timestamps in graphs; events where Triton is missing or interpreted, or no graph can be had."""
    before = preparation(None, cold_l2=True)
    if interpreted():
        return CudaEvents(call, before)
    try:
        from runner.timing.timestamps import GraphTimestamps
    except ImportError:
        return CudaEvents(call, before)
    try:
        return GraphTimestamps(call, before, captures=CAPTURES, constant_us=0.0)
    except CaptureError:
        return CudaEvents(call, before)


def _roughly_us(call: Callable[[], object], calls: int = 3) -> float:
    """Return the rough time of ``call`` by the host's clock, after a first call that loads what it needs."""
    call()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(calls):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / calls * 1e6


def _shrinking(size: int, least: int, attempt: Callable[[int], T]) -> T:
    """``attempt(size)``, or of half of it and so on while memory does not suffice, down to ``least``."""
    while True:
        try:
            return attempt(size)
        except torch.cuda.OutOfMemoryError:
            if size // 2 < least:
                raise
        size //= 2


@contextmanager
def _float32_products(precision: str) -> Iterator[None]:
    """Products of float32 in "highest" (float32) or "high" (tf32) precision, and then as they were before.

    By the one setting that the worker uses: in torch 2.9 and later ``allow_tf32`` beside it makes reading either fail.
    """
    try:
        found = torch.get_float32_matmul_precision()
    except RuntimeError:  # someone has set it in two ways; this is what holds
        found = "high" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "highest"
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(found)
