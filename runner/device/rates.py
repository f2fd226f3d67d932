"""Rough rates of a device: what it computes and moves in a second, found without torch and without measuring."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from . import processes
from .cache import cache_folder, read_record
from .files import text_in

CPU_FACTS = Path("/proc/cpuinfo")
FLOPS_PER_CYCLE = {"avx512f": 64, "fma": 32}  # per core in float32: two fused multiply-adds of a vector
OTHER_FLOPS, LEAST_GHZ, REACHED = 16, 2.4, 0.8  # without these; an idle core shows less; of the peak by a product
BANDWIDTH = 1.25e9  # bytes per second of a core, page faults included
MOST_CORES = 8  # whose bandwidths add up
# Flags of processors whose products of 16 bits are as fast as those of float32. Others: torch has a plain loop.
FAST_16_BIT = {"bfloat16": {"avx512bw", "amx_bf16", "bf16"}, "float16": {"avx512_fp16", "amx_fp16", "asimdhp"}}
PLAIN_LOOP = 0.7e9  # operations per second of a core


@dataclass(frozen=True)
class Rates:
    """Rates of a device."""

    flops: dict[str, float]  # operations of a matrix product per second, by type
    bytes: float  # read and written per second


GPU = Rates({"float64": 5e12, "float32": 2e13, "float16": 2e14, "bfloat16": 2e14, "float8_e4m3fn": 4e14}, 1.5e12)


def rates(device: str) -> Rates:
    """Return the rates of "cpu" or of the GPU of that name: its measured peaks, if a run has kept them."""
    if device == "cpu":
        return _of_cpu()
    for path in sorted(cache_folder("measured_peak").glob("*.json")):
        peak = (read_record(path) or {}).get("measured_peak", {})
        if peak.get("gpu") == device:
            return Rates({name: 1e12 * rate for name, rate in peak["tflops"].items()}, 1e9 * peak["copy_gbps"])
    return GPU


@cache
def _of_cpu() -> Rates:
    facts = text_in(CPU_FACTS)  # "" but on Linux
    flags = set(next(iter(re.findall(r"^(?:flags|Features)\s*:(.*)", facts, re.MULTILINE)), "").split())
    ghz = max([LEAST_GHZ, *(float(mhz) / 1e3 for mhz in re.findall(r"^cpu MHz\s*: ([\d.]+)", facts, re.MULTILINE))])
    cores = processes.cores()
    per_cycle = next((count for flag, count in FLOPS_PER_CYCLE.items() if flag in flags), OTHER_FLOPS)
    wide = cores * ghz * 1e9 * per_cycle * REACHED
    narrow = {name: wide if flags & fast else cores * PLAIN_LOOP for name, fast in FAST_16_BIT.items()}
    return Rates({"float32": wide, "float64": wide / 2, **narrow}, BANDWIDTH * min(cores, MOST_CORES))
