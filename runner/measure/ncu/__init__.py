"""``measure=ncu``: how each kernel of a call uses the GPU, by its hardware counters, which Nsight Compute reads."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from runner.device import tools
from runner.experiment.case import Scalar
from runner.experiment.columns import Column
from runner.measure import RESULT, SUMMARY, CannotMeasure, MeasureContext, result
from runner.measure.ncu import report

if TYPE_CHECKING:
    from runner.timing import Call

BASE = ("SpeedOfLight", "LaunchStats", "Occupancy")
MEMORY = ("MemoryWorkloadAnalysis", "MemoryWorkloadAnalysis_Chart", "MemoryWorkloadAnalysis_Tables")
SECTIONS = {  # of ncu, by ``set``: what the columns are made of is in BASE, and costs ten replays or so
    "speed_of_light": BASE,
    "memory": (*BASE, *MEMORY),
    "occupancy": (*BASE, "SchedulerStats", "WarpStateStats"),
    "full": (),  # ncu's own set of that name: 40 replays, and megabytes a kernel
}
REPORT, LOG = "report.ncu-rep", "ncu.log"
GRACE_S, IMPORT_S = 20.0, 15.0  # of a launcher's limit, what is left for ncu to end in and for reading its report


# Shares are weighted by time over the kernels of a call; what is of a launch is the longest one's.
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


@dataclass(frozen=True)
class Ncu:
    """Share of the GPU's peaks, bytes moved, occupancy and what limits it, per kernel of one call, and ncu's advice."""

    set: Literal["speed_of_light", "memory", "occupancy", "full"]
    kernels: str | None
    most: Annotated[int, "at least 1"]
    cold_l2: bool
    limit_s: Annotated[float, "above 0"]
    path: str | None
    args: str | None

    def __post_init__(self) -> None:
        try:
            shlex.split(self.args or "")
        except ValueError as error:
            raise ValueError(f"args: {self.args!r} is no command line: {error}") from None

    def measure(self, call: Call, context: MeasureContext) -> Mapping[str, Scalar | Sequence[float]]:
        """Figures by hardware counters of one call, made anew in a process under ncu.

        The report is kept, with a line per kernel in kernels.csv and the advice in summary.txt. Raises CannotMeasure.
        """
        if context.device != "cuda":
            raise CannotMeasure("it looks at kernels on a GPU; leave it out with device=cpu")
        ncu = tools.find("ncu", self.path)
        if ncu is None:
            raise CannotMeasure(
                f"{self.path or 'ncu'} is not there: install Nsight Compute (it comes with the CUDA toolkit), or name "
                "it with measure.ncu.path=<ncu>"
            )
        found = self._profile(ncu, context)
        kernels = report.kernels(_page(ncu, found, "raw"))
        if not kernels:
            raise CannotMeasure(f"ncu has written {found}, and no kernel can be read from it: open it with ncu-ui")
        rules = report.rules(_page(ncu, found, "details"))
        said = report.Profile(kernels, rules, self._part(len(kernels), context.expected), context.figures)
        (context.folder / "kernels.csv").write_text(said.csv(), encoding="utf-8")
        (context.folder / SUMMARY).write_text(said.text(), encoding="utf-8")
        return {**said.columns(), **_overhead(context)}

    def command(self, ncu: str, target: Path, program: Sequence[str]) -> list[str]:
        """The words that profile ``program`` into ``target``.

        What is profiled is between start and stop of CUDA's profiler rather than in an NVTX range: a range is of one
        thread, and autograd launches a backward's kernels from another.
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
        """Where the report is. Raises CannotMeasure."""
        target = context.folder / REPORT
        for file in (target, context.folder / RESULT):  # of a first try, which ran out of memory
            file.unlink(missing_ok=True)
        try:
            words = self.command(ncu, target, context.command(calls=1, cold_l2=self.cold_l2))
            ended = tools.run(words, context.folder / LOG, self.limit_s, grace_s=GRACE_S)
        except OSError as error:
            raise CannotMeasure(f"{ncu} cannot be started ({error.strerror}): see measure.ncu.path") from None
        if ended.late:
            raise CannotMeasure(
                f"ncu was not done after {self.limit_s:g} s: take a smaller measure.ncu.set or measure.ncu.most, or "
                "give it longer by measure.ncu.limit_s, and by launcher.measure_limit_s a minute more than that"
            )
        if not target.is_file():
            raise CannotMeasure(f"{self._why(ended, context)} (all it said is in {context.folder / LOG})")
        if failed := result(context.folder).get("error"):
            raise CannotMeasure(f"under ncu the case fails: {failed}")
        return target

    def _why(self, ended: tools.Ended, context: MeasureContext) -> str:
        """There is no report."""
        if told := known(ended.said):
            return told
        if error := result(context.folder).get("error"):
            return f"under ncu the case fails: {error}"
        if told := own(ended.said):
            return told
        if NOTHING.search(ended.said):
            return "ncu saw no kernel: measure.ncu.kernels matches none, or the call launches none"
        return f"ncu ended with code {ended.code} and wrote no report: see what measure.ncu.args does"

    def _part(self, profiled: int, expected: int | None) -> str:
        """Why the kernels profiled may not be all of the call's; "" if they are."""
        if self.kernels:
            return f"of the call's kernels only those of measure.ncu.kernels={self.kernels}"
        if profiled >= self.most and expected != profiled:
            return f"of the call's kernels only the first {self.most} (measure.ncu.most)"
        return ""


