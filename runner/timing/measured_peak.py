"""What this very GPU can do, measured once by the instrument that times the calls; and a call's time against it.

The data sheet's figures hold at a clock that a GPU under load does not keep: an H100 multiplies bfloat16 matrices at
79 % of them, and copies at 91 %. The measured peak is the rate that torch's plainest kernels and the vendor's matrix
products reach on this GPU, with the rests between calls that any other call has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

import torch

from runner.device.identity import cache_file, identity, read_record, write_record
from runner.experiment.case import Scalar
from runner.timing import Work, peak_rates

FORMAT = 3  # of the file, and of how its figures are taken: another number measures anew
SURE = 0.9  # of the least time: rates are known to a few per cent, and filling is up to 3 % faster than reading
NARROWER = {"float8_e4m3fn": 2.0}  # times the ceiling of 16 bits, which is that of tensor cores that know such a type
PLAUSIBLE = (
    0.5  # of the data sheet's bandwidth: with less, another process was at work, and the measured_peak is not kept
)


@dataclass(frozen=True)
class MeasuredPeak:
    """Rates of one GPU. Raises ValueError if one of them is not a positive number."""

    gpu: str
    copy_gbps: float  # 1e9 bytes a second from memory to memory by a kernel, read and written both counted
    read_gbps: float
    tflops: Mapping[str, float]  # 1e12 operations a second of a product of normal numbers, by type; tf32 among them
    ceiling_tflops: float  # of the fastest product of 16 bits or more, of zeros: power limits them least
    taken: str  # the day, ISO

    def __post_init__(self) -> None:
        rates = (self.copy_gbps, self.read_gbps, self.ceiling_tflops, *self.tflops.values())
        if not all(0 < rate < math.inf for rate in rates):
            raise ValueError(f"rates of a measured_peak are positive numbers: {rates}")

    def to_record(self) -> dict[str, Any]:
        """The measured_peak as JSON-ready values; ``from_record`` reads it back."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> MeasuredPeak:
        """The inverse of ``to_record``. Raises KeyError, TypeError or ValueError if it is nothing of the kind."""
        return cls(
            gpu=str(record["gpu"]),
            copy_gbps=float(record["copy_gbps"]),
            read_gbps=float(record["read_gbps"]),
            tflops={str(name): float(rate) for name, rate in dict(record["tflops"]).items()},
            ceiling_tflops=float(record["ceiling_tflops"]),
            taken=str(record["taken"]),
        )


@cache
def measured_peak() -> MeasuredPeak:
    """Return the peak of the current GPU from the user's cache folder, or measure it in a second or two and keep it.

    It is kept for as long as ``identity()`` stays the same, so whoever sets another power limit or locks the clock
    deletes the file.

    Raises:
        torch.cuda.OutOfMemoryError: less memory is free than a meaningful copy takes.

    """
    facts = identity()
    path = cache_file("measured_peak", facts, FORMAT)
    if (kept := _kept(read_record(path), facts)) is not None:
        return kept
    try:
        found = _measure(facts["gpu"])
    finally:
        torch.cuda.empty_cache()
    sheet = peaks(found.gpu)
    if sheet is None or found.copy_gbps > PLAUSIBLE * sheet.gbps:
        write_record(path, {"identity": facts, "measured_peak": found.to_record()})
    return found


