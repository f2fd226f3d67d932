"""``measure=nsys``: the case once more under NVIDIA Nsight Systems, and what its time line shows."""

from __future__ import annotations

import re
import shlex
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from runner.device import tools
from runner.device.processes import output
from runner.experiment.case import Scalar
from runner.measure import RESULT, SUMMARY, CannotMeasure, MeasureContext, result, write_csv
from runner.measure.nsys.export import Report, read
from runner.measure.timeline import tables
from runner.timing.statistics import trimmed_mean

if TYPE_CHECKING:
    from runner.timing import Call

GRACE_S = 30.0  # time after ``limit_s`` for nsys to write its recording
EXPORT_S = 20.0  # time to read the report, beyond the rest of ``limit_s``
REPORT, LOG, COMMAND = "report", "nsys.log", "command.txt"
LINES = 24  # of each table in the summary: parts of two steps of four layers
KEPT = (RESULT, SUMMARY, f"{REPORT}.nsys-rep", *(f"{name}.csv" for name in tables.SHOWN))

# By default nsys samples the CPU, which makes tens of megabytes per second of Python; it records a CUDA graph as one
# event; and it ends the program at the end of the range, before the result is written.
COMMON = ("--sample=none", "--cpuctxsw=none", "--cuda-graph-trace=node", "--force-overwrite=true")
PRESETS = {
    "light": ("--trace=cuda,nvtx", "--capture-range=cudaProfilerApi", "--capture-range-end=stop"),
    "full": ("--trace=cuda,nvtx,osrt", "--cuda-memory-usage=true"),
}
COLUMNS = tables.columns("nsys", "nsys")


def alone_us(call: Call, count: int) -> float:
    """Return the time in us of ``call`` without nsys, from ``count`` calls made as the recorded ones are: L2 cold."""
    from runner.timing.instruments import HostClock
    from runner.timing.preparation import preparation

    return trimmed_mean(HostClock(call.run, preparation(call.reset, cold_l2=True)).samples(count))


@dataclass(frozen=True)
class Nsys:
    """Kernels, ranges, API calls, copies and gaps of a call, by Nsight Systems, whose report is kept."""

    path: str | None
    preset: Literal["light", "full"]
    calls: Annotated[int, "at least 1"]
    limit_s: Annotated[float, "above 0"]
    args: tuple[str, ...]

    def __post_init__(self) -> None:
        for word in self.args:
            if not word.startswith("--"):
                raise ValueError(
                    f"args: {word!r} is no long option of nsys profile; give single words like --sample=process-tree"
                )

    def measure(self, call: Call, context: MeasureContext) -> dict[str, Scalar]:
        """Return figures of a call that nsys recorded; write tables, report and command as files.

        Raises CannotMeasure.
        """
        if context.device != "cuda":
            raise CannotMeasure("nsys records what a GPU does, and this case is on the CPU; take measure=profile there")
        program = tools.find("nsys", self.path)
        if program is None:
            raise CannotMeasure(
                f"{self.path or 'nsys'} was not found: install Nsight Systems (a package of the CUDA toolkit; the nsys "
                "inside Nsight Compute is incomplete), put it on PATH, or name it with measure.nsys.path=<nsys>"
            )
        report, again, notes = self.record(program, context.command(self.calls), context.folder)
        notes += [*report.notes(self.calls), *filter(None, [tables.note(report.calls, context.figures)])]
        slowdown = trimmed_mean(again["calls_us"]) / alone_us(call, self.calls)
        figures = tables.figures(report.calls, "nsys") | {"nsys_slowdown": slowdown, "nsys_note": "; ".join(notes)}
        found = tables.tables(report.calls, report.others)
        for name, lines in found.items():
            write_csv(context.folder / f"{name}.csv", list(lines[0]), lines)
        head = [
            f"Nsight Systems {report.version}, preset {self.preset}; means of {len(report.calls)} calls:",
            *tables.gpu_sentences(figures, "nsys"),
            f"under nsys a call takes {slowdown:.2f}x the time on the host",
            *([f"note: {figures['nsys_note']}"] if notes else []),
        ]
        command = (context.folder / COMMAND).read_text(encoding="utf-8").strip()
        end = f"\nrecorded by: {command}\nto look at: nsys-ui {REPORT}.nsys-rep\n"
        (context.folder / SUMMARY).write_text(tables.summary(head, found, LINES) + end, encoding="utf-8")
        return figures

    def record(self, program: str, case: list[str], folder: Path) -> tuple[Report, Mapping[str, Any], list[str]]:
        """Run ``case``, a command that writes ``again.json`` into ``folder``, under ``program``.

        Return the report, the result that the case wrote, and notes. Raises CannotMeasure.
        """
        began_s = time.monotonic()
        for name in KEPT:  # from an earlier session in this folder
            (folder / name).unlink(missing_ok=True)
        options, notes = profile_options(program, self.preset, self.args)
        path = str((folder / REPORT).absolute()).replace("%", "%%")  # nsys replaces %h and %p by host and process
        words = [program, "profile", *options, f"--output={path}", *case]  # without "--" before it, which nsys refuses
        (folder / COMMAND).write_text(shlex.join(words) + "\n", encoding="utf-8")
        log = folder / LOG
        ended = tools.run(words, log, self.limit_s, grace_s=GRACE_S)
        again = result(folder)
        if ended.timed_out:
            raise CannotMeasure(
                f"it was not done after {self.limit_s:g} s and was ended (its log is {log}); give fewer "
                "measure.nsys.calls, or more measure.nsys.limit_s and a launcher.measure_limit_s at least 50 s above it"
            )
        if not again:
            raise CannotMeasure(_why_no_result(ended, log))
        if "error" in again:
            raise CannotMeasure(f"the case could not be run again under nsys: {again['error']}")
        recording = folder / f"{REPORT}.nsys-rep"
        if not recording.is_file():
            raise CannotMeasure(
                "nsys wrote no report: the range to capture was never opened (leave --capture-range to the preset), "
                "its QdstrmImporter is missing (install a complete Nsight Systems), or its folder cannot be written "
                f"to; see {log}"
            )
        report = _export(program, recording, max(self.limit_s - (time.monotonic() - began_s), 0.0) + EXPORT_S)
        if fault := report.fault():
            raise CannotMeasure(f"{fault}; the report is {recording}")
        return report, again, notes


