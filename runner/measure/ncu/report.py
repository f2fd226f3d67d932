"""What Nsight Compute prints of a report: pages of CSV → kernels with figures in base units, and its rules' advice.

The page ``raw`` has a line of names, a line of units, and a line per kernel; ``details`` a line per metric or rule.
Both may stand below lines of ncu's own, which begin with ``==``. Units are scaled (``129.1,us``) or not, as
``--print-units base`` is not heeded by every release. A figure that the GPU does not have is empty, ``n/a`` or ``nan``.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TIME = "gpu__time_duration.sum"
SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
ALLOWED = "sm__maximum_warps_per_active_cycle_pct"
REGISTERS, SHARED = "launch__registers_per_thread", "launch__shared_mem_per_block"
WAVES, BLOCKS, SMS = "launch__waves_per_multiprocessor", "launch__grid_size", "launch__sm_count"
CLOCK = "sm__cycles_elapsed.avg.per_second"
LIMITS = {  # blocks that a multiprocessor has room for, by what takes the room
    "registers": "launch__occupancy_limit_registers",
    "shared memory": "launch__occupancy_limit_shared_mem",
    "warps": "launch__occupancy_limit_warps",
    "blocks": "launch__occupancy_limit_blocks",
    "barriers": "launch__occupancy_limit_barriers",
}
ASKED = (TIME, SM, MEMORY, DRAM, READ, WRITTEN, OCCUPANCY, ALLOWED, REGISTERS, SHARED, WAVES, BLOCKS, SMS, CLOCK)

PREFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
SCALES = {f"{prefix}{unit}": scale for prefix, scale in PREFIXES.items() for unit in ("s", "second", "byte", "hz")}
SCALES |= {f"cycle/{prefix}second": 1 / scale for prefix, scale in PREFIXES.items()}  # of ncu before 2023
ROUNDED = 0.006  # that waves, printed with two decimals, may differ from the true ones
RANGE = re.compile(r'"<default domain>:([^:"]+):')


@dataclass(frozen=True)
class Kernel:
    """One launch. ``figures`` by ncu's own names: seconds, bytes, Hz, % and plain numbers."""

    id: str
    name: str
    grid: str
    block: str
    within: str  # NVTX ranges of the thread that launched it, outermost first: "call/step_0/forward"; "" without any
    figures: Mapping[str, float]

    @property
    def us(self) -> float:
        """Its time on the GPU."""
        return self.figures.get(TIME, 0.0) * 1e6

    @property
    def dram_bytes(self) -> float | None:
        """Bytes it has read from the GPU's memory and written to it."""
        both = [self.figures[name] for name in (READ, WRITTEN) if name in self.figures]
        return sum(both) if len(both) == 2 else None

    @property
    def limiter(self) -> str:
        """What leaves no room for one more block on a multiprocessor; "warps": it is full. "" if not known."""
        limits = {what: self.figures[name] for what, name in LIMITS.items() if name in self.figures}
        least = [what for what, limit in limits.items() if limit == min(limits.values())]
        return "warps" if "warps" in least else " and ".join(least)

    @property
    def waves(self) -> float | None:
        """Blocks over those that the GPU has room for at once: not rounded, where ncu tells what it is made of."""
        told = self.figures.get(WAVES)
        limits = [self.figures[name] for name in LIMITS.values() if name in self.figures]
        places = self.figures.get(SMS, 0.0) * min(limits, default=0.0)
        if told is None or not places or BLOCKS not in self.figures:
            return told
        exact = self.figures[BLOCKS] / places
        return exact if abs(exact - told) < ROUNDED else told

    @property
    def tail_pct(self) -> float | None:
        """Share of the places in all its waves that the last one leaves empty."""
        waves = self.waves
        return 100 * (1 - waves / math.ceil(waves)) if waves else None


@dataclass(frozen=True)
class Rule:
    """What ncu's rule ``name`` advises for the kernel ``kernel``, by that one's ``id``."""

    kernel: str
    name: str
    text: str
    speedup_pct: float  # that ncu expects of the advice; 0 where it says none
    of_kernel: bool  # that is of the whole kernel's time, and not of what one section looks at


def kernels(page: str) -> list[Kernel]:
    """The launches of a page ``raw``, in their order; empty if it has none."""
    table = list(csv.reader(_lines(page)))
    if len(table) < 3:
        return []
    names, units = table[0], table[1]
    columns = {name: index for index, name in enumerate(names)}
    ranges = next((index for name, index in columns.items() if "Push/Pop_Range" in name), None)

    def kernel(line: Sequence[str]) -> Kernel:
        wanted = ((name, columns[name]) for name in (*ASKED, *LIMITS.values()) if name in columns)
        read = {name: _number(line[index], units[index]) for name, index in wanted}
        return Kernel(
            id=line[columns["ID"]],
            name=line[columns["Kernel Name"]],
            grid=line[columns["Grid Size"]],
            block=line[columns["Block Size"]],
            within="" if ranges is None else "/".join(RANGE.findall(line[ranges])),
            figures={name: value for name, value in read.items() if value is not None},
        )

    return [kernel(line) for line in table[2:] if len(line) == len(names)]


def rules(page: str) -> list[Rule]:
    """The advice of a page ``details``; what ncu only remarks (INF) is none."""
    return [
        Rule(
            kernel=line["ID"],
            name=line["Rule Name"],
            text=" ".join(line["Rule Description"].split()),
            speedup_pct=_number(line.get("Estimated Speedup") or "", "") or 0.0,
            of_kernel=line.get("Estimated Speedup Type") == "global",
        )
        for line in csv.DictReader(_lines(page))
        if line.get("Rule Type") in ("OPT", "WRN")
    ]


def _lines(page: str) -> list[str]:
    """From the line of names on."""
    lines = page.splitlines(keepends=True)
    first = next((index for index, line in enumerate(lines) if line.startswith('"ID",')), len(lines))
    return [line for line in lines[first:] if not line.startswith("==")]


def _number(word: str, unit: str) -> float | None:
    """In base units; None if it is no number. ``16,384`` is one, and so is ``49.15`` in ``Kbyte/block``."""
    try:
        value = float(word.replace(",", ""))
    except ValueError:
        return None
    return value * SCALES.get(unit.removesuffix("/block"), 1.0) if math.isfinite(value) else None
