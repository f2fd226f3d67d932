"""Reader of what Nsight Compute prints of a report: kernels with figures in base units, and the advice of its rules.

The page ``raw`` has a line of names, a line of units, and a line per kernel; ``details`` has a line per metric or rule.
Messages of ncu, which begin with ``==``, may stand above both. Units may be scaled (``129.1,us``), since not every
release obeys ``--print-units base``. A figure that the GPU does not have is empty, ``n/a`` or ``nan``.
"""

from __future__ import annotations

import csv
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from runner.experiment.case import Scalar
from runner.experiment.results import figure
from runner.measure import text_table
from runner.measure.timeline.tables import short

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
INSTRUCTIONS = "smsp__inst_executed.sum"  # of warps
LIMITS = {  # resource → blocks that fit on a multiprocessor by that resource
    "registers": "launch__occupancy_limit_registers",
    "shared memory": "launch__occupancy_limit_shared_mem",
    "warps": "launch__occupancy_limit_warps",
    "blocks": "launch__occupancy_limit_blocks",
    "barriers": "launch__occupancy_limit_barriers",
}
ASKED = (
    TIME,
    SM,
    MEMORY,
    DRAM,
    READ,
    WRITTEN,
    OCCUPANCY,
    ALLOWED,
    REGISTERS,
    SHARED,
    WAVES,
    BLOCKS,
    SMS,
    CLOCK,
    INSTRUCTIONS,
)

PREFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
SCALES = {f"{prefix}{unit}": scale for prefix, scale in PREFIXES.items() for unit in ("s", "second", "byte", "hz")}
SCALES |= {f"cycle/{prefix}second": 1 / scale for prefix, scale in PREFIXES.items()}  # ncu before 2023
ROUNDED = 0.006  # difference between true waves and those that ncu prints with two decimals
NOT_APPLICABLE = {"MemoryL2Compression"}  # it advises compressible memory, which torch does not allocate
LONGEST_HINT, LONGEST_NAME = 300, 48  # characters of a hint in a row, and of a kernel's name in the summary
WIDTH = 118  # of the summary
RANGE = re.compile(r'"<default domain>:([^:"]+):')

Kernel = dict[str, Any]  # one launch, by the columns of kernels.csv; None: unknown


@dataclass(frozen=True)
class Rule:
    """Advice of one of ncu's rules for the kernel with the id ``kernel``."""

    kernel: str
    name: str
    text: str
    speedup_pct: float  # that ncu estimates; 0: no estimate
    of_kernel: bool  # the estimate is for the whole kernel, not only for one section's metric

    @property
    def advice(self) -> str:
        """The rule in one line."""
        share = f" ({self.speedup_pct:.3g} % {'of the kernel' if self.of_kernel else 'locally'})"
        return f"{self.name}{share if self.speedup_pct else ''}: {self.text}"


def kernels(page: str) -> list[Kernel]:
    """Return the launches of a page ``raw``, in their order; empty if it has none."""
    table = list(csv.reader(_lines(page)))
    if len(table) < 3:
        return []
    names, units = table[0], dict(zip(table[0], table[1], strict=True))
    found = []
    for words in table[2:]:
        if len(words) != len(names):
            continue
        line = dict(zip(names, words, strict=True))
        ranges = next((cell for name, cell in line.items() if "Push/Pop_Range" in name), "")
        numbers = {name: _number(line[name], units[name]) for name in (*ASKED, *LIMITS.values()) if name in line}
        found.append(
            {
                "launch": line["ID"],
                "kernel": line["Kernel Name"],
                "within": "/".join(RANGE.findall(ranges)),  # "call/step_0/forward"
                "grid": line["Grid Size"],
                "block": line["Block Size"],
                **launch_figures({name: value for name, value in numbers.items() if value is not None}),
            }
        )
    return found


