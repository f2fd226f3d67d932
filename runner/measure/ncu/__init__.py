"""``measure=ncu``: hardware counters of each kernel of a call, by Nsight Compute."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from ...device import tools
from ...records.case import Scalar
from ...records.columns import Column
from ...timing.call import Call
from .. import RESULT, SUMMARY, CannotMeasure, MeasureContext, result, write_csv
from ..columns import ComparedQuantity
from . import report

BASE = ("SpeedOfLight", "LaunchStats", "Occupancy")
MEMORY = ("MemoryWorkloadAnalysis", "MemoryWorkloadAnalysis_Chart", "MemoryWorkloadAnalysis_Tables")
SECTIONS = {  # sections of ncu by ``set``; BASE suffices for the columns, with about ten replays per kernel
    "speed_of_light": BASE,
    "memory": (*BASE, *MEMORY),
    "occupancy": (*BASE, "SchedulerStats", "WarpStateStats"),
    "full": (),  # ncu's own set: 40 replays and megabytes per kernel
}
REPORT, LOG = "report.ncu-rep", "ncu.log"
GRACE_S, IMPORT_S = 20.0, 15.0  # to end ncu after ``limit_s``; to read a page of its report

# Percentages are means over the kernels of a call, weighted by time. Launch figures describe the longest kernel.
COLUMNS: dict[str, Column] = {
    "ncu_gpu_us": Column("us", "time of a call's kernels by hardware counters, each run alone, without gaps"),
    "ncu_kernels": Column("", "kernels of one call that Nsight Compute profiled"),
    "ncu_kernel": Column("", "kernel that takes most of that time"),
    "sm_pct": Column("%", "throughput of the multiprocessors, relative to their peak", "higher"),
    "dram_pct": Column("%", "throughput of the GPU's memory, relative to its peak", "higher"),
    "dram_bytes": Column("byte", "bytes of one call to and from the GPU's memory, by hardware counters", "lower"),
    "bytes_ratio": Column("", "dram_bytes over the minimum traffic; below 1 if data stayed in the L2 cache", "lower"),
    "occupancy_pct": Column("%", "active warps of a busy multiprocessor, relative to those that fit"),
    "occupancy_limiter": Column("", "what limits the occupancy: registers | shared memory | warps | blocks | barriers"),
    "registers": Column("", "registers per thread"),
    "waves": Column("", "blocks over the number of blocks that the GPU can run at once"),
    "tail_pct": Column("%", "share of the block slots of all waves that the last wave leaves empty", "lower"),
    "active_threads": Column("", "threads of a warp that execute an instruction; 32 without divergence", "higher"),
    "load_sectors": Column(
        "", "sectors of 32 bytes per request of a warp to load; 4 for 32 numbers of 4 bytes in a row", "lower"
    ),
    "store_sectors": Column("", "sectors of 32 bytes per request of a warp to store", "lower"),
    "load_used_pct": Column("%", "share of the bytes of those sectors that the loads ask for", "higher"),
    "store_used_pct": Column("%", "share of the bytes of those sectors that the stores write", "higher"),
    "ncu_clock_mhz": Column("MHz", "clock of the multiprocessors under Nsight Compute"),
    "ncu_hint": Column("", "advice of Nsight Compute that promises the largest part of the call's time"),
    "ncu_note": Column("", "how the profile may differ from the call"),
    "ncu_slowdown": Column("", "latency under Nsight Compute, which replays each kernel, over latency_us"),
}

SIDE_BY_SIDE = (
    ComparedQuantity("time", "ncu_gpu_us"),
    ComparedQuantity("kernels", "ncu_kernels"),
    ComparedQuantity("GPU memory traffic", "dram_bytes"),
    ComparedQuantity("instructions", "instructions", "call"),
    ComparedQuantity("SM throughput", "sm_pct"),
    ComparedQuantity("GPU memory throughput", "dram_pct"),
    ComparedQuantity("active threads of a warp", "active_threads"),
    ComparedQuantity("sectors per load", "load_sectors"),
    ComparedQuantity("sectors per store", "store_sectors"),
    ComparedQuantity("occupancy", "occupancy_pct"),
    ComparedQuantity("longest kernel", "ncu_kernel"),
    ComparedQuantity("grid", "grid", "kernel"),
    ComparedQuantity("block", "block", "kernel"),
    ComparedQuantity("waves", "waves"),
    ComparedQuantity("registers per thread", "registers"),
    ComparedQuantity("shared memory per block", "shared_bytes", "kernel"),
    ComparedQuantity("occupancy is limited by", "occupancy_limiter"),
)

NO_DRIVER = r"failed to connect to the CUDA driver|Cuda driver is not compatible|driver version is not supported"
# Pattern in ncu's output → what is missing and what to do. The first pattern that matches counts.
REFUSALS = {
    r"ERR_NVGPUCTRPERM": "the GPU's counters are for root only (ERR_NVGPUCTRPERM): run as root, give a container "
    "--cap-add SYS_ADMIN, or load the driver with NVreg_RestrictProfilingToAdminUsers=0; rented containers often "
    "forbid it, and measure=profile needs none of it",
    NO_DRIVER: "ncu cannot connect to the CUDA driver: check it with nvidia-smi, and name an ncu that is not newer "
    "than the driver with measure.ncu.path=<ncu>",
    r"LibraryNotLoaded": "ncu cannot load its library into the case (LibraryNotLoaded): a sandbox such as gVisor "
    "forbids it, so run outside of it",
}


@dataclass(frozen=True)
class Ncu:
    """Percentages of the GPU's peaks, traffic, occupancy and its limiter per kernel of one call, with ncu's advice."""

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
            raise ValueError(f"args: {self.args!r} is not a command line: {error}") from None

    def measure(self, call: Call, context: MeasureContext) -> dict[str, Scalar]:
        """Return hardware counters of one call, which is made in a separate process under ncu.

        The files are ncu's report, kernels.csv with a line per kernel, summary.txt with advice. Raises CannotMeasure.
        """
        if context.device != "cuda":
            raise CannotMeasure("ncu profiles kernels on a GPU; leave it out with device=cpu")
        if context.of_rank:
            reason = "ncu runs each kernel alone several times, and one of a collective waits for other ranks"
            raise CannotMeasure(reason)
        if (ncu := tools.find_tool("ncu", self.path)) is None:
            raise CannotMeasure(
                f"{self.path or 'ncu'} was not found: install Nsight Compute (it comes with the CUDA toolkit), or name "
                "it with measure.ncu.path=<ncu>"
            )
        path = self._profile(ncu, context)
        calls_us, latency_us = result(context.folder).get("calls_us"), context.figures.get("latency_us")
        (context.folder / RESULT).unlink(missing_ok=True)  # its times are of a profiled process
        kernels = report.kernels(_page(ncu, path, "raw"))
        if not kernels:
            raise CannotMeasure(f"ncu wrote {path}, but its kernels cannot be read; open it with ncu-ui")
        rules = report.rules(_page(ncu, path, "details"))
        part = self._part(len(kernels), context.figures.get("n_kernels"))
        profile = report.NcuProfile(kernels, rules, part, context.figures)
        write_csv(context.folder / "kernels.csv", profile.lines())
        (context.folder / SUMMARY).write_text(profile.summary(), encoding="utf-8")
        figures = profile.columns()
        if calls_us and latency_us:
            figures["ncu_slowdown"] = sum(calls_us) / len(calls_us) / float(latency_us)
        return figures

    def command(self, ncu: str, target: Path, program: Sequence[str]) -> list[str]:
        """Return the command that profiles ``program`` into ``target``.

        CUDA's profiler starts and stops the profiled region. An NVTX range belongs to one thread, and autograd launches
        the kernels of a backward from another.
        """
        sections = [word for section in SECTIONS[self.set] for word in ("--section", section)]
        return [
            *(ncu, "--target-processes", "all", "--profile-from-start", "off", "--nvtx"),
            *("--replay-mode", "kernel", "--clock-control", "none"),
            *("--cache-control", "all" if self.cold_l2 else "none"),
            *(sections or ("--set", "full")),
            *("--metrics", ",".join(report.METRICS)),
            *(("--kernel-name-base", "demangled", "--kernel-name", f"regex:{self.kernels}") if self.kernels else ()),
            *("--launch-count", str(self.most)),
            *shlex.split(self.args or ""),
            *("--force-overwrite", "--export", str(target)),
            *program,
        ]

    def _profile(self, ncu: str, context: MeasureContext) -> Path:
        """Run the case under ncu; return the path of the report. Raises CannotMeasure."""
        target, log = context.folder / REPORT, context.folder / LOG
        target.unlink(missing_ok=True)  # from a first attempt that ran out of memory
        words = self.command(ncu, target, context.command(calls=1, cold_l2=self.cold_l2))
        ended = tools.run_tool(words, log, self.limit_s, grace_s=GRACE_S)
        if ended.timed_out:
            raise CannotMeasure(
                f"ncu was not done after {self.limit_s:g} s: take a smaller measure.ncu.set or measure.ncu.most, or "
                "a larger measure.ncu.limit_s with a launcher.measure_limit_s that is a minute longer"
            )
        case_error = str(result(context.folder).get("error", ""))
        if case_error or not target.is_file():
            raise CannotMeasure(f"{_failure(ended, case_error)} (its output is in {log})")
        return target

    def _part(self, profiled: int, expected: Scalar | None) -> str:
        """Return a note if only a part of the call's kernels was profiled, else ""."""
        if self.kernels:
            return f"only the call's kernels that match measure.ncu.kernels={self.kernels}"
        if profiled >= self.most and expected != profiled:
            return f"only the call's first {self.most} kernels (measure.ncu.most)"
        return ""


