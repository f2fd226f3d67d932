"""What Nsight Compute prints of a report: pages of CSV → kernels with figures in base units, and its rules' advice.

The page ``raw`` has a line of names, a line of units, and a line per kernel; ``details`` a line per metric or rule.
Both may stand below lines of ncu's own, which begin with ``==``. Units are scaled (``129.1,us``) or not, as
``--print-units base`` is not heeded by every release. A figure that the GPU does not have is empty, ``n/a`` or ``nan``.
"""

from __future__ import annotations

import csv
import io
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from runner.experiment.case import Scalar

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


NEVER_GRAVEST = {"MemoryL2Compression"}  # its advice is memory that can be compressed, which torch does not allocate
HINT, NAME = 300, 48  # characters of a hint in a row, and of a kernel's name on a page
WIDTH = 118  # of that page


@dataclass(frozen=True)
class Profile:
    """Kernels of one call in their order. ``part``: why they may not be all of them; ``figures``: of the row so far."""

    kernels: Sequence[Kernel]
    rules: Sequence[Rule]
    part: str
    figures: Mapping[str, Scalar]

    @cached_property
    def us(self) -> float:
        """Time on the GPU of all kernels that were profiled."""
        return sum(kernel.us for kernel in self.kernels)

    @cached_property
    def dominant(self) -> Kernel:
        """The longest launch of the kernel that takes the most time of the call."""
        times: dict[str, float] = {}
        for kernel in self.kernels:
            times[kernel.name] = times.get(kernel.name, 0.0) + kernel.us
        name = max(times, key=lambda name: times[name])
        return max((kernel for kernel in self.kernels if kernel.name == name), key=lambda kernel: kernel.us)

    def columns(self) -> dict[str, Scalar]:
        """Figures of the row: shares weighted by time over the kernels; launch figures are the dominant kernel's.

        What is of a whole call is left out where only part of one was profiled.
        """
        moved = [kernel.dram_bytes for kernel in self.kernels]
        whole: dict[str, Scalar] = {} if self.part else {"ncu_gpu_us": self.us}
        if not self.part and None not in moved:
            dram_bytes = sum(filter(None, moved))
            whole |= {"dram_bytes": dram_bytes}
            if least := self.figures.get("bytes_min"):
                whole |= {"bytes_ratio": dram_bytes / float(least)}
        one = self.dominant
        registers, clock = one.figures.get(REGISTERS), self._weighted(CLOCK)
        found: dict[str, Scalar] = {
            **whole,
            "ncu_kernels": len(self.kernels),
            "ncu_kernel": one.name,
            "sm_pct": self._weighted(SM),
            "dram_pct": self._weighted(DRAM),
            "occupancy_pct": self._weighted(OCCUPANCY),
            "occupancy_limiter": one.limiter or None,
            "registers": None if registers is None else int(registers),
            "waves": one.waves,
            "tail_pct": one.tail_pct,
            "ncu_clock_mhz": None if clock is None else clock / 1e6,
            "ncu_hint": self.hint or None,
            "ncu_note": self.note or None,
        }
        return {name: value for name, value in found.items() if value is not None}

    def _weighted(self, name: str) -> float | None:
        """Mean of figure ``name`` over the time of the kernels that have it."""
        some = [(kernel.us, kernel.figures[name]) for kernel in self.kernels if name in kernel.figures]
        time = sum(us for us, _ in some)
        return sum(us * value for us, value in some) / time if time else None

    @cached_property
    def note(self) -> str:
        """In what the profile may differ from the call; "" if in nothing."""
        expected = self.figures.get("n_kernels")
        if self.part or not isinstance(expected, int | float) or expected == len(self.kernels):
            return self.part
        which = "copies and fills are none to it" if len(self.kernels) < expected else "under ncu the call is another"
        return f"ncu saw {len(self.kernels)} kernels, the benchmark {int(expected)} kernels, copies and fills: {which}"

    @cached_property
    def hint(self) -> str:
        """The rule that promises most of the call's time; of one section only, if there is no other."""
        weight = {kernel.id: kernel.us / self.us if self.us else 0.0 for kernel in self.kernels}
        some = [rule for rule in self.rules if rule.name not in NEVER_GRAVEST and rule.speedup_pct > 0]
        some = [rule for rule in some if rule.of_kernel] or some
        gravest = max(some, key=lambda rule: rule.speedup_pct * weight.get(rule.kernel, 0.0), default=None)
        if gravest is None:
            return ""
        of = next((plain(kernel.name) for kernel in self.kernels if kernel.id == gravest.kernel), "")
        return _shortened(f"{of}: {_advice(gravest)}", HINT)

    def csv(self) -> str:
        """A line per kernel, in the order of their launches."""
        page = io.StringIO()
        lines = [self._line(kernel) for kernel in self.kernels]
        writer = csv.DictWriter(page, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        return page.getvalue()

    def _line(self, kernel: Kernel) -> dict[str, object]:
        advice = (rule.name for rule in self.rules if rule.kernel == kernel.id)
        return {
            "launch": kernel.id,
            "kernel": kernel.name,
            "within": kernel.within,
            "grid": kernel.grid,
            "block": kernel.block,
            "gpu_us": _cell(kernel.us),
            "share_pct": _cell(100 * kernel.us / self.us if self.us else None),
            "sm_pct": _cell(kernel.figures.get(SM)),
            "memory_pct": _cell(kernel.figures.get(MEMORY)),
            "dram_pct": _cell(kernel.figures.get(DRAM)),
            "dram_bytes": _cell(kernel.dram_bytes),
            "occupancy_pct": _cell(kernel.figures.get(OCCUPANCY)),
            "occupancy_allowed_pct": _cell(kernel.figures.get(ALLOWED)),
            "occupancy_limiter": kernel.limiter,
            "registers": _cell(kernel.figures.get(REGISTERS)),
            "shared_bytes": _cell(kernel.figures.get(SHARED)),
            "waves": _cell(kernel.waves),
            "tail_pct": _cell(kernel.tail_pct),
            "advice": " ".join(dict.fromkeys(advice)),
        }

    def text(self) -> str:
        """Kernels with their shares of the peaks, the slowest first, and below each what ncu advises."""
        lines = [f"{len(self.kernels)} kernels, {self.us:.4g} us on the GPU{self._beside()}"]
        lines += [self.note] if self.note else []
        lines += [f"{'kernel':{NAME}} {'us':>9} {'SM %':>6} {'DRAM %':>6} {'occ. %':>6} {'waves':>7}  limited by"]
        for kernel in sorted(self.kernels, key=lambda kernel: -kernel.us):
            shares = (kernel.figures.get(name) for name in (SM, DRAM, OCCUPANCY))
            cells = [f"{_short(share, '.1f'):>6}" for share in shares]
            waves = f"{_short(kernel.waves, '.2f'):>7}"
            name = f"{_shortened(plain(kernel.name), NAME):{NAME}}"
            lines.append(f"{name} {kernel.us:9.4g} {' '.join(cells)} {waves}  {kernel.limiter}")
            advice = (_advice(rule) for rule in self.rules if rule.kernel == kernel.id)
            lines += [textwrap.fill(one, WIDTH, initial_indent="  - ", subsequent_indent="    ") for one in advice]
        return "\n".join(lines) + "\n"

    def _beside(self) -> str:
        gpu_us = self.figures.get("gpu_us")
        if self.part or not isinstance(gpu_us, int | float) or not gpu_us:
            return ""
        return (
            f" ({100 * (self.us / gpu_us - 1):+.1f} % beside the benchmark's {gpu_us:.4g} us, which has gaps between)"
        )


def plain(name: str) -> str:
    """A kernel's name without its result, its arguments and what its templates are of."""
    name = name.removeprefix("void ").replace("<unnamed>::", "").replace("(anonymous namespace)::", "")
    while name != (name := re.sub(r"<[^<>]*>|\([^()]*\)", "", name)):
        pass
    return name.strip()


def _advice(rule: Rule) -> str:
    of = "of the kernel" if rule.of_kernel else "locally"
    return f"{rule.name}{f' ({rule.speedup_pct:.3g} % {of})' if rule.speedup_pct else ''}: {rule.text}"


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def _short(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
