"""Notes below a table: what its marks mean, and why cases are not plainly ok, each with the cases that share it."""

import re
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any

from ..device.processes import ROOT
from ..records.figures import counted, listed
from ..records.grouping import grouped
from ..records.row import ERROR, Row
from ..timing.statistics import Ratio
from .lines import WINS, Line
from .names import Names
from .ratios import doubt
from .validity import DRIFTING, doubt_of, may_win, verdict

TARGETS = ("measure.benchmark.target_cpu_pct", "measure.benchmark.target_pct")  # the argument target_pct of ``bench``
COUNTED = {  # verdicts whose reasons have figures that differ from case to case; by whether it ran on a CPU
    ("not_converged", True): f"times have a wider interval than asked for ({TARGETS[0]})",
    ("not_converged", False): f"times have a wider interval than asked for ({TARGETS[1]})",
    (DRIFTING, True): f"times drift by more than asked for ({TARGETS[0]}); see drift_pct",
    (DRIFTING, False): f"times drift by more than asked for ({TARGETS[1]}); see drift_pct",
    ("contended", True): "cases shared their CPUs with other processes; see cpu_wait_pct",
    ("contended", False): "cases ran while another process started or stopped using the GPU; see timer_drift_us",
}

ZEROS = "data=zeros: {} times are for zeros; a GPU may be faster on them than on data"
FEW_CHECKS = 5  # outputs; with fewer, a call that is wrong one time in five passes with a probability above 40 %
FEW_CHECKED = f"in {{}} cases the outputs of fewer than {FEW_CHECKS} timed calls were checked; see checked_calls"
NOT_CHECKED = "not checked, and never the fastest: it moves as many bytes as the workload must, and computes nothing"
UNCHECKED = "not checked, so none is called the fastest: give check=reference"  # a call of runner.bench
SIDE_EFFECTS = "it changed {}; its process ended, so that no other case is affected, and no ratio was taken in it"

NAMED = 4  # implementations beside the first
NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?")

QUICK = "quick: wider intervals; leave out quick=true for figures to keep"
ALONE = "#"  # before a time
OWN_TIME = f"{ALONE} measured alone, not in paired rounds as the others"
TIED = "≈ tied for the fastest: cannot be told apart"
RACED = "the race of tune has shown which is faster, in paired rounds that ended when the slower one dropped out"


def footnotes(lines: Sequence[Line], names: Names) -> Iterator[str]:
    """Explain the marks of the table of ``lines``, and how its speed-ups and its winners were found."""
    if any(line.case.settings.quick for line in lines):
        yield QUICK
    if any(line.fastest == "tied" for line in lines):
        yield TIED
    if mixed(lines):
        yield OWN_TIME
    yield from _without_conclusion([(line, line.ratio) for line in lines], "no conclusion", names)
    others = [(line, line.behind) for line in lines if not (line.ratio and line.ratio.separate is not None)]
    yield from _without_conclusion(others, "not compared with the fastest", names)
    separate = [(line, line.ratio) for line in lines if line.ratio and not line.ratio.paired]
    for reason, members in grouped(separate, lambda pair: RACED if pair[0].raced else doubt(pair[1])).items():
        cases = and_more([line for line, _ in members], names)
        yield f"{cases}: the speed-up compares two separate times, not paired rounds{f'; {reason}' if reason else ''}"
    launch_bound = [line for line in lines if line.launch_bound and may_win(line.row) and line.value("pipelined_us")]
    won = {line.case.problem for line in launch_bound if line.fastest in WINS}
    contested = [line for line in launch_bound if line.case.problem in won]
    problems = grouped(contested, lambda line: line.case.problem).values()
    for text, alike in grouped(problems, lambda problem: _winners(problem, names)).items():
        yield f"{names.heading(alike[0][0].case)}{how_many_more(alike)}: fastest {text}"


