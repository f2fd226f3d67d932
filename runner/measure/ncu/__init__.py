"""``measure=ncu``: how each kernel of a call uses the GPU, by the hardware counters that Nsight Compute reads."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from runner.device import tools
from runner.experiment.case import Scalar
from runner.experiment.columns import Column
from runner.measure import RESULT, SUMMARY, CannotMeasure, MeasureContext, Quantity, result, write_csv
from runner.measure.ncu import report

if TYPE_CHECKING:
    from runner.timing import Call

BASE = ("SpeedOfLight", "LaunchStats", "Occupancy")
MEMORY = ("MemoryWorkloadAnalysis", "MemoryWorkloadAnalysis_Chart", "MemoryWorkloadAnalysis_Tables")
SECTIONS = {  # of ncu, by ``set``; BASE has what the columns need, and takes about ten replays per kernel
    "speed_of_light": BASE,
    "memory": (*BASE, *MEMORY),
    "occupancy": (*BASE, "SchedulerStats", "WarpStateStats"),
    "full": (),  # ncu's set of that name: 40 replays and megabytes per kernel
}
REPORT, LOG = "report.ncu-rep", "ncu.log"
GRACE_S, IMPORT_S = 20.0, 15.0  # for ncu to end after ``limit_s``, and to read a page of its report

# Shares are weighted by time over the kernels of a call; figures of a launch are those of the longest one.
COLUMNS: dict[str, Column] = {
    "ncu_gpu_us": Column("us", "time of a call's kernels by hardware counters, each run alone, without gaps"),
    "ncu_kernels": Column("", "kernels of one call that Nsight Compute profiled"),
    "ncu_kernel": Column("", "kernel that takes most of that time"),
    "sm_pct": Column("%", "throughput of the multiprocessors, relative to their peak", "higher"),
    "dram_pct": Column("%", "throughput of the GPU's memory, relative to its peak", "higher"),
    "dram_bytes": Column(
        "byte", "bytes that one call read from the GPU's memory and wrote to it, by hardware counters", "lower"
    ),
    "bytes_ratio": Column("", "dram_bytes over the minimum traffic; below 1 if data stayed in the L2 cache", "lower"),
    "occupancy_pct": Column("%", "active warps of a busy multiprocessor, relative to those that fit"),
    "occupancy_limiter": Column("", "what limits the occupancy: registers | shared memory | warps | blocks | barriers"),
    "registers": Column("", "registers per thread"),
    "waves": Column("", "blocks over the number of blocks that the GPU can run at once"),
    "tail_pct": Column("%", "share of the block slots of all waves that the last wave leaves empty", "lower"),
    "ncu_clock_mhz": Column("MHz", "clock of the multiprocessors under Nsight Compute"),
    "ncu_hint": Column("", "advice of Nsight Compute that promises the largest part of the call's time"),
    "ncu_note": Column("", "how the profile may differ from the call"),
    "ncu_slowdown": Column("", "latency under Nsight Compute, which replays each kernel, over latency_us"),
}

SIDE_BY_SIDE = (
    Quantity("time", "ncu_gpu_us"),
    Quantity("kernels", "ncu_kernels"),
    Quantity("GPU memory traffic", "dram_bytes"),
    Quantity("instructions", "instructions", "call"),
    Quantity("SM throughput", "sm_pct"),
    Quantity("GPU memory throughput", "dram_pct"),
    Quantity("occupancy", "occupancy_pct"),
    Quantity("longest kernel", "ncu_kernel"),
    Quantity("grid", "grid", "kernel"),
    Quantity("block", "block", "kernel"),
    Quantity("waves", "waves"),
    Quantity("registers per thread", "registers"),
    Quantity("shared memory per block", "shared_bytes", "kernel"),
    Quantity("occupancy is limited by", "occupancy_limiter"),
)

# What ncu prints → what is missing and what to do, where ncu's own words do not say it. The first that matches counts.
REFUSALS = (
    (
        r"ERR_NVGPUCTRPERM",
        "the GPU's counters are for root only (ERR_NVGPUCTRPERM): run as root, give a container --cap-add SYS_ADMIN, "
        "or load the driver with NVreg_RestrictProfilingToAdminUsers=0; rented containers often forbid it, and "
        "measure=profile needs none of it",
    ),
    (
        r"failed to connect to the CUDA driver|Cuda driver is not compatible|driver version is not supported",
        "ncu cannot connect to the CUDA driver: check it with nvidia-smi, and name an ncu that is no newer than the "
        "driver with measure.ncu.path=<ncu>",
    ),
    (
        r"LibraryNotLoaded",
        "ncu cannot load its library into the case (LibraryNotLoaded): a sandbox such as gVisor forbids it, so run "
        "outside of it",
    ),
)


@dataclass(frozen=True)
class Ncu:
    """Share of the GPU's peaks, bytes moved, occupancy and what limits it, per kernel of one call, and ncu's advice."""

    set: Literal["speed_of_light", "memory", "occupancy", "full"]
    kernels: str | None
    most: Annotated[int, "at least 1"]
    cold_l2: bool
    limit_s: Annotated[float, "above 0"]
    path: str | None
    reference: str | None
    args: str | None

    def __post_init__(self) -> None:
        try:
            shlex.split(self.args or "")
        except ValueError as error:
            raise ValueError(f"args: {self.args!r} is no command line: {error}") from None

    def measure(self, call: Call, context: MeasureContext) -> dict[str, Scalar]:
        """Return figures by hardware counters of one call, made in a separate process under ncu.

        The files are ncu's report, kernels.csv with a line per kernel, and summary.txt with the advice. Raises
        CannotMeasure.
        """
        if context.device != "cuda":
            raise CannotMeasure("it profiles kernels on a GPU; leave it out with device=cpu")
        ncu = tools.find("ncu", self.path)
        if ncu is None:
            raise CannotMeasure(
                f"{self.path or 'ncu'} was not found: install Nsight Compute (it comes with the CUDA toolkit), or name "
                "it with measure.ncu.path=<ncu>"
            )
        found = self._profile(ncu, context)
        again = result(context.folder)
        (context.folder / RESULT).unlink(missing_ok=True)  # its times are those of a profiled process
        kernels = report.kernels(_page(ncu, found, "raw"))
        if not kernels:
            raise CannotMeasure(f"ncu wrote {found}, but no kernel can be read from it: open it with ncu-ui")
        rules = report.rules(_page(ncu, found, "details"))
        part = self._part(len(kernels), context.figures.get("n_kernels"))
        profile = report.Profile(kernels, rules, part, context.figures)
        lines = profile.lines()
        write_csv(context.folder / "kernels.csv", list(lines[0]), lines)
        (context.folder / SUMMARY).write_text(profile.summary(), encoding="utf-8")
        calls_us, latency_us = again.get("calls_us"), context.figures.get("latency_us")
        figures = profile.columns()
        if calls_us and latency_us:
            figures["ncu_slowdown"] = sum(calls_us) / len(calls_us) / float(latency_us)
        return figures

    def command(self, ncu: str, target: Path, program: Sequence[str]) -> list[str]:
        """Return the command that profiles ``program`` into ``target``.

        The profiled region is between start and stop of CUDA's profiler. An NVTX range would not do, since it belongs
        to one thread, and autograd launches the kernels of a backward from another.
        """
        sections = [word for section in SECTIONS[self.set] for word in ("--section", section)]
        return [
            *(ncu, "--target-processes", "all", "--profile-from-start", "off", "--nvtx"),
            *("--replay-mode", "kernel", "--clock-control", "none"),
            *("--cache-control", "all" if self.cold_l2 else "none"),
            *(sections or ("--set", "full")),
            *("--metrics", ",".join(report.ASKED)),
            *(("--kernel-name-base", "demangled", "--kernel-name", f"regex:{self.kernels}") if self.kernels else ()),
            *("--launch-count", str(self.most)),
            *shlex.split(self.args or ""),
            *("--force-overwrite", "--export", str(target)),
            *program,
        ]

    def _profile(self, ncu: str, context: MeasureContext) -> Path:
        """Run the case under ncu; return the path of the report. Raises CannotMeasure."""
        target, log = context.folder / REPORT, context.folder / LOG
        for file in (target, context.folder / RESULT):  # of a first attempt that ran out of memory
            file.unlink(missing_ok=True)
        words = self.command(ncu, target, context.command(calls=1, cold_l2=self.cold_l2))
        ended = tools.run(words, log, self.limit_s, grace_s=GRACE_S)
        if ended.timed_out:
            raise CannotMeasure(
                f"ncu was not done after {self.limit_s:g} s: take a smaller measure.ncu.set or measure.ncu.most, or "
                "a larger measure.ncu.limit_s with a launcher.measure_limit_s that is a minute longer"
            )
        failed = str(result(context.folder).get("error", ""))
        if target.is_file() and not failed:
            return target
        reason = f"under ncu the case fails: {failed}" if target.is_file() else _why_no_report(ended, failed)
        raise CannotMeasure(f"{reason} (its output is in {log})")

    def _part(self, profiled: int, expected: Scalar | None) -> str:
        """Return why the profiled kernels may not be all of the call's; "" if they are."""
        if self.kernels:
            return f"only the call's kernels that match measure.ncu.kernels={self.kernels}"
        if profiled >= self.most and expected != profiled:
            return f"only the call's first {self.most} kernels (measure.ncu.most)"
        return ""


