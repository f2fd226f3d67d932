"""Parse what Nsight Compute prints of a report: kernels with figures in base units, and the advice of its rules.

The page ``raw`` has a line of names, a line of units, and a line per kernel; ``details`` has a line per metric or rule.
Messages of ncu, which begin with ``==``, may precede both. Units may be scaled (``129.1,us``), since not every
release obeys ``--print-units base``. A figure that the GPU does not have is empty, ``n/a`` or ``nan``.
"""

import csv
import math
import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...records.case import Scalar
from ...records.figures import figure
from ...records.plain_text import shortened, text_table
from ..timeline.tables import short

TIME = "gpu__time_duration.sum"
READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
WAVES, BLOCKS, SMS = "launch__waves_per_multiprocessor", "launch__grid_size", "launch__sm_count"
CLOCK = "sm__cycles_elapsed.avg.per_second"
SHARES = {  # column of kernels.csv → metric
    "sm_pct": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "memory_pct": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram_pct": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "occupancy_pct": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "occupancy_allowed_pct": "sm__maximum_warps_per_active_cycle_pct",
}
COUNTS = {
    "registers": "launch__registers_per_thread",
    "shared_bytes": "launch__shared_mem_per_block",
    "instructions": "smsp__inst_executed.sum",  # instructions of warps
}
RATIOS = {  # sectors of 32 bytes are per request of a warp to global memory, without those of bulk copies (TMA)
    "active_threads": "smsp__thread_inst_executed_per_inst_executed.ratio",
    "load_sectors": "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
    "store_sectors": "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio",
    "load_used_pct": "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
    "store_used_pct": "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct",
}
LIMITS = {  # resource → blocks that fit on a multiprocessor by that resource
    "registers": "launch__occupancy_limit_registers",
    "shared memory": "launch__occupancy_limit_shared_mem",
    "warps": "launch__occupancy_limit_warps",
    "blocks": "launch__occupancy_limit_blocks",
    "barriers": "launch__occupancy_limit_barriers",
}
METRICS = (TIME, READ, WRITTEN, WAVES, BLOCKS, SMS, CLOCK, *SHARES.values(), *RATIOS.values(), *COUNTS.values())

PREFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
SCALES = {f"{prefix}{unit}": scale for prefix, scale in PREFIXES.items() for unit in ("s", "second", "byte", "hz")}
SCALES |= {f"cycle/{prefix}second": 1 / scale for prefix, scale in PREFIXES.items()}  # ncu before 2023
ROUNDED = 0.006  # waves: rounding error of ncu's two decimals
NOT_APPLICABLE = {"MemoryL2Compression"}  # advises compressible memory, which torch does not allocate
LONGEST_HINT, LONGEST_NAME = 300, 48  # characters: a hint in a row, a kernel's name in the summary
WIDTH = 118  # width of the summary
RANGE = re.compile(r'"<default domain>:([^:"]+):')

Launch = dict[str, Any]  # launch of a kernel: column of kernels.csv → value; None: unknown


@dataclass(frozen=True)
class Rule:
    """Advice of a rule of ncu for the launch with the id ``kernel``."""

    kernel: str
    name: str
    text: str
    speedup_pct: float  # estimated by ncu; 0: no estimate
    of_kernel: bool  # whether the estimate is for the whole kernel, rather than for the metric of one section

    @property
    def advice(self) -> str:
        """The advice in one line."""
        share = f" ({self.speedup_pct:.3g} % {'of the kernel' if self.of_kernel else 'locally'})"
        return f"{self.name}{share if self.speedup_pct else ''}: {self.text}"


def kernels(page: str) -> list[Launch]:
    """Return the launches on a page ``raw``, in order; empty if there are none."""
    units, *lines = [*csv.DictReader(_lines(page))] or [{}]
    launches = []
    for line in lines:
        ranges = next((cell for name, cell in line.items() if "Push/Pop_Range" in name), "")
        launch: Launch = {"launch": line["ID"], "kernel": line["Kernel Name"]}
        launch["within"] = "/".join(RANGE.findall(ranges))  # "call/step_0/forward"
        launch |= {"grid": line["Grid Size"], "block": line["Block Size"]}
        numbers = {name: _number(line[name], units[name]) for name in (*METRICS, *LIMITS.values()) if name in line}
        launches.append(launch | launch_figures({name: v for name, v in numbers.items() if v is not None}))
    return launches


