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

from runner.experiment.case import Scalar
from runner.measure import text_table

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
LIMITS = {  # resource → blocks that fit on a multiprocessor by that resource
    "registers": "launch__occupancy_limit_registers",
    "shared memory": "launch__occupancy_limit_shared_mem",
    "warps": "launch__occupancy_limit_warps",
    "blocks": "launch__occupancy_limit_blocks",
    "barriers": "launch__occupancy_limit_barriers",
}
ASKED = (TIME, SM, MEMORY, DRAM, READ, WRITTEN, OCCUPANCY, ALLOWED, REGISTERS, SHARED, WAVES, BLOCKS, SMS, CLOCK)

PREFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
SCALES = {f"{prefix}{unit}": scale for prefix, scale in PREFIXES.items() for unit in ("s", "second", "byte", "hz")}
SCALES |= {f"cycle/{prefix}second": 1 / scale for prefix, scale in PREFIXES.items()}  # ncu before 2023
ROUNDED = 0.006  # difference between true waves and those that ncu prints with two decimals
RANGE = re.compile(r'"<default domain>:([^:"]+):')


@dataclass(frozen=True)
class Kernel:
    """One launch. ``figures`` have ncu's names, in seconds, bytes, Hz, % and plain numbers."""

    id: str
    name: str
    grid: str
    block: str
    within: str  # NVTX ranges of the launching thread, outermost first: "call/step_0/forward"; "" without ranges
    figures: Mapping[str, float]

    @property
    def us(self) -> float:
        """Time on the GPU."""
        return self.figures.get(TIME, 0.0) * 1e6

    @property
    def dram_bytes(self) -> int | None:
        """Bytes read from the GPU's memory and written to it."""
        if READ not in self.figures or WRITTEN not in self.figures:
            return None
        return round(self.figures[READ] + self.figures[WRITTEN])

    @property
    def limiter(self) -> str:
        """The resource that limits the blocks on a multiprocessor; "warps": it is full; "": unknown."""
        limits = {what: self.figures[name] for what, name in LIMITS.items() if name in self.figures}
        least = [what for what, limit in limits.items() if limit == min(limits.values())]
        return "warps" if "warps" in least else " and ".join(least)

    @property
    def waves(self) -> float | None:
        """Blocks over the number of blocks that fit on the GPU at once; computed exactly where ncu's parts allow it."""
        printed = self.figures.get(WAVES)
        limits = [self.figures[name] for name in LIMITS.values() if name in self.figures]
        places = self.figures.get(SMS, 0.0) * min(limits, default=0.0)
        if printed is None or not places or BLOCKS not in self.figures:
            return printed
        exact = self.figures[BLOCKS] / places
        return exact if abs(exact - printed) < ROUNDED else printed

    @property
    def tail_pct(self) -> float | None:
        """Share of the block slots of all waves that the last wave leaves empty."""
        waves = self.waves
        return 100 * (1 - waves / math.ceil(waves)) if waves else None


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
        figures = {name: _number(line[name], units[name]) for name in (*ASKED, *LIMITS.values()) if name in line}
        found.append(
            Kernel(
                id=line["ID"],
                name=line["Kernel Name"],
                grid=line["Grid Size"],
                block=line["Block Size"],
                within="/".join(RANGE.findall(ranges)),
                figures={name: value for name, value in figures.items() if value is not None},
            )
        )
    return found


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