def _page(ncu: str, found: Path, page: str) -> str:
    """Return ``page`` of the report ``found`` as CSV. Raises CannotMeasure."""
    log = found.with_name(f"{page}.txt")  # not .csv, which W&B would show as a table of two thousand columns
    words = [ncu, "--import", str(found), "--csv", "--page", page, "--print-units", "base"]
    ended = tools.run(words, log, IMPORT_S, {"LC_ALL": "C"}, grace_s=1.0)
    if ended.code:
        raise CannotMeasure(f"ncu cannot read its own report back: type {shlex.join(words)} to see why")
    log.unlink()
    return ended.output


def _why_no_report(ended: tools.Ended, failed: str) -> str:
    """Return why ncu wrote no report, in its own words if no other reason is known. ``failed``: error of the case."""
    own = "\n".join(line for line in ended.output.splitlines() if line.startswith("=="))  # without the case's output
    for pattern, reason in REFUSALS:
        if re.search(pattern, own or ended.output, re.IGNORECASE):
            return reason
    if failed:
        return f"under ncu the case fails: {failed}"
    if error := re.search(r"^==ERROR== *(.+)$", own, re.MULTILINE):
        return f"ncu reports: {error[1]}"
    if "No kernels were profiled" in own:
        return "ncu saw no kernel: measure.ncu.kernels matches none, or the call launches none"
    return f"ncu ended with code {ended.code} and wrote no report: check measure.ncu.args"
