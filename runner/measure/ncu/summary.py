"""What a profile by Nsight Compute comes to: columns of a row, a line per kernel, and a page to read."""

from __future__ import annotations

import csv
import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from runner.experiment.case import Scalar
from runner.measure.ncu import report
from runner.measure.ncu.report import Kernel, Rule

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
        """By ``runner.experiment.columns``: shares weighted by time over the kernels; what is of a launch, of the dominant one.

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
        registers, clock = one.figures.get(report.REGISTERS), self._weighted(report.CLOCK)
        found: dict[str, Scalar] = {
            **whole,
            "ncu_kernels": len(self.kernels),
            "ncu_kernel": one.name,
            "sm_pct": self._weighted(report.SM),
            "dram_pct": self._weighted(report.DRAM),
            "occupancy_pct": self._weighted(report.OCCUPANCY),
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
            "sm_pct": _cell(kernel.figures.get(report.SM)),
            "memory_pct": _cell(kernel.figures.get(report.MEMORY)),
            "dram_pct": _cell(kernel.figures.get(report.DRAM)),
            "dram_bytes": _cell(kernel.dram_bytes),
            "occupancy_pct": _cell(kernel.figures.get(report.OCCUPANCY)),
            "occupancy_allowed_pct": _cell(kernel.figures.get(report.ALLOWED)),
            "occupancy_limiter": kernel.limiter,
            "registers": _cell(kernel.figures.get(report.REGISTERS)),
            "shared_bytes": _cell(kernel.figures.get(report.SHARED)),
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
            shares = (kernel.figures.get(name) for name in (report.SM, report.DRAM, report.OCCUPANCY))
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