def launch_figures(figures: Mapping[str, float]) -> Launch:
    """Return the columns of kernels.csv from ``figures`` with ncu's names and base units."""
    limits = {resource: figures[name] for resource, name in LIMITS.items() if name in figures}
    limiting = [resource for resource, limit in limits.items() if limit == min(limits.values())]
    waves, slots = figures.get(WAVES), figures.get(SMS, 0.0) * min(limits.values(), default=0.0)
    if waves is not None and slots and BLOCKS in figures:
        exact = figures[BLOCKS] / slots
        waves = exact if abs(exact - waves) < ROUNDED else waves
    moved = [figures[name] for name in (READ, WRITTEN) if name in figures]
    return {
        "gpu_us": figures.get(TIME, 0.0) * 1e6,
        **{column: figures.get(metric) for column, metric in (SHARES | RATIOS).items()},
        "dram_bytes": round(sum(moved)) if len(moved) == 2 else None,
        "occupancy_limiter": "warps" if "warps" in limiting else " and ".join(limiting),  # "warps": full occupancy
        **{column: round(figures[metric]) if metric in figures else None for column, metric in COUNTS.items()},
        "waves": waves,
        "tail_pct": 100 * (1 - waves / math.ceil(waves)) if waves else None,
        "clock_mhz": figures[CLOCK] / 1e6 if CLOCK in figures else None,
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
    """Return the lines of ``page``, beginning with the names of the columns."""
    lines = page.splitlines(keepends=True)
    first = next((index for index, line in enumerate(lines) if line.startswith('"ID",')), len(lines))
    return [line for line in lines[first:] if not line.startswith("==")]


def _number(word: str, unit: str) -> float | None:
    """Return ``16,384``, or ``49.15`` in ``Kbyte/block``, in base units; None if it is not a finite number."""
    try:
        value = float(word.replace(",", ""))
    except ValueError:
        return None
    return value * SCALES.get(unit.removesuffix("/block"), 1.0) if math.isfinite(value) else None


@dataclass(frozen=True)
class NcuProfile:
    """Kernels of one call, in order.

    ``part`` is a note if only a part of the call was profiled. ``figures`` are the row's figures so far.
    """

    kernels: Sequence[Launch]
    rules: Sequence[Rule]
    part: str
    figures: Mapping[str, Scalar]

    @cached_property
    def us(self) -> float:
        """GPU time in us of all profiled kernels."""
        return float(sum(kernel["gpu_us"] for kernel in self.kernels))

    @cached_property
    def dominant(self) -> Launch:
        """The longest launch of the kernel that takes most of the time."""
        times: Counter[str] = Counter()
        for kernel in self.kernels:
            times[kernel["kernel"]] += kernel["gpu_us"]
        return max(self.kernels, key=lambda kernel: (times[kernel["kernel"]], kernel["gpu_us"]))

    def columns(self) -> dict[str, Scalar]:
        """Return the row's figures: percentages weighted by time, and launch figures of the dominant kernel.

        Figures of a whole call are left out if only a part of it was profiled.
        """
        longest = self.dominant
        moved = [kernel["dram_bytes"] for kernel in self.kernels]
        dram_bytes = None if self.part or None in moved else sum(moved)
        least = self.figures.get("bytes_min")
        columns: dict[str, Scalar | None] = {
            "ncu_gpu_us": None if self.part else self.us,
            "dram_bytes": dram_bytes,
            "bytes_ratio": dram_bytes / float(least) if least and dram_bytes is not None else None,
            "ncu_kernels": len(self.kernels),
            "ncu_kernel": longest["kernel"],
            **{name: self._weighted(name) for name in ("sm_pct", "dram_pct", "occupancy_pct")},
            **{name: longest[name] for name in ("registers", "waves", "tail_pct", *RATIOS)},
            "occupancy_limiter": longest["occupancy_limiter"] or None,
            "ncu_clock_mhz": self._weighted("clock_mhz"),
            "ncu_hint": self.hint or None,
            "ncu_note": self.note or None,
        }
        return {name: value for name, value in columns.items() if value is not None}

    def _weighted(self, name: str) -> float | None:
        """Return the mean of column ``name``, weighted by time, over the kernels that have it."""
        weighted = [(kernel["gpu_us"], kernel[name]) for kernel in self.kernels if kernel[name] is not None]
        time = sum(us for us, _ in weighted)
        return sum(us * value for us, value in weighted) / time if time else None

    @cached_property
    def note(self) -> str:
        """How the profile may differ from the call, else ""."""
        expected = self.figures.get("n_kernels")
        if self.part or expected is None or expected == len(self.kernels):
            return self.part
        reason = "ncu counts no copies and fills" if len(self.kernels) < int(expected) else "under ncu the call differs"
        return f"ncu saw {len(self.kernels)} kernels, the benchmark {expected} kernels, copies and fills: {reason}"

    @cached_property
    def hint(self) -> str:
        """The advice that saves most of the time; advice for a whole kernel comes before advice for a section."""
        by_launch = {kernel["launch"]: kernel for kernel in self.kernels}
        useful = (rule for rule in self.rules if rule.name not in NOT_APPLICABLE and rule.speedup_pct > 0)
        candidates = [rule for rule in useful if rule.kernel in by_launch]
        candidates = [rule for rule in candidates if rule.of_kernel] or candidates
        best = max(candidates, key=lambda rule: rule.speedup_pct * by_launch[rule.kernel]["gpu_us"], default=None)
        if best is None:
            return ""
        return shortened(f"{short(by_launch[best.kernel]['kernel'])}: {best.advice}", LONGEST_HINT)

    def lines(self) -> list[Launch]:
        """Return the lines of kernels.csv, one per launch, in order."""
        lines = []
        for kernel in self.kernels:
            first = {name: kernel[name] for name in ("launch", "kernel", "within", "grid", "block", "gpu_us")}
            first["share_pct"] = 100 * kernel["gpu_us"] / self.us if self.us else None
            advice = " ".join(dict.fromkeys(rule.name for rule in self.rules if rule.kernel == kernel["launch"]))
            lines.append({**first, **kernel, "advice": advice})
        return lines

    def summary(self) -> str:
        """Return the text of summary.txt: kernels with their percentages, the slowest first, each with its advice."""
        gpu_us = self.figures.get("gpu_us")
        compared = ""
        if gpu_us and not self.part:
            change = f"{100 * (self.us / float(gpu_us) - 1):+.1f} %"
            compared = f" ({change} compared with the benchmark's {figure(gpu_us, 'us')}, which contains gaps)"
        text = [f"{len(self.kernels)} kernels, {figure(self.us, 'us')} on the GPU{compared}"]
        text += filter(None, [self.note])
        slowest = sorted(self.kernels, key=lambda kernel: -kernel["gpu_us"])
        rows = [["kernel", "time", "SM %", "DRAM %", "occ. %", "waves", "limited by"]]
        forms = {"sm_pct": ".1f", "dram_pct": ".1f", "occupancy_pct": ".1f", "waves": ".2f"}
        for kernel in slowest:
            cells = ["" if kernel[name] is None else format(kernel[name], form) for name, form in forms.items()]
            name, time = short(kernel["kernel"], LONGEST_NAME), figure(kernel["gpu_us"], "us")
            rows.append([name, time, *cells, kernel["occupancy_limiter"]])
        bullet = textwrap.TextWrapper(WIDTH, initial_indent="    - ", subsequent_indent=" " * 6)
        header, *lines = text_table(rows, left=(0, 6))
        text.append(header)
        for kernel, line in zip(slowest, lines, strict=True):
            advice = (rule.advice for rule in self.rules if rule.kernel == kernel["launch"])
            text += [line, *map(bullet.fill, advice)]
        return "\n".join([*text, ""])
