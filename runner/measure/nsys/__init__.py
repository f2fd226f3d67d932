"""``measure=nsys``: the case once more under NVIDIA Nsight Systems, and what its timeline says."""

from __future__ import annotations

import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from runner.device import tools
from runner.device.processes import output
from runner.device.tools import Ended
from runner.experiment.case import Scalar
from runner.measure import RESULT, SUMMARY, CannotMeasure, MeasureContext, result
from runner.measure.nsys.export import Report, read
from runner.measure.timeline import tables
from runner.timing.statistics import trimmed_mean

if TYPE_CHECKING:
    from runner.timing import Call

GRACE_S = 30.0  # beyond ``limit_s``, for nsys to write what it has
EXPORT_S = 20.0  # beyond ``limit_s``, in any case, to read the report
REPORT, LOG, COMMAND = "report", "nsys.log", "command.txt"
LINES = 24  # of each table in the summary: parts of two steps of four layers
KEPT = (RESULT, SUMMARY, f"{REPORT}.nsys-rep", f"{REPORT}.qdstrm", *(f"{name}.csv" for name in tables.SHOWN))


COLUMNS = tables.columns("nsys", "nsys")


@dataclass(frozen=True)
class Nsys:
    """Kernels, ranges, API calls, copies and gaps of a call, by the tool's own clock; the report is kept."""

    path: str | None
    preset: Literal["light", "full"]
    calls: Annotated[int, "at least 1"]
    limit_s: Annotated[float, "above 0"]
    args: tuple[str, ...]

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
        report, again, notes = self.record(program, context.command(self.calls), context.folder)
        unprofiled_us = context.figures.get("latency_us")
        beside_us = _latency_us(call) if unprofiled_us is None else float(unprofiled_us)
        notes += [*report.notes(self.calls), *filter(None, [tables.note(report.calls, context.expected)])]
        return self._figures(context.folder, report, trimmed_mean(again["calls_us"]) / beside_us, notes)

    def _figures(self, folder: Path, report: Report, slowdown: float, notes: list[str]) -> dict[str, Scalar]:
        """Tables and summary into ``folder``; the figures."""
        figures = tables.figures(report.calls, "nsys") | {"nsys_slowdown": slowdown, "nsys_note": "; ".join(notes)}
        found = tables.tables(report.calls, report.others)
        tables.write(found, folder)
        head = [
            f"Nsight Systems {report.version}, preset {self.preset}, {len(report.calls)} calls; of one call:",
            *tables.on_gpu(figures, "nsys"),
            f"under nsys a call takes the host {slowdown:.2f} x the time without",
            *([f"note: {figures['nsys_note']}"] if notes else []),
        ]
        command = (folder / COMMAND).read_text(encoding="utf-8").strip()
        end = ["", f"recorded by: {command}", "to look at: nsys-ui report.nsys-rep", ""]
        text = tables.text(head, found, LINES) + "\n".join(end)
        (folder / SUMMARY).write_text(text, encoding="utf-8")
        return figures

    def record(self, program: str, case: list[str], folder: Path) -> tuple[Report, Mapping[str, Any], list[str]]:
        """``case``, a command that writes ``again.json`` into ``folder``, under ``program``: what came of it.

        The report, the case's own result, and notes. Raises CannotMeasure.
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
        path, note = found_report(ended, folder / f"{REPORT}.nsys-rep")
        left_s = max(self.limit_s - (time.monotonic() - began_s), 0.0) + EXPORT_S
        report = _export(command, path, left_s)
        if fault := of_report(report):
            raise CannotMeasure(f"{fault}; what it saw is in {path}")
        return report, again, [text for text in (note, *command.notes) if text]


def _export(command: Command, report: Path, limit_s: float) -> Report:
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


# Sampling the CPU is nsys's own default, and makes tens of megabytes of a second of Python. Without nodes, kernels of a
# CUDA graph are one record of the whole graph. At the end of a range nsys would end the program, and its results.
COMMON = ("--sample=none", "--cpuctxsw=none", "--cuda-graph-trace=node", "--force-overwrite=true")
PRESETS = {
    "light": ("--trace=cuda,nvtx", "--capture-range=cudaProfilerApi", "--capture-range-end=stop"),
    "full": ("--trace=cuda,nvtx,osrt", "--cuda-memory-usage=true"),
}
SHORT = {  # of options that are ours: nsys refuses one that is there twice
    "-t": "--trace",
    "-s": "--sample",
    "-c": "--capture-range",
    "-f": "--force-overwrite",
    "-o": "--output",
}


@dataclass(frozen=True)
class Command:
    """An nsys and the options to give it. ``notes``: which of the preset it does not have."""

    program: str
    options: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, program: str, preset: str, args: Sequence[str]) -> Command:
        """The options of ``preset`` that ``program`` has, and ``args``, which replace those of the same name.

        Options have changed their names between versions: its own help says which there are. If it does not say,
        all are given.
        """
        known = set(re.findall(r"--[a-z][a-z-]+", output([program, "profile", "--help"]) or ""))
        given = {_name(word) for word in args}
        if "--capture-range=none" in args:
            given.add("--capture-range-end")  # which nsys refuses then
        wanted = [word for word in (*PRESETS[preset], *COMMON) if _name(word) not in given]
        missing = [word for word in wanted if known and _name(word) not in known]
        notes = [f"this nsys has no {_name(word)}" for word in missing]
        return cls(program, (*(word for word in wanted if word not in missing), *args), tuple(notes))

    def profile(self, report: Path, case: Sequence[str]) -> list[str]:
        """``case`` under nsys, which adds its suffix to ``report``. No ``--`` before the program: nsys refuses that."""
        place = str(report.absolute()).replace("%", "%%")  # nsys takes %h and %p for names
        return [self.program, "profile", *self.options, f"--output={place}", *case]

    def export(self, report: Path, database: Path) -> list[str]:
        """``report`` as an SQLite file."""
        options = ["--type=sqlite", "--force-overwrite=true", "--quiet=true", f"--output={database}"]
        return [self.program, "export", *options, str(report)]


def _name(word: str) -> str:
    """``--trace`` of ``--trace=cuda``, and of ``-t``."""
    name = word.partition("=")[0]
    return SHORT.get(name[:2], name) if not name.startswith("--") else name


NO_GPU = "nsys looks at what a GPU does, and this case is on the CPU; take measure=profile there"
MISSING = (
    "Nsight Systems (nsys) was not found: install it (a package of the CUDA toolkit's; the nsys within Nsight Compute "
    "is not a whole one), put it on PATH, or name it with measure.nsys.path=..."
)
NO_WORK = (
    "no GPU work was seen in the calls: nothing ran on the GPU, another client of CUPTI is active in that process, or "
    "this nsys is older than the driver (update it)"
)
GRAPHS = "all work ran in CUDA graphs, which were traced as a whole; take --cuda-graph-trace out of measure.nsys.args"
NO_CALLS = "it recorded no NVTX ranges, so its kernels cannot be told apart by call; let measure.nsys.args trace nvtx"
NEVER_OPENED = (
    "nsys wrote no report: the range to capture was never opened; leave --capture-range to the preset, and see {log}"
)
SIGTERM = 128 + 15  # as an exit code


def of_profile(ended: Ended, again: Mapping[str, Any], limit_s: float, log: Path) -> str:
    """Why there is nothing to see; empty if the case came to its end. ``again`` is what it said of itself."""
    if ended.late:
        return (
            f"it was not done after {limit_s:g} s and was ended (its log is {log}); give fewer measure.nsys.calls, or "
            "more measure.nsys.limit_s, and launcher.measure_limit_s at least 50 above that"
        )
    if again:
        return f"the case could not be run again under nsys: {again['error']}" if "error" in again else ""
    if "usage: nsys" in ended.said:
        return f"nsys refuses its options: {_first(ended.said)}; see measure.nsys.args"
    if ended.code in (SIGTERM, -15):
        return (
            "nsys ended the case before its result was written, as it does at the end of a range; "
            "leave --capture-range-end=stop to the preset"
        )
    how = f"exit code {ended.code}" if ended.code >= 0 else f"signal {-ended.code}"
    last = _last(ended.said)
    return f"the case ended under nsys with {how} before its calls were done{last and f': {last}'} (its log is {log})"


def found_report(ended: Ended, wanted: Path) -> tuple[Path, str]:
    """The report, moved to where it was ``wanted`` if nsys put it elsewhere; and a note. Raises CannotMeasure."""
    if wanted.is_file():
        return wanted, ""
    made = [Path(line) for line in _generated(ended.said)]
    for path in made:
        if path.suffix == ".nsys-rep" and path.is_file():
            try:
                shutil.move(path, wanted)
            except OSError as error:
                return path, f"nsys could not write {wanted} ({error.strerror}), so the report is {path}"
            return wanted, ""
    raw = [path for path in (*made, wanted.with_suffix(".qdstrm")) if path.suffix == ".qdstrm" and path.is_file()]
    if raw:
        raise CannotMeasure(
            "nsys recorded, but could not convert its recording: its QdstrmImporter is missing or lacks a library (ldd "
            f"tells which), so install a whole Nsight Systems; the raw file is kept: {raw[0]}"
        )
    raise CannotMeasure(NEVER_OPENED.format(log=wanted.parent / "nsys.log"))


def of_export(ended: Ended, database: Path, report: Path, limit_s: float) -> str:
    """Why the report cannot be read; empty if it can."""
    if ended.late:
        return (
            f"reading the report took longer than {limit_s:.0f} s; give fewer measure.nsys.calls. It is kept: {report}"
        )
    if ended.code or not database.is_file():
        said = _last(ended.said) or f"exit code {ended.code}"
        return f"nsys export could not read the report: {said}. It is kept: {report}"
    return ""


def of_report(report: Report) -> str:
    """Why it shows nothing of the calls; empty if it does."""
    if not report.works:
        return GRAPHS if report.graphs else _because(NO_WORK, report.said)
    if not report.calls:
        return _because(NO_CALLS, report.said)
    return "" if any(call.work for call in report.calls) else _because(NO_WORK, report.said)


def _because(sentence: str, said: tuple[str, ...]) -> str:
    """With nsys's own words, if it had any that tell more."""
    more = [text for text in said if re.search(r"driver version|already subscribed|payload extension", text)]
    return f"{sentence} ({more[0]})" if more else sentence


def _generated(said: str) -> list[str]:
    """The paths below the last ``Generated:``."""
    found: list[str] = []
    for line in said.rpartition("Generated:")[2].splitlines()[1:] if "Generated:" in said else []:
        if not line.startswith((" ", "\t")):
            break
        found.append(line.strip())
    return found


def _lines(said: str) -> list[str]:
    """What was printed, without the bars of progress."""
    return [line.strip() for line in said.replace("\r", "\n").splitlines() if line.strip() and "%" not in line]


def _first(said: str) -> str:
    return next(iter(_lines(said)), "")


def _last(said: str) -> str:
    """Return the last line of the output of the case and nsys that is no path of a report."""
    return next(reversed(_lines(said.partition("Generat")[0])), "")