def _page(ncu: str, path: Path, page: str) -> str:
    """Return ``page`` of the report at ``path`` as CSV. Raises CannotMeasure."""
    log = path.with_name(f"{page}.txt")  # not .csv, which W&B would show as a table of two thousand columns
    command = [ncu, "--import", str(path), "--csv", "--page", page, "--print-units", "base"]
    ended = tools.run_tool(command, log, IMPORT_S, {"LC_ALL": "C"}, grace_s=1.0)
    if ended.code:
        raise CannotMeasure(f"ncu cannot read its own report; see: {shlex.join(command)}")
    log.unlink()
    return ended.output


def _failure(ended: tools.Ended, case_error: str) -> str:
    """Return the reason why ncu has not profiled the case: a known one, else the case's or ncu's own error."""
    lines = ended.output.splitlines()
    printed = "\n".join(line for line in lines if line.startswith("=="))  # without the case's output
    for pattern, reason in REFUSALS.items():
        if re.search(pattern, printed or ended.output, re.IGNORECASE):
            return reason
    if case_error:
        return f"under ncu the case fails: {case_error}"
    if error := re.search(r"^==ERROR== *(.+)$", printed, re.MULTILINE):
        return f"ncu reports: {error[1]}"
    if "No kernels were profiled" in printed:
        return "ncu saw no kernel: the call launches none, or none matches measure.ncu.kernels"
    return f"ncu ended with code {ended.code} and wrote no report: check measure.ncu.args"