def profile_options(program: str, preset: str, args: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the options of ``preset`` that ``program`` knows, followed by ``args``; and notes on options left out.

    ``args`` replace options of the same name, since nsys refuses one that is given twice. Options have changed between
    versions of nsys: its help lists those that it knows.
    """
    known = set(re.findall(r"--[a-z][a-z-]+", output([program, "profile", "--help"]) or ""))
    given = {_name(word) for word in args}
    if "--capture-range=none" in args:
        given.add("--capture-range-end")  # nsys refuses an end without a range
    wanted = [word for word in (*PRESETS[preset], *COMMON) if _name(word) not in given]
    missing = [word for word in wanted if known and _name(word) not in known]
    notes = [f"this nsys has no {_name(word)}" for word in missing]
    return [*(word for word in wanted if word not in missing), *args], notes


def _name(word: str) -> str:
    return word.partition("=")[0]


def _export(program: str, report: Path, limit_s: float) -> Report:
    """Read ``report`` by way of an SQLite file. Raises CannotMeasure.

    The SQLite file is in a temporary folder, since a network file system without locks reports a locked database.
    """
    with tempfile.TemporaryDirectory(prefix="nsys-") as folder:
        database = Path(folder) / "report.sqlite"
        options = ["--type=sqlite", "--force-overwrite=true", "--quiet=true", f"--output={database}"]
        words = [program, "export", *options, str(report)]
        ended = tools.run(words, Path(folder) / "log", limit_s, grace_s=1.0)
        if ended.timed_out:
            raise CannotMeasure(
                f"reading the report took longer than {limit_s:.0f} s; give fewer measure.nsys.calls; the report is "
                f"kept: {report}"
            )
        if ended.code or not database.is_file():
            why = _last(ended.output) or f"exit code {ended.code}"
            raise CannotMeasure(f"nsys export could not read the report: {why}; it is kept: {report}")
        return read(database)


def _why_no_result(ended: tools.Ended, log: Path) -> str:
    """Return why the case wrote no result."""
    if "usage: nsys" in ended.output:
        return f"nsys refuses its options: {next(iter(_printed(ended.output)))}; see measure.nsys.args"
    how = f"exit code {ended.code}" if ended.code >= 0 else f"signal {-ended.code}"
    last = _last(ended.output)
    return f"the case ended under nsys with {how} before its calls were done{last and f': {last}'} (its log is {log})"


def _printed(said: str) -> list[str]:
    """Return the lines that were printed, without progress bars."""
    return [line.strip() for line in said.replace("\r", "\n").splitlines() if line.strip() and "%" not in line]


def _last(said: str) -> str:
    """Return the last line that was printed before nsys names its report."""
    return next(reversed(_printed(said.partition("Generat")[0])), "")