def _page(ncu: str, found: Path, page: str) -> str:
    """``page`` of the report ``found`` as CSV. Raises CannotMeasure."""
    log = found.with_name(f"{page}.txt")  # no .csv, which would become a table of two thousand columns
    words = [ncu, "--import", str(found), "--csv", "--page", page, "--print-units", "base"]
    try:
        ended = tools.run(words, log, IMPORT_S, {"LC_ALL": "C"}, grace_s=1.0)
    except OSError as error:
        raise CannotMeasure(f"{ncu} cannot be started ({error.strerror}): see measure.ncu.path") from None
    if ended.code:
        raise CannotMeasure(
            f"ncu cannot read its own report back (code {ended.code}): type {' '.join(words)} to see why"
        )
    log.unlink()
    return ended.said


def _overhead(context: MeasureContext) -> dict[str, Scalar]:
    """How much slower a caller is served under ncu, which replays every kernel.

    The times of a profiled process are not kept.
    """
    calls_us, latency_us = result(context.folder).get("calls_us"), context.figures.get("latency_us")
    (context.folder / RESULT).unlink(missing_ok=True)
    if not isinstance(calls_us, list) or not isinstance(latency_us, int | float):
        return {}
    return {"ncu_slowdown": sum(calls_us) / len(calls_us) / latency_us}


REFUSALS = (  # what it prints → what is missing and what to do; the first that is found
    (
        r"ERR_NVGPUCTRPERM",
        "the GPU's counters are for root only (ERR_NVGPUCTRPERM): run as root, give a container --cap-add SYS_ADMIN, "
        "or load the driver with NVreg_RestrictProfilingToAdminUsers=0; rented containers often forbid it, and "
        "measure=profile needs none of it",
    ),
    (
        r"failed to connect to the CUDA driver|Cuda driver is not compatible|driver version is not supported",
        "ncu cannot talk to this driver: give it one that works (nvidia-smi), and an ncu no newer than it, by "
        "measure.ncu.path=<ncu>",
    ),
    (
        r"driver resource was unavailable|DriverResourceUnavailable",
        "the GPU's counters are in use: end what else reads them (DCGM: dcgmi profile --pause; another ncu, nsys with "
        "GPU metrics), and run it again",
    ),
    (
        r"nsight-compute-lock",
        "ncu's lock file belongs to another user: remove nsight-compute-lock from the folder of temporary files, or "
        "set TMPDIR to a folder of your own",
    ),
    (
        r"LibraryNotLoaded",
        "ncu cannot load its library into the case (LibraryNotLoaded): a sandbox such as gVisor forbids it, so run it "
        "outside",
    ),
    (
        r"Profiling is not supported|UnsupportedGpu",
        "ncu cannot profile this GPU: WSL, vGPU, MIG and GPUs older or newer than it may be why; see measure.ncu.path",
    ),
    (
        r"unrecogni[sz]ed option|the argument .* is invalid",
        "ncu does not know one of its options: see measure.ncu.args, and give it a newer ncu by measure.ncu.path=<ncu>",
    ),
    (
        r"(?:Failed to find|Unknown|No matching|Unable to find) (?:metric|section|set)",
        "this ncu lacks one of the metrics asked for: take another measure.ncu.set, or a newer ncu by "
        "measure.ncu.path=<ncu>",
    ),
    (
        r"No space left on device|Failed to (?:write|open) .*report",
        "ncu could not write its report: make room on the disk, or set output_dir=<folder on another>",
    ),
)
NOTHING = re.compile(r"No kernels were profiled", re.IGNORECASE)
OWN = re.compile(r"^==ERROR== *(.+)$", re.MULTILINE)


def known(said: str) -> str:
    """Why there is no report, by what ncu has ``said``: one of the above; "" if none of them."""
    text = _own_lines(said) or said
    return next((told for pattern, told in REFUSALS if re.search(pattern, text, re.IGNORECASE)), "")


def own(said: str) -> str:
    """Its own first error; "" if it names none."""
    found = OWN.search(_own_lines(said))
    return f"ncu says: {found[1]}" if found else ""


def _own_lines(said: str) -> str:
    """What ncu has said, and not the case, which prints to the same place."""
    return "\n".join(line for line in said.splitlines() if line.startswith("=="))
