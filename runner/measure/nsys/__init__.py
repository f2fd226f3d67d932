"""``measure=nsys``: the case once more under NVIDIA Nsight Systems, and what its timeline says."""

from __future__ import annotations

import shlex
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from runner.device import tools
from runner.experiment.case import Scalar
from runner.experiment.schema import Program
from runner.measure import RESULT, SUMMARY, CannotMeasure, MeasureContext, result
from runner.measure.nsys import tables
from runner.measure.nsys.command import Command
from runner.measure.nsys.database import read
from runner.measure.nsys.faults import MISSING, NO_GPU, found_report, of_export, of_profile, of_timeline
from runner.measure.nsys.summary import summary
from runner.measure.nsys.timeline import Timeline
from runner.timing.statistics import trimmed_mean

if TYPE_CHECKING:
    from runner.models.workload import Call

GRACE_S = 30.0  # beyond ``limit_s``, for nsys to write what it has
EXPORT_S = 20.0  # beyond ``limit_s``, in any case, to read the report
REPORT, LOG, COMMAND = "report", "nsys.log", "command.txt"
KEPT = (RESULT, SUMMARY, f"{REPORT}.nsys-rep", f"{REPORT}.qdstrm", *(f"{name}.csv" for name in tables.NAMES))


@dataclass(frozen=True)
class Nsys:
    """Kernels, ranges, API calls, copies and gaps of a call, by the tool's own clock; the report is kept."""

    path: Program | None
    preset: Literal["light", "full"]
    calls: Annotated[int, "at least 1"]
    limit_s: Annotated[float, "above 0"]
    args: tuple[Program, ...]

    def __post_init__(self) -> None:
        for word in self.args:
            if not word.startswith("-"):
                raise ValueError(f"args: {word!r} is no option of nsys profile; give words like --sample=process-tree")

    def measure(self, call: Call, context: MeasureContext) -> dict[str, Scalar]:
        """Figures of a call as nsys saw it; tables, report and command are files. Raises CannotMeasure."""
        if context.device != "cuda":
            raise CannotMeasure(NO_GPU)
        program = tools.find("nsys", self.path)
        if program is None:
            raise CannotMeasure(MISSING if self.path is None else f"measure.nsys.path={self.path} is no program")
        timeline, again, notes = self.record(program, context.command(self.calls), context.folder)
        unprofiled_us = context.figures.get("latency_us")
        beside_us = _latency_us(call) if unprofiled_us is None else float(unprofiled_us)
        notes += timeline.notes(self.calls, context.expected)
        return _told(self, context.folder, timeline, trimmed_mean(again["calls_us"]), beside_us, notes)

    def record(self, program: str, case: list[str], folder: Path) -> tuple[Timeline, Mapping[str, Any], list[str]]:
        """``case``, a command that writes ``again.json`` into ``folder``, under ``program``: what came of it.

        The timeline, the case's own result, and notes. Raises CannotMeasure.
        """
        began_s = time.monotonic()
        for name in KEPT:  # of an earlier session in this folder
            (folder / name).unlink(missing_ok=True)
        command = Command.of(program, self.preset, self.args)
        words = command.profile(folder / REPORT, case)
        (folder / COMMAND).write_text(shlex.join(words) + "\n", encoding="utf-8")
        ended = _run(words, folder / LOG, self.limit_s, GRACE_S)
        again = result(folder)
        if fault := of_profile(ended, again, self.limit_s, folder / LOG):
            raise CannotMeasure(fault)
        report, note = found_report(ended, folder / f"{REPORT}.nsys-rep")
        left_s = max(self.limit_s - (time.monotonic() - began_s), 0.0) + EXPORT_S
        timeline = _export(command, report, left_s)
        if fault := of_timeline(timeline):
            raise CannotMeasure(f"{fault}; what it saw is in {report}")
        return timeline, again, [text for text in (note, *command.notes) if text]


def _export(command: Command, report: Path, limit_s: float) -> Timeline:
    """What ``report`` holds. Raises CannotMeasure.

    Through a folder of this machine's own, for a file system without locks would say that a database is locked.
    """
    with tempfile.TemporaryDirectory(prefix="nsys-") as place:
        database = Path(place) / "report.sqlite"
        ended = _run(command.export(report, database), Path(place) / "log", limit_s, 1.0)
        if fault := of_export(ended, database, report, limit_s):
            raise CannotMeasure(fault)
        return read(database)


def _run(words: list[str], log: Path, limit_s: float, grace_s: float) -> tools.Ended:
    try:
        return tools.run(words, log, limit_s, grace_s=grace_s)
    except OSError as error:
        why = f"{words[0]} cannot be started: {error.strerror}; name another one: measure.nsys.path=..."
        raise CannotMeasure(why) from error


def _latency_us(call: Call) -> float:
    """Host time of a call that nobody looks at, where no benchmark has taken it."""
    from runner.timing.instruments import as_seen_by_caller
    from runner.timing.preparation import preparation

    return float(as_seen_by_caller(call.run, preparation(call.reset, cold_l2=True))["latency_us"] or 0.0)


def _told(
    nsys: Nsys, folder: Path, timeline: Timeline, under_us: float, beside_us: float, notes: list[str]
) -> dict[str, Scalar]:
    """Tables and summary into ``folder``; the figures."""
    figures = tables.figures(timeline)
    figures["nsys_overhead_pct"] = (under_us / beside_us - 1) * 100
    figures["nsys_note"] = "; ".join(notes)
    found = tables.tables(timeline)
    tables.write(found, folder)
    head = f"Nsight Systems {timeline.version}, preset {nsys.preset}, {len(timeline.calls)} calls; of one call:"
    command = (folder / COMMAND).read_text(encoding="utf-8").strip()
    text = summary(head, figures, found, under_us, beside_us, command)
    (folder / SUMMARY).write_text(text, encoding="utf-8")
    return figures