def columns(work: Work, time_us: float, measured_peak: MeasuredPeak, l2_bytes: int, cold_l2: bool) -> dict[str, Scalar]:
    """Where ``time_us`` of a call that does ``work`` stands; a figure that is not known is left out.

    ``intensity``: operations a byte. ``bound``: "memory" or "compute", which of the two takes the measured_peak longer.
    ``pct_of_measured_peak``, ``pct_datasheet``: that longer time over ``time_us``; memory alone if there is no rate.
    ``fastest_possible_us``: no right result comes sooner. It is meant to be too low rather than too high.

    ``pct_of_measured_peak`` misleads where

    - data stay in the L2 cache, because it is warm or holds what was written last: above 100 % is then no surprise;
    - an implementation moves more than ``bytes_min`` for a good reason, or a call is over before memory is up to
      speed (below some 10 us): far below 100 % is then no fault;
    - operations are done in a cheaper type or by a cleverer algorithm: a float32 product by three float16 ones runs
      at several times the rate of float32 and is right, so ``fastest_possible_us`` takes the fastest type there is;
    - operations are no products of matrices: the rates of tensor cores are not theirs, and ``bound`` says "memory"
      of a call that other units hold up.

    ``fastest_possible_us`` in turn could be beaten by types below 16 bits, which pass no check of a wider type unless
    the data are zeros, and by Strassen's algorithm, which saves 1/8 a level, if it ran at 97 % of the ceiling or had a
    second level.
    Without ``cold_l2`` memory sets no limit; with it, ``l2_bytes`` may still be in the cache when the call is over.
    """
    result: dict[str, Scalar] = {}
    compute_us, memory_us = (
        _compute_us(work, measured_peak.tflops),
        _transfer_us(work.bytes_min, measured_peak.copy_gbps),
    )
    if work.bytes_min > 0:
        result["intensity"] = work.flops / work.bytes_min
    if compute_us is not None:
        result["bound"] = "compute" if compute_us > memory_us else "memory"
    if time_us > 0:
        result["pct_of_measured_peak"] = 100 * max(memory_us, compute_us or 0.0) / time_us
        if (sheet := peaks(measured_peak.gpu)) is not None:
            ideal_us = max(_transfer_us(work.bytes_min, sheet.gbps), _compute_us(work, sheet.tflops) or 0.0)
            result["pct_datasheet"] = 100 * ideal_us / time_us
    from_memory_bytes = max(0, work.bytes_min - l2_bytes) if cold_l2 else 0
    fastest_possible_us = max(
        work.flops / (measured_peak.ceiling_tflops * NARROWER.get(work.dtype, 1.0)) / 1e6,
        _transfer_us(from_memory_bytes, max(measured_peak.copy_gbps, measured_peak.read_gbps)),
    )
    return result | ({"fastest_possible_us": SURE * fastest_possible_us} if fastest_possible_us > 0 else {})


def _compute_us(work: Work, tflops: Mapping[str, float]) -> float | None:
    """Return the time of the operations of ``work`` at the rate of their type; None if the rate is not known."""
    tf32 = work.dtype == "float32" and work.tf32 and "tf32" in tflops  # without such units it has no effect
    rate = tflops.get("tf32" if tf32 else work.dtype)
    return None if rate is None else work.flops / rate / 1e6


def _transfer_us(size_bytes: float, gbps: float) -> float:
    return size_bytes / gbps / 1e3


def _kept(record: Mapping[str, Any] | None, facts: Mapping[str, str]) -> MeasuredPeak | None:
    """The measured_peak in ``record``, if it is one and was taken under ``facts``."""
    try:
        return MeasuredPeak.from_record(record["measured_peak"]) if record and record["identity"] == facts else None
    except (KeyError, TypeError, ValueError):
        return None


def _measure(gpu: str) -> MeasuredPeak:
    copy_gbps, read_gbps = peak_rates.bandwidths()
    tflops = peak_rates.products()
    return MeasuredPeak(
        gpu, copy_gbps, read_gbps, tflops, peak_rates.ceiling(tflops), datetime.now(UTC).date().isoformat()
    )


@dataclass(frozen=True)
class Peaks:
    """Datasheet rates of one GPU. A missing type has no rate of its own, or none that the vendor publishes."""

    gbps: float  # memory, 1e9 bytes a second
    tflops: Mapping[str, float]  # float64, float32, tf32, float16, bfloat16, float8_e4m3fn → 1e12 operations a second


def peaks(gpu_name: str) -> Peaks | None:
    """By the name that ``torch.cuda.get_device_name()`` gives; None for any other, a MIG instance's among them."""
    return PEAKS.get(gpu_name.removeprefix("NVIDIA ").removeprefix("Tesla "))


def _tensor64(gbps: float, float64: float, float32: float, tf32: float, half: float) -> Peaks:
    """A GPU whose tensor cores know float64; ``half`` is the rate of float16 and of bfloat16."""
    return Peaks(gbps, {"float64": float64, "float32": float32, "tf32": tf32, "float16": half, "bfloat16": half})


