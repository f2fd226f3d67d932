"""``measure=nsys``: the time line of a call, recorded by NVIDIA Nsight Systems."""

import re
import shlex
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from ...device import processes, tools
from ...device.processes import output
from ...records.case import Scalar
from ...timing.call import Call
from ...timing.statistics import trimmed_mean
from .. import RESULT, SUMMARY, CannotMeasure, MeasureContext, result
from ..timeline import tables
from .export import Report, read_report

GRACE_S = 30.0  # after ``limit_s``, for nsys to write its recording
EXPORT_S = 20.0  # to read the report, in addition to the rest of ``limit_s``
REPORT, LOG, COMMAND = "report", "nsys.log", "command.txt"
LINES = 24  # most lines of a table in the summary; the parts of two steps of four layers fit
KEPT = (RESULT, SUMMARY, f"{REPORT}.nsys-rep", *(f"{name}.csv" for name in tables.SHOWN))

# By default, nsys samples the CPU (tens of megabytes per second of Python), records a CUDA graph as one event, and
# ends the program at the end of the range, before the result is written.
COMMON = ("--sample=none", "--cpuctxsw=none", "--cuda-graph-trace=node", "--force-overwrite=true")
PRESETS = {
    "light": ("--trace=cuda,nvtx", "--capture-range=cudaProfilerApi", "--capture-range-end=stop"),
    "full": ("--trace=cuda,nvtx,osrt", "--cuda-memory-usage=true"),
}
COLUMNS = tables.columns("nsys", "nsys")


def alone_us(call: Call, count: int) -> float:
    """Return the time of ``call`` without nsys in us: trimmed mean of ``count`` calls with cold L2."""
    from ...timing.instruments import HostClock
    from ...timing.preparation import preparation

    return trimmed_mean(HostClock(call.run, preparation(call.reset, cold_l2=True)).samples(count))


@dataclass(frozen=True)
class Nsys:
    """Kernels, ranges, API calls, copies and gaps of a call by Nsight Systems, and its report."""

    path: str | None
    preset: Literal["light", "full"]
    calls: Annotated[int, "at least 1"]
    limit_s: Annotated[float, "above 0"]
    args: tuple[str, ...]

    def __post_init__(self) -> None:
        if short := [word for word in self.args if not word.startswith("--")]:
            advice = "give single words like --sample=process-tree"
            raise ValueError(f"args: {short[0]!r} is not a long option of nsys profile; {advice}")

    def measure(self, call: Call, context: MeasureContext) -> dict[str, Scalar]:
        """Return figures of a call under nsys; write tables, report and command as files.

        Raises CannotMeasure.
        """
        from ...timing.ranks import all_or_none

        if context.device != "cuda":
            raise CannotMeasure("nsys records a GPU, and this case is on the CPU; use measure=profile there")
        if (program := tools.find_tool("nsys", self.path)) is None:
            raise CannotMeasure(
                f"{self.path or 'nsys'} was not found: install Nsight Systems (a package of the CUDA toolkit; the nsys "
                "inside Nsight Compute is incomplete), put it on PATH, or name it with measure.nsys.path=<nsys>"
            )
        folder = context.folder
        with all_or_none(CannotMeasure):
            report, repeated, notes = self.record(program, context.command(self.calls), folder)
        further = tables.note(report.calls, context.figures), context.of_rank
        notes += [*report.notes(self.calls), *filter(None, further)]
        slowdown = trimmed_mean(repeated["calls_us"]) / alone_us(call, self.calls)
        figures = tables.figures(report.calls, "nsys") | {"nsys_slowdown": slowdown, "nsys_note": "; ".join(notes)}
        head = [
            f"Nsight Systems {report.version}, preset {self.preset}; means of {len(report.calls)} calls:",
            *tables.gpu_sentences(figures, "nsys"),
            f"under nsys a call takes {slowdown:.2f}x the time on the host",
            *([f"note: {figures['nsys_note']}"] if notes else []),
        ]
        command = (folder / COMMAND).read_text(encoding="utf-8").strip()
        end = f"\nrecorded by: {command}\nto look at: nsys-ui {REPORT}.nsys-rep\n"
        tables.write(folder, head, tables.tables(report.calls, report.others), LINES, end)
        return figures

    def record(self, program: str, case: list[str], folder: Path) -> tuple[Report, Mapping[str, Any], list[str]]:
        """Run the command ``case`` under ``program``. The command writes ``again.json`` into ``folder``.

        Return the report, the result of the command, and notes. Raises CannotMeasure.
        """
        began_s = time.monotonic()
        for name in KEPT:  # from an earlier session
            (folder / name).unlink(missing_ok=True)
        options, notes = profile_options(program, self.preset, self.args)
        path = str((folder / REPORT).absolute()).replace("%", "%%")  # nsys replaces %h and %p by host and process
        command = [program, "profile", *options, f"--output={path}", *case]  # nsys refuses "--" before the program
        (folder / COMMAND).write_text(shlex.join(command) + "\n", encoding="utf-8")
        log, recording = folder / LOG, folder / f"{REPORT}.nsys-rep"
        ended = tools.run_tool(command, log, self.limit_s, grace_s=GRACE_S)
        repeated = result(folder)
        if ended.timed_out:
            raise CannotMeasure(
                f"it was not done after {self.limit_s:g} s and was ended (its log is {log}); give fewer "
                "measure.nsys.calls, or more measure.nsys.limit_s and a launcher.measure_limit_s at least 50 s above it"
            )
        if not repeated:
            raise CannotMeasure(_no_result_reason(ended, log))
        if "error" in repeated:
            raise CannotMeasure(f"the case could not be run again under nsys: {repeated['error']}")
        if not recording.is_file():
            raise CannotMeasure(
                "nsys wrote no report: the range to capture was never opened (do not give --capture-range), "
                "its QdstrmImporter is missing (install a complete Nsight Systems), or its folder cannot be written "
                f"to; see {log}"
            )
        report = _export(program, recording, max(self.limit_s - (time.monotonic() - began_s), 0.0) + EXPORT_S)
        if fault := report.fault():
            raise CannotMeasure(f"{fault}; the report is {recording}")
        return report, repeated, notes


