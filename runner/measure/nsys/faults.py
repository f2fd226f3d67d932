"""What nsys does when it fails, as one sentence each. Its exit code is that of the program."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.device.tools import Ended
from runner.measure import CannotMeasure
from runner.measure.nsys.timeline import Timeline

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


def of_timeline(timeline: Timeline) -> str:
    """Why it shows nothing of the calls; empty if it does."""
    if not timeline.works:
        return GRAPHS if timeline.graphs else _because(NO_WORK, timeline.said)
    if not timeline.calls:
        return _because(NO_CALLS, timeline.said)
    return "" if any(work.call is not None for work in timeline.works) else _because(NO_WORK, timeline.said)


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
    """Of what the case and nsys said, the last line that is no path of a report."""
    return next(reversed(_lines(said.partition("Generat")[0])), "")