NOT_APPLICABLE = {"MemoryL2Compression"}  # it advises compressible memory, which torch does not allocate
LONGEST_HINT, LONGEST_NAME = 300, 48  # characters of a hint in a row, and of a kernel's name in the summary
WIDTH = 118  # of the summary


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
        return sum(kernel.us for kernel in self.kernels)

    @cached_property
    def dominant(self) -> Kernel:
        """The longest launch of the kernel that takes the most time of the call."""
        times: dict[str, float] = {}
        for kernel in self.kernels:
            times[kernel.name] = times.get(kernel.name, 0.0) + kernel.us
        return max(self.kernels, key=lambda kernel: (times[kernel.name], kernel.us))

    def columns(self) -> dict[str, Scalar]:
        """Return the figures of the row: shares weighted by time, and launch figures of the dominant kernel.

        Figures of a whole call are left out where only a part of it was profiled.
        """
        one = self.dominant
        registers, clock_hz = one.figures.get(REGISTERS), self._weighted(CLOCK)
        moved = [kernel.dram_bytes for kernel in self.kernels]
        dram_bytes = None if self.part or None in moved else sum(filter(None, moved))
        least = self.figures.get("bytes_min")
        found: dict[str, Scalar | None] = {
            "ncu_gpu_us": None if self.part else self.us,
            "dram_bytes": dram_bytes,
            "bytes_ratio": dram_bytes / float(least) if least and dram_bytes is not None else None,
            "ncu_kernels": len(self.kernels),
            "ncu_kernel": one.name,
            "sm_pct": self._weighted(SM),
            "dram_pct": self._weighted(DRAM),
            "occupancy_pct": self._weighted(OCCUPANCY),
            "occupancy_limiter": one.limiter or None,
            "registers": None if registers is None else int(registers),
            "waves": one.waves,
            "tail_pct": one.tail_pct,
            "ncu_clock_mhz": None if clock_hz is None else clock_hz / 1e6,
            "ncu_hint": self.hint or None,
            "ncu_note": self.note or None,
        }
        return {name: value for name, value in found.items() if value is not None}

    def _weighted(self, name: str) -> float | None:
        """Return the mean of figure ``name``, weighted by time, over the kernels that have it."""
        some = [(kernel.us, kernel.figures[name]) for kernel in self.kernels if name in kernel.figures]
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
        us = {kernel.id: kernel.us for kernel in self.kernels}
        names = {kernel.id: plain(kernel.name) for kernel in self.kernels}
        some = [rule for rule in self.rules if rule.name not in NOT_APPLICABLE and rule.speedup_pct > 0]
        some = [rule for rule in some if rule.of_kernel] or some
        best = max(some, key=lambda rule: rule.speedup_pct * us.get(rule.kernel, 0.0), default=None)
        return "" if best is None else _shortened(f"{names.get(best.kernel, '')}: {best.advice}", LONGEST_HINT)

    def lines(self) -> list[dict[str, object]]:
        """Return the lines of kernels.csv: one per kernel, in the order of their launches."""
        return [
            {
                "launch": kernel.id,
                "kernel": kernel.name,
                "within": kernel.within,
                "grid": kernel.grid,
                "block": kernel.block,
                "gpu_us": kernel.us,
                "share_pct": 100 * kernel.us / self.us if self.us else None,
                "sm_pct": kernel.figures.get(SM),
                "memory_pct": kernel.figures.get(MEMORY),
                "dram_pct": kernel.figures.get(DRAM),
                "dram_bytes": kernel.dram_bytes,
                "occupancy_pct": kernel.figures.get(OCCUPANCY),
                "occupancy_allowed_pct": kernel.figures.get(ALLOWED),
                "occupancy_limiter": kernel.limiter,
                "registers": _whole(kernel.figures.get(REGISTERS)),
                "shared_bytes": _whole(kernel.figures.get(SHARED)),
                "waves": kernel.waves,
                "tail_pct": kernel.tail_pct,
                "advice": " ".join(dict.fromkeys(rule.name for rule in self.rules if rule.kernel == kernel.id)),
            }
            for kernel in self.kernels
        ]

    def summary(self) -> str:
        """Return kernels with their shares of the peaks, the slowest first, and below each its advice."""
        gpu_us = self.figures.get("gpu_us")
        compared = ""
        if gpu_us and not self.part:
            change = f"{100 * (self.us / float(gpu_us) - 1):+.1f} %"
            compared = f" ({change} compared with the benchmark's {gpu_us:.4g} us, which contains gaps)"
        text = [f"{len(self.kernels)} kernels, {self.us:.4g} us on the GPU{compared}", *filter(None, [self.note])]
        slowest = sorted(self.kernels, key=lambda kernel: -kernel.us)
        rows = [["kernel", "us", "SM %", "DRAM %", "occ. %", "waves", "limited by"]]
        for kernel in slowest:
            shares = (_text(kernel.figures.get(name), ".1f") for name in (SM, DRAM, OCCUPANCY))
            name = _shortened(plain(kernel.name), LONGEST_NAME)
            rows.append([name, f"{kernel.us:.4g}", *shares, _text(kernel.waves, ".2f"), kernel.limiter])
        header, *lines = text_table(rows, left=(0, 6))
        text.append(header)
        for kernel, line in zip(slowest, lines, strict=True):
            advice = [rule.advice for rule in self.rules if rule.kernel == kernel.id]
            text += [
                line,
                *(textwrap.fill(one, WIDTH, initial_indent="    - ", subsequent_indent=" " * 6) for one in advice),
            ]
        return "\n".join([*text, ""])


def plain(name: str) -> str:
    """Return a kernel's name without its result, arguments and template parameters."""
    name = name.removeprefix("void ").replace("<unnamed>::", "").replace("(anonymous namespace)::", "")
    while name != (name := re.sub(r"<[^<>]*>|\([^()]*\)", "", name)):
        pass
    return name.strip()


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def _text(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