def profile_options(program: str, preset: str, args: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the options of ``preset`` that ``program`` knows, followed by ``args``; and notes on omitted options.

    ``args`` replace options of the same name, since nsys refuses an option that is given twice. Options differ between
    versions of nsys; its help lists them.
    """
    known = set(re.findall(r"--[a-z][a-z-]+", output([program, "profile", "--help"]) or ""))
    given = {_name(word) for word in args}
    if "--capture-range=none" in args:
        given.add("--capture-range-end")  # nsys refuses an end without a range
    wanted = {_name(word): word for word in (*PRESETS[preset], *COMMON) if _name(word) not in given}
    missing = [name for name in wanted if known and name not in known]
    kept = [word for name, word in wanted.items() if name not in missing]
    return [*kept, *args], [f"this nsys has no {name}" for name in missing]


def _name(word: str) -> str:
    return word.partition("=")[0]


def _export(program: str, report: Path, limit_s: float) -> Report:
    """Read ``report`` through an SQLite file. Raises CannotMeasure.

    The file is in a temporary folder, since on a network file system without locks a database seems locked.
    """
    with tempfile.TemporaryDirectory(prefix="nsys-") as folder:
        database = Path(folder) / "report.sqlite"
        options = ["--type=sqlite", "--force-overwrite=true", "--quiet=true", f"--output={database}"]
        command = [program, "export", *options, str(report)]
        ended = tools.run_tool(command, Path(folder) / "log", limit_s, grace_s=1.0)
        if ended.timed_out:
            raise CannotMeasure(
                f"reading the report took longer than {limit_s:.0f} s; give fewer measure.nsys.calls; the report is "
                f"kept: {report}"
            )
        if ended.code or not database.is_file():
            reason = _last(ended.output) or f"exit code {ended.code}"
            raise CannotMeasure(f"nsys export could not read the report: {reason}; it is kept: {report}")
        return read_report(database)


def _no_result_reason(ended: tools.Ended, log: Path) -> str:
    """Return the reason why the case wrote no result."""
    if "usage: nsys" in ended.output:
        return f"nsys refuses its options: {next(iter(_printed(ended.output)))}; see measure.nsys.args"
    how, last = processes.ending(ended.code), _last(ended.output)
    return f"under nsys the case {how} before its calls were done{last and f': {last}'} (its log is {log})"


def _printed(text: str) -> list[str]:
    """Return the printed lines without progress bars."""
    return [line.strip() for line in text.replace("\r", "\n").splitlines() if line.strip() and "%" not in line]


def _last(text: str) -> str:
    """Return the last line before nsys names its report."""
    return next(reversed(_printed(text.partition("Generat")[0])), "")
