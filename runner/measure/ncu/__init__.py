"""``measure=ncu``: how each kernel of a call uses the GPU, by its hardware counters, which Nsight Compute reads."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from runner.device import tools
from runner.experiment.case import Scalar
from runner.experiment.schema import Program
from runner.measure import RESULT, SUMMARY, CannotMeasure, MeasureContext, result
from runner.measure.ncu import refusals, report, summary

if TYPE_CHECKING:
    from runner.models.workload import Call

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


@dataclass(frozen=True)
class Ncu:
    """Share of the GPU's peaks, bytes moved, occupancy and what limits it, per kernel of one call, and ncu's advice."""

    set: Literal["speed_of_light", "memory", "occupancy", "full"]
    kernels: str | None
    most: Annotated[int, "at least 1"]
    cold_l2: bool
    limit_s: Annotated[float, "above 0"]
    path: Program | None
    args: Program | None

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
        said = summary.Profile(kernels, rules, self._part(len(kernels), context.expected), context.figures)
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
        if told := refusals.known(ended.said):
            return told
        if error := result(context.folder).get("error"):
            return f"under ncu the case fails: {error}"
        if told := refusals.own(ended.said):
            return told
        if refusals.NOTHING.search(ended.said):
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
    return {"ncu_overhead_x": sum(calls_us) / len(calls_us) / latency_us}
