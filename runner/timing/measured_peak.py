"""What this very GPU can do, measured once by the instrument that times the calls; and a call's time against it.

The data sheet's figures hold at a clock that a GPU under load does not keep: an H100 multiplies bfloat16 matrices at
79 % of them, and copies at 91 %. The measured_peak here is what torch's plainest kernels and the vendor's matrix products reach
on this GPU, with the rests between calls that any other call has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

import torch

from runner.device import cache as disk
from runner.device.identity import identity
from runner.experiment.case import Scalar
from runner.models.workload import Work
from runner.timing import peak_rates
from runner.timing.datasheet import peaks

FORMAT = 2  # of the file, and of how its figures are taken: another number measures anew
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
    """Of the current GPU: from the user's cache folder, or measured and put there, which takes a second or two.

    It is kept for as long as ``identity()`` stays the same, so whoever sets another power limit or locks the clock
    deletes the file.

    Raises:
        torch.cuda.OutOfMemoryError: less memory is free than a meaningful copy takes.

    """
    facts = identity()
    path = disk.place("measured_peak", facts, FORMAT)
    if (kept := _kept(disk.read(path), facts)) is not None:
        return kept
    try:
        found = _measure(facts["gpu"])
    finally:
        torch.cuda.empty_cache()
    sheet = peaks(found.gpu)
    if sheet is None or found.copy_gbps > PLAUSIBLE * sheet.gbps:
        disk.write(path, {"identity": facts, "measured_peak": found.to_record()})
    return found


def columns(work: Work, time_us: float, measured_peak: MeasuredPeak, l2_bytes: int, cold_l2: bool) -> dict[str, Scalar]:
    """Where ``time_us`` of a call that does ``work`` stands; a figure that is not known is left out.

    ``intensity``: operations a byte. ``bound``: "memory" or "compute", which of the two takes the measured_peak longer.
    ``pct_of_measured_peak``, ``pct_datasheet``: that longer time as a share of ``time_us``; memory alone if the type has no rate.
    ``fastest_possible_us``: no right result comes sooner. It is meant to be too low rather than too high.

    ``pct_of_measured_peak`` misleads where

    - data stay in the L2 cache, because it is warm or holds what was written last: above 100 % is then no surprise;
    - an implementation moves more than ``bytes_min`` for a good reason, or a call is over before memory is up to
      speed (below some 10 us): far below 100 % is then no fault;
    - operations are done in a cheaper type or by a cleverer algorithm: a float32 product by three float16 ones runs
      at several times the rate of float32 and is right, so ``fastest_possible_us`` takes the fastest type there is;
    - operations are no products of matrices: the rates of tensor cores are not theirs, and ``bound`` says "memory"
      of a call that other units hold up.

    ``fastest_possible_us`` in turn could be beaten by types below 16 bits, which pass no check of a wider type unless the data are
    zeros, and by Strassen's algorithm, which saves 1/8 a level, if it ran at 97 % of the ceiling or had a second level.
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
    """Of the operations of ``work`` at the rate of their type; None if that is not known."""
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
