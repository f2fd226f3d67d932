"""Why an analysis of a run has no answer, in one plain sentence."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..measure.columns import columns as declared_columns
from ..records.columns import TIMES, TIMING
from ..records.figures import as_typed, listed
from ..records.grouping import grouped
from ..records.row import Row
from .lines import Line
from .run import Run
from .validity import may_win, verdict

GPU_ALONE = ("inspect", "ncu", "nsys", "profile")  # measurements whose columns are figures of a GPU
SUBJECTS = {  # by the analysis: what there is not, with its arguments
    "growth": "exponent of {column} over {over}",
    "ends": "end over {over}",
    "effect": "effect of {field} on {column}",
    "orders": "order of implementations",
    "operations": "share of operations",
    "parts": "share of parts",
    "passes": "comparison with the passes of {impl}",
    "roofline": "roofline",
    "bandwidth": "bandwidth",
}


def timed_lines(run: Run) -> list[Line]:
    """Return the correct lines with a time, as people see them."""
    return [line.shown for line in run.lines if may_win(line.row) and (line.time_us or 0) > 0]


def no_answer(run: Run, analysis: str, arguments: Mapping[str, Any]) -> str:
    """Return the reason why ``analysis`` of ``run`` has no answer."""
    lines = timed_lines(run)
    if not lines:
        return f"No case is correct and timed ({counts(run.rows) or 'none is done'}), so the question has no answer."
    columns = [arguments["column"]] if "column" in arguments else arguments.get("columns", ())
    short = {name: str(value).rpartition(".")[2] for name, value in arguments.items()}
    field, name = (each.get("over", each.get("field")) for each in (arguments, short))
    values = dict.fromkeys(as_typed(line.case.flat[field]) for line in lines if field in line.case.flat)
    words = [column for column in columns if any(isinstance(line.value(column), str) for line in lines)]
    if missing := [*missing_columns(lines, columns)]:
        reason = " and ".join(missing)
    elif words:
        reason = f"{listed(words)} {'are not numbers' if words[1:] else 'is not a number'}"
    elif field and len(values) < 2:
        reason = f"{name} has only the value {', '.join(values)} in cases that are correct and timed"
    elif field:
        reason = f"no implementation is correct and timed at two values of {name}"
    elif "impl" in arguments:
        ended = counts([row for row in run.rows if row.case.impl.name == arguments["impl"]]) or "not in this run"
        reason = f"{arguments['impl']} is not among the cases that are correct and timed ({ended})"
    elif analysis == "orders":
        reason = "no problem has two implementations that are correct and timed"
    elif analysis in ("operations", "parts"):
        reason = "no case was profiled (measure=[benchmark,profile])"
    else:
        reason = "the workload does not say how many operations and bytes it needs"
    subject = SUBJECTS.get(analysis, f"answer of {analysis}").format(**short).replace("time_us", "time")
    return f"{reason}, so there is no {subject}."


def missing_columns(lines: Sequence[Line], columns: Sequence[str]) -> Iterator[str]:
    """Yield, for each reason why none of ``lines`` has some of ``columns``, a sentence without its full stop."""
    absent = [column for column in columns if not any(line.value(column) not in (None, "") for line in lines)]
    for reason, names in grouped(absent, lambda column: _reason(lines, column)).items() if lines else ():
        yield f"{listed(names)} {'are' if names[1:] else 'is'} {reason}"


def counts(rows: Sequence[Row]) -> str:
    """Count ``rows`` by status: ``3 unsupported, 1 wrong``."""
    return ", ".join(f"{count} {word}" for word, count in Counter(map(verdict, rows)).items())


def _reason(lines: Sequence[Line], column: str) -> str:
    """Return the reason why none of ``lines`` has ``column``, to follow the words ``column is``."""
    owner = next((name for name, known in declared_columns().items() if column in known), "")
    if owner and not any(measure.name == owner for line in lines for measure in line.case.measures):
        return f"known with measure={owner} alone, which was not chosen"
    of_a_gpu = owner in GPU_ALONE or column in TIMES or column in TIMING
    if of_a_gpu and all(line.row.device == "cpu" for line in lines):
        return "not measured on a CPU"
    return "not known of any case that is correct and timed"