def launch_figures(figures: Mapping[str, float]) -> Kernel:
    """Return the columns of kernels.csv that follow from ``figures``, which have ncu's names and base units."""
    limits = {what: figures[name] for what, name in LIMITS.items() if name in figures}
    least = [what for what, limit in limits.items() if limit == min(limits.values())]
    waves, places = figures.get(WAVES), figures.get(SMS, 0.0) * min(limits.values(), default=0.0)
    if waves is not None and places and BLOCKS in figures:
        exact = figures[BLOCKS] / places
        waves = exact if abs(exact - waves) < ROUNDED else waves
    moved = [figures[name] for name in (READ, WRITTEN) if name in figures]
    return {
        "gpu_us": figures.get(TIME, 0.0) * 1e6,
        "sm_pct": figures.get(SM),
        "memory_pct": figures.get(MEMORY),
        "dram_pct": figures.get(DRAM),
        "dram_bytes": round(sum(moved)) if len(moved) == 2 else None,
        "occupancy_pct": figures.get(OCCUPANCY),
        "occupancy_allowed_pct": figures.get(ALLOWED),
        "occupancy_limiter": "warps" if "warps" in least else " and ".join(least),  # "warps": it is full
        "registers": round(figures[REGISTERS]) if REGISTERS in figures else None,
        "shared_bytes": round(figures[SHARED]) if SHARED in figures else None,
        "waves": waves,
        "tail_pct": 100 * (1 - waves / math.ceil(waves)) if waves else None,
        "clock_mhz": figures[CLOCK] / 1e6 if CLOCK in figures else None,
        "instructions": round(figures[INSTRUCTIONS]) if INSTRUCTIONS in figures else None,
    }


def rules(page: str) -> list[Rule]:
    """Return the advice of a page ``details``, without remarks (INF)."""
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
    """Return the lines of ``page`` from the line of names on."""
    lines = page.splitlines(keepends=True)
    first = next((index for index, line in enumerate(lines) if line.startswith('"ID",')), len(lines))
    return [line for line in lines[first:] if not line.startswith("==")]


def _number(word: str, unit: str) -> float | None:
    """Return ``16,384``, or ``49.15`` in ``Kbyte/block``, in base units; None if ``word`` is no finite number."""
    try:
        value = float(word.replace(",", ""))
    except ValueError:
        return None
    return value * SCALES.get(unit.removesuffix("/block"), 1.0) if math.isfinite(value) else None