def _float8(gbps: float, float64: float, float32: float, tf32: float, half: float) -> Peaks:
    """The same with float8, which runs at twice the rate of 16 bits."""
    sheet = _tensor64(gbps, float64, float32, tf32, half)
    return Peaks(gbps, {**sheet.tflops, "float8_e4m3fn": 2 * half})


def _graphics(gbps: float, float32: float, tf32: float, half: float) -> Peaks:
    """A GPU made for graphics: two float64 units a multiprocessor beside 128 of float32.

    CUDA C++ Programming Guide, throughput of native arithmetic instructions, compute capability 8.6, 8.9 and 12.0.
    """
    return _tensor64(gbps, float32 / 64, float32, tf32, half)


# NVIDIA A100 Tensor Core GPU datasheet.
_A100 = (19.5, 19.5, 156.0, 312.0)

# NVIDIA H100 Tensor Core GPU datasheet and NVIDIA H200 Tensor Core GPU datasheet: half of their rates with sparsity.
_H100_SXM = (67.0, 67.0, 494.5, 989.5)

# NVIDIA V100 Tensor Core GPU datasheet, SXM2.
_V100 = Peaks(900.0, {"float64": 7.8, "float32": 15.7, "float16": 125.0})

PEAKS: dict[str, Peaks] = {
    "A100-SXM4-40GB": _tensor64(1555.0, *_A100),
    "A100-SXM4-80GB": _tensor64(2039.0, *_A100),
    "A100-PCIE-40GB": _tensor64(1555.0, *_A100),
    "A100 80GB PCIe": _tensor64(1935.0, *_A100),
    "H100 80GB HBM3": _float8(3350.0, *_H100_SXM),
    "H100 PCIe": _float8(2000.0, 51.0, 51.0, 378.0, 756.5),
    "H100 NVL": _float8(3900.0, 60.0, 60.0, 417.5, 835.5),
    "H200": _float8(4800.0, *_H100_SXM),
    # NVIDIA GH200 Grace Hopper Superchip datasheet, the one with 96 GB of HBM3.
    "GH200 480GB": _float8(4000.0, 67.0, 67.0, 494.0, 990.0),
    "GH200 120GB": _float8(4000.0, 67.0, 67.0, 494.0, 990.0),
    # NVIDIA Blackwell Architecture Technical Brief, HGX B200, per GPU.
    "B200": _float8(7700.0, 37.0, 75.0, 1100.0, 2250.0),
    # NVIDIA L4, L40 and L40S Tensor Core GPU datasheets: L4 half of its rates with sparsity.
    "L4": _graphics(300.0, 30.3, 60.0, 121.0),
    "L40": _graphics(864.0, 90.5, 90.5, 181.05),
    "L40S": _graphics(864.0, 91.6, 183.0, 362.05),
    # NVIDIA A10 and A40 Tensor Core GPU datasheets; NVIDIA A10G datasheet (of Amazon Web Services, February 2022).
    "A10": _graphics(600.0, 31.2, 62.5, 125.0),
    "A10G": _graphics(600.0, 35.0, 35.0, 70.0),
    "A40": _graphics(696.0, 37.4, 74.8, 149.7),
    # NVIDIA Ampere GA102 GPU Architecture whitepaper, V2.
    "GeForce RTX 3090": _graphics(936.0, 35.6, 35.6, 71.0),
    "RTX A6000": _graphics(768.0, 38.7, 77.4, 154.8),
    # NVIDIA Ada GPU Architecture whitepaper, appendix A.
    "GeForce RTX 4090": _graphics(1008.0, 82.6, 82.6, 165.2),
    # NVIDIA RTX Blackwell GPU Architecture whitepaper, table 3; NVIDIA RTX PRO Blackwell whitepaper, table 4.
    "GeForce RTX 5090": _graphics(1792.0, 104.8, 104.8, 209.5),
    "RTX 6000 Ada Generation": _graphics(960.0, 91.1, 182.1, 364.2),
    "V100-SXM2-16GB": _V100,
    "V100-SXM2-32GB": _V100,
    # NVIDIA T4 Tensor Core GPU datasheet; bandwidth by the Tesla T4 product brief. float64 is 1/32 of float32 (Turing
    # whitepaper).
    "T4": Peaks(320.0, {"float64": 8.1 / 32, "float32": 8.1, "float16": 65.0}),
}