def mixed(lines: Sequence[Line]) -> bool:
    """Return whether some times of ``lines`` are from paired rounds and others are not."""
    return len({line.paired_time_us is None for line in lines if line.time_us is not None}) == 2


def _without_conclusion(pairs: Sequence[tuple[Line, Ratio | None]], what: str, names: Names) -> Iterator[str]:
    """Tell ``what`` there is not, for lines whose separate times contradict their ratio in paired rounds."""
    lines = [(line, doubt(ratio)) for line, ratio in pairs if ratio and ratio.separate is not None]
    if lines:
        yield f"{and_more([line for line, _ in lines], names)}: {what}: {lines[0][1]}"


def _winners(lines: Sequence[Line], names: Names) -> str:
    """Say who is fastest by which time, where launches of some case take longer than the GPU's work."""
    by_gpu = [names.impl(line.case) for line in lines if line.fastest in WINS]
    high = min(_pipelined(line)[1] for line in lines)
    most = 2 * min(line.value("pipelined_us") for line in lines)  # few calls have wide intervals; a factor of 2 decides
    near = [line for line in lines if _pipelined(line)[0] <= high and line.value("pipelined_us") <= most]
    by_caller = [names.impl(line.case) for line in near]
    if set(by_gpu) == set(by_caller):
        return f"by GPU time and by pipelined time (calls back to back): {', '.join(by_gpu)}"
    return f"by GPU time: {', '.join(by_gpu)}; by pipelined time (calls back to back): {', '.join(by_caller)}"


def _pipelined(line: Line) -> tuple[float, float]:
    """Return the interval of the time of one of many calls back to back."""
    us, percent = line.value("pipelined_us"), line.value("pipelined_pct") or 0.0
    return us * (1 - percent / 100), us * (1 + percent / 100)


def row_notes(rows: Sequence[Row], names: Names, folder: Path | None = None) -> list[str]:
    """Return a line for each reason why a case is not plainly ok, with the cases that share it.

    Files are named from the ``folder`` of the run, or by a path through it.
    """
    told = [(text, row) for row in rows for text in _doubts(row)]
    # Cases share a note if their texts differ in numbers alone, and come from the same line of an implementation;
    # several implementations share a failure only if all its texts are equal.
    kinds = grouped(told, lambda note: (*kind_of(*note, names), source_line(note[1].detail)))
    shared = grouped(kinds.items(), lambda kind: (kind[0][-1], *(text for text, _ in kind[1])))
    notes = []
    for members in shared.values():
        texts, alike = zip(*(note for _, notes_of_kind in members for note in notes_of_kind), strict=True)
        files = [Path(folder or "", file) for file in alike[0].files if PurePath(file).name == ERROR]
        traceback = "".join(f"; its traceback: {file}" for file in files)
        like_it = " like it" * (len(set(texts)) > 1)
        notes.append(f"{and_more(alike, names)}{like_it}: {texts[0]}{traceback}")
    counts = Counter(text for row in rows for text in _counted(row))
    return [*notes, *(text.format(f"{count} of {len(rows)}") for text, count in counts.items())]


def _doubts(row: Row) -> Iterator[str]:
    """Yield each reason why the case of ``row`` is not plainly ok, but for those that are only counted."""
    if row.status == "ok" and (not_measured := row.metrics.get("not_measured")):
        yield f"not measured: {not_measured}"
    unchecked = row.time_us is not None and row.metrics.get("correct") is None
    if note := row.metrics.get("check_note"):
        yield f"right or wrong is unknown, so it is never the fastest: {note}" if unchecked else str(note)
    elif unchecked:
        yield UNCHECKED if row.case.of_program else NOT_CHECKED
    if count := row.metrics.get("recompiles"):
        reason = f": {because}" if (because := row.metrics.get("recompile_reason")) else ""
        yield f"torch.compile compiled it again, {counted(count, 'time')}{reason}"
    if imported := row.metrics.get("import_note"):
        yield str(imported)
    if changed := row.metrics.get("side_effects"):
        yield SIDE_EFFECTS.format(changed)
    if (doubt_of(row), row.device == "cpu") not in COUNTED and (reason := reason_of(row)):
        yield f"{verdict(row)}: {reason}"