@dataclass(frozen=True)
class Profile:
    """Kernels of one call in their order.

    ``part`` says why they may not be all of the call's kernels; ``figures`` are those of the row so far.
    """

    kernels: Sequence[Kernel]
    rules: Sequence[Rule]
    part: str
    figures: Mapping[str, Scalar]

    @cached_property
    def us(self) -> float:
        """Time on the GPU of all profiled kernels."""
        return float(sum(kernel["gpu_us"] for kernel in self.kernels))

    @cached_property
    def dominant(self) -> Kernel:
        """The longest launch of the kernel that takes the most time of the call."""
        times: dict[str, float] = {}
        for kernel in self.kernels:
            times[kernel["kernel"]] = times.get(kernel["kernel"], 0.0) + kernel["gpu_us"]
        return max(self.kernels, key=lambda kernel: (times[kernel["kernel"]], kernel["gpu_us"]))

    def columns(self) -> dict[str, Scalar]:
        """Return the figures of the row: shares weighted by time, and launch figures of the dominant kernel.

        Figures of a whole call are left out where only a part of it was profiled.
        """
        one = self.dominant
        moved = [kernel["dram_bytes"] for kernel in self.kernels]
        dram_bytes = None if self.part or None in moved else sum(moved)
        least = self.figures.get("bytes_min")
        found: dict[str, Scalar | None] = {
            "ncu_gpu_us": None if self.part else self.us,
            "dram_bytes": dram_bytes,
            "bytes_ratio": dram_bytes / float(least) if least and dram_bytes is not None else None,
            "ncu_kernels": len(self.kernels),
            "ncu_kernel": one["kernel"],
            **{name: self._weighted(name) for name in ("sm_pct", "dram_pct", "occupancy_pct")},
            **{name: one[name] for name in ("registers", "waves", "tail_pct")},
            "occupancy_limiter": one["occupancy_limiter"] or None,
            "ncu_clock_mhz": self._weighted("clock_mhz"),
            "ncu_hint": self.hint or None,
            "ncu_note": self.note or None,
        }
        return {name: value for name, value in found.items() if value is not None}

    def _weighted(self, name: str) -> float | None:
        """Return the mean of column ``name``, weighted by time, over the kernels that have it."""
        some = [(kernel["gpu_us"], kernel[name]) for kernel in self.kernels if kernel[name] is not None]
        time = sum(us for us, _ in some)
        return sum(us * value for us, value in some) / time if time else None

    @cached_property
    def note(self) -> str:
        """How the profile may differ from the call; "" if it does not."""
        expected = self.figures.get("n_kernels")
        if self.part or expected is None or expected == len(self.kernels):
            return self.part
        why = "ncu counts no copies and fills" if len(self.kernels) < int(expected) else "under ncu the call differs"
        return f"ncu saw {len(self.kernels)} kernels, the benchmark {expected} kernels, copies and fills: {why}"

    @cached_property
    def hint(self) -> str:
        """The advice that promises most of the call's time; advice on one section only if there is no other."""
        by_launch = {kernel["launch"]: kernel for kernel in self.kernels}
        some = [rule for rule in self.rules if rule.name not in NOT_APPLICABLE and rule.speedup_pct > 0]
        some = [rule for rule in some if rule.kernel in by_launch]
        some = [rule for rule in some if rule.of_kernel] or some
        best = max(some, key=lambda rule: rule.speedup_pct * by_launch[rule.kernel]["gpu_us"], default=None)
        if best is None:
            return ""
        return _shortened(f"{short(by_launch[best.kernel]['kernel'])}: {best.advice}", LONGEST_HINT)

    def lines(self) -> list[Kernel]:
        """Return the lines of kernels.csv: one per kernel, in the order of their launches."""
        found = []
        for kernel in self.kernels:
            first = {name: kernel[name] for name in ("launch", "kernel", "within", "grid", "block", "gpu_us")}
            first["share_pct"] = 100 * kernel["gpu_us"] / self.us if self.us else None
            advice = " ".join(dict.fromkeys(rule.name for rule in self.rules if rule.kernel == kernel["launch"]))
            found.append({**first, **kernel, "advice": advice})
        return found

    def summary(self) -> str:
        """Return kernels with their shares of the peaks, the slowest first, and below each its advice."""
        gpu_us = self.figures.get("gpu_us")
        compared = ""
        if gpu_us and not self.part:
            change = f"{100 * (self.us / float(gpu_us) - 1):+.1f} %"
            compared = f" ({change} compared with the benchmark's {figure(gpu_us, 'us')}, which contains gaps)"
        text = [
            f"{len(self.kernels)} kernels, {figure(self.us, 'us')} on the GPU{compared}",
            *filter(None, [self.note]),
        ]
        slowest = sorted(self.kernels, key=lambda kernel: -kernel["gpu_us"])
        rows = [["kernel", "time", "SM %", "DRAM %", "occ. %", "waves", "limited by"]]
        for kernel in slowest:
            forms = {"sm_pct": ".1f", "dram_pct": ".1f", "occupancy_pct": ".1f", "waves": ".2f"}
            cells = ["" if kernel[name] is None else format(kernel[name], form) for name, form in forms.items()]
            name, time = _shortened(short(kernel["kernel"]), LONGEST_NAME), figure(kernel["gpu_us"], "us")
            rows.append([name, time, *cells, kernel["occupancy_limiter"]])
        header, *lines = text_table(rows, left=(0, 6))
        text.append(header)
        for kernel, line in zip(slowest, lines, strict=True):
            advice = [rule.advice for rule in self.rules if rule.kernel == kernel["launch"]]
            text += [
                line,
                *(textwrap.fill(one, WIDTH, initial_indent="    - ", subsequent_indent=" " * 6) for one in advice),
            ]
        return "\n".join([*text, ""])


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"