def _counted(row: Row) -> Iterator[str]:
    """Yield a text with a place for the number of cases that have it."""
    if text := COUNTED.get((doubt_of(row), row.device == "cpu")):
        for target in TARGETS if row.case.of_program else ():
            text = text.replace(target, "target_pct")
        yield f"{verdict(row)}: {{}} {text}"
    if row.time_us is not None and row.case.workload.fields.get("data") == "zeros":
        yield ZEROS
    checked: Any = row.metrics.get("checked_calls", FEW_CHECKS)
    if row.time_us is not None and checked < FEW_CHECKS:
        yield FEW_CHECKED


def and_more(members: Sequence[Row] | Sequence[Line], names: Names) -> str:
    """Return the first case, the other implementations if they are few, and how many more cases there are."""
    _, *others = dict.fromkeys(names.impl(member.case) for member in members)
    named = [names.case(members[0].case), *(others if len(others) <= NAMED else ())]
    more = len(members) - len(named)
    return listed([*named, *([f"{more} more"] if more else [])])


def how_many_more(members: Sequence[object]) -> str:
    """Return `` and 3 more`` if there are others beside the first."""
    return f" and {len(members) - 1} more" if members[1:] else ""


def kind_of(reason: str, row: Row, names: Names) -> tuple[str, str]:
    """Return ``reason`` without its numbers, and the implementation if it is a failure: equal for notes of one kind."""
    return NUMBER.sub("", reason), "" if row.status == "ok" else names.impl(row.case)


def reason_of(row: Row) -> str:
    """Return the reason, with the line of the implementation that raised; "" if there is none."""
    reason = str(row.reason or row.metrics.get("verdict_reason") or "")
    where = source_line(row.detail)
    return f"{reason} ({where})" if where else reason


FRAME = re.compile(r'^ *File "(.+)", line (\d+),? in ', re.MULTILINE)
CRASHED = "Current thread "  # begins the stack of the thread that crashed, with the innermost call first
CAUSE = "The above exception was the direct cause of the following exception:"  # Python's words
KERNELS = (ROOT / "runner" / "kernels", ROOT / "kernels")  # the first is a link in a checkout
LIBRARIES = {"site-packages", "dist-packages", "torch"}  # folders of a path


def source_line(detail: str) -> str:
    """Return the last line of an implementation in the traceback ``detail``: ``k.py:6``, ``kernels/gelu/triton.py:34``.

    If a library has wrapped another exception, as Triton's interpreter does, that is the line of the other. Return ""
    if ``detail`` is no traceback and no stack of a crash, or only the runner and libraries are in it.
    """
    calls = FRAME.findall(detail.partition(CRASHED)[2])
    found = next(filter(None, (_own_line(Path(file), number) for file, number in calls)), "")
    for traceback in reversed(detail.split(CAUSE)) if detail.startswith("Traceback ") else ():
        lines = [_own_line(Path(file), number) for file, number in FRAME.findall(traceback)]
        found = next(filter(None, reversed(lines)), found)
        if lines and lines[-1]:  # the implementation has raised it
            break
    return found


def _own_line(path: Path, number: str) -> str:
    """Return the line of an implementation; "" for one of the runner, of Python or of a library."""
    for root in KERNELS:
        if path.is_relative_to(root):
            inside = path.relative_to(root)
            return f"kernels/{inside}:{number}" if inside.parts[1:] else ""  # beside the folders are helpers of all
    if not path.is_absolute() or LIBRARIES & set(path.parts):  # <string> and Cython's files are not
        return ""
    in_others = any(path.is_relative_to(folder) for folder in (sysconfig.get_path("stdlib"), ROOT / "runner"))
    return "" if in_others else f"{path.name}:{number}"
