"""The timer for any Python program: ``bench`` times a function, or compares several, in the caller's process.

Results are rows like those of a run, so that tables, words and columns are the same. torch is imported when ``bench``
is called; pandas and matplotlib when a result is asked for a DataFrame or a chart.
"""

from __future__ import annotations

import inspect
import math
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property, partial
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..findings.lines import Line
from ..findings.notes import footnotes, row_notes
from ..findings.run import Run
from ..measure.columns import column_of, known_columns
from ..records.case import BENCH, Choice, Scalar
from ..records.figures import interval, is_number
from ..records.paired_rounds import PairedRounds as Rounds
from ..records.plain_text import encodable
from ..records.plan import OUTPUTS, Plan
from ..records.row import Row
from ..report.case_table import case_table
from ..report.table import Table, html_of, markdown_of, text_of
from .frame import frame
from .rows import Rows, scalar
from .saved import save

if TYPE_CHECKING:
    import torch
    from matplotlib.axes import Axes
    from pandas import DataFrame

Function = Callable[..., Any]
WIDTH = 200  # characters of a table, where no terminal says how wide it is
MATPLOTLIB = "a chart needs matplotlib: pip install matplotlib"


def bench(
    f: Function | Mapping[str, Function],
    /,
    *args: Any,
    check: Function | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    tolerance: float = 1.0,
    make: Callable[[Any], Any] | None = None,
    sizes: Iterable[Any] | None = None,
    grad: bool = False,
    cold: bool = True,
    target_pct: float | None = None,
    max_s: float | None = None,
    flops: int | Callable[[Any], int] | None = None,
    bytes: int | Callable[[Any], int] | None = None,
    measure_peak: bool = False,
    ranks: bool = False,
    baseline: str | None = None,
    device: str | torch.device | None = None,
    **unknown: Any,
) -> Any:
    """Time ``f(*args)``, or compare several functions of the same arguments.

    GPU tensors are timed by timestamps on the GPU, CPU tensors by the host's clock. Tensors among ``args`` that a call
    changes are restored before each call, outside of the time, and at the end. Nothing is printed.

    Args:
        f: a function, or several by their names. Keyword arguments are given by ``functools.partial``.
        *args: its arguments: tensors, lists and dicts of tensors, or anything else.
        check: a reference. It is called with copies of ``args`` in float64, before any function. A function whose
            outputs differ by more than the tolerance is not timed.
        atol: absolute tolerance: ``|y - reference| <= atol + rtol * |reference|``. If neither is given, the
            limits follow from the reference, which runs in float64 with the errors that rounding may have.
        rtol: relative tolerance.
        tolerance: factor on the limits that follow from the reference.
        make: makes the arguments of one size: a tuple, or one argument. It replaces ``args``.
        sizes: what ``make`` is called with, one after the other. Ctrl-C ends the sweep: the sizes before are returned.
        grad: time forward and backward: outputs and the gradients of ``args``, or of those that require one.
        cold: on a GPU, empty the L2 cache before each call.
        target_pct: half-width of the 95 % interval to reach, in percent of the time; by default 0.5, on a CPU 2.
        max_s: time limit in seconds for the samples of one function, and of its paired rounds; by default 0.15 and 0.6
            on a GPU, 0.6 on a CPU. Five samples are always taken.
        flops: floating-point operations of a call, for FLOP/s and the share of this GPU's measured peak.
        bytes: bytes that a call must move, for B/s and that share. Both may be functions of the size.
        measure_peak: measure the peak of this GPU, in two seconds, if it is not in the cache yet.
        ranks: all ranks of torch.distributed, on one machine, call this together. Times are of the slowest rank.
        baseline: the function that others are compared with: by default "torch", or else the first correct one.
        device: "cpu" or "cuda", if the tensors do not say where ``f`` computes.
        **unknown: any other argument, which is refused.

    Returns:
        A ``Timing`` of one function. A ``Comparison`` of several, or of several sizes.

    Raises:
        Exception: what ``f``, ``check`` or ``make`` raises, as it is, if nothing could be measured. Otherwise a
            function that raises has a row of the status ``error``, ``oom`` or another of docs/failures.md.
        TypeError: ``make`` and ``sizes`` are not given together, or beside ``args``; or an argument is unknown.
        ValueError: another argument is out of its allowed values, or not the same on all ranks.
        RuntimeError: a CUDA graph is being captured; or with ``ranks``, torch.distributed has no group here.

    """
    several = isinstance(f, Mapping)
    functions: dict[str, Function] = dict(f) if isinstance(f, Mapping) else {name_of(f): f}
    if unknown:
        raise TypeError(_unknown(unknown))
    _validate(functions, args, baseline, check=check, make=make, sizes=sizes)
    _validate_numbers(max_s=max_s, target_pct=target_pct, tolerance=tolerance, atol=atol, rtol=rtol)

    from ..subject.in_process import DEFAULTS, GPU_S, Measured, Options, measure, without_locals

    asked = {"target_pct": target_pct, "target_cpu_pct": target_pct, "max_s": max_s}
    given_settings: dict[str, Any] = {name: float(value) for name, value in asked.items() if value is not None}
    settings = replace(DEFAULTS, cold_l2=cold, **given_settings)
    options = Options(
        settings,
        None if device is None else _device(device),
        grad,
        check,
        atol,
        rtol,
        tolerance,
        measure_peak=measure_peak,
        ranks=ranks,
        gpu_s=GPU_S if max_s is None else None,
        goes_on=(several or sizes is not None) and not ranks,
        names=[*functions] if several else (),
    )
    rows = Rows(functions, settings, swept=sizes is not None, grad=grad, ranks=ranks)

    def measured(size: Any) -> tuple[Any, ...]:
        made = args if make is None else make(size)
        given = made if isinstance(made, tuple) else (made,)
        amounts: dict[str, Any] = {"flops": _amount("flops", flops, size), "bytes_min": _amount("bytes", bytes, size)}
        return given, *measure(list(functions.values()), given, replace(options, **amounts))

    for size in [None] if sizes is None else sizes:
        if rows.lost:
            rows.skip(size)
            continue
        try:
            found = measured(size)
        except KeyboardInterrupt:
            if not rows.rows:
                raise
            warnings.warn(f"interrupted at size {size!r}: bench returns the sizes before it", stacklevel=2)
            break
        except Exception as error:
            if sizes is None:
                raise
            found = (), "", [Measured({}, error=without_locals(error)) for _ in functions], []
        rows.add(size, *found)
    if rows.error and all(row.status not in ("ok", "wrong") for row in rows.rows):
        raise rows.error  # nothing was measured
    if not several and sizes is None:
        return Timing.of(rows.rows[0], rows.samples[rows.rows[0].case.key])
    timed = {row.case.impl.name for row in rows.rows if row.time_us is not None}
    usual = next((name for name in ("torch", *functions) if name in timed), None)
    return Comparison(rows.rows, rows.rounds, baseline or usual, rows.samples)


def _validate(functions: Mapping[str, Function], args: Sequence[Any], baseline: str | None, **given: object) -> None:
    """Raise TypeError or ValueError if the arguments of ``bench`` do not fit together. ``given``: some by name."""
    if (given["make"] is None) != (given["sizes"] is None) or (given["make"] is not None and args):
        raise TypeError("bench(f, make=lambda n: ..., sizes=[...]): give both, and no other arguments of f")
    if not functions:
        raise ValueError("bench: no function is given")
    for name, function in functions.items():
        if not isinstance(name, str) or not callable(function):
            raise TypeError(f"bench: {name!r}: {function!r}: give a function, or a dict of functions by their names")
    if baseline is not None and baseline not in functions:
        raise ValueError(f"baseline={baseline!r}: give one of {', '.join(functions)}")
    for name, value in given.items():
        if value is not None and not (isinstance(value, Iterable) if name == "sizes" else callable(value)):
            raise TypeError(f"{name}={value!r}: give a {'list' if name == 'sizes' else 'function'}")


def _validate_numbers(**given: object) -> None:
    """Raise ValueError if an argument of that name is not a number above 0; some may be 0."""
    for name, value in given.items():
        least = "of at least" if name in ("atol", "rtol", "flops", "bytes") else "above"
        in_range = isinstance(value, Real) and 0 <= float(value) < math.inf
        if value is not None and not (in_range and (value or least != "above")):
            raise ValueError(f"{name}={value!r}: give a number {least} 0")


def _device(given: str | torch.device) -> torch.device:
    """Return the device of that name. Raises ValueError if it is not a CPU or a GPU that torch sees."""
    import torch

    with suppress(RuntimeError, TypeError):
        device, gpus = torch.device(given), torch.cuda.device_count()
        if device.type == "cpu" or (device.type == "cuda" and (device.index or 0) < gpus):
            return device
    raise ValueError(f"device={str(given)!r}: give cpu or cuda; torch sees {torch.cuda.device_count()} GPUs here")


def _unknown(given: Mapping[str, object]) -> str:
    """Return the advice on arguments that ``bench`` does not have: most are meant for the function."""
    name, value = next(iter(given.items()))
    if near := get_close_matches(name, inspect.signature(bench).parameters, 1, 0.75):
        return f"bench has no argument {name}; did you mean {near[0]}?"
    text = repr(value) if isinstance(value, bool | int | float | str | None) else "..."
    keywords = f"functools.partial(f, {name}={text})"
    return f"bench has no argument {name}; if it is one of the function, give bench({keywords}, ...)"


def _amount(name: str, of: int | Callable[[Any], int] | None, size: Any) -> int | None:
    found = of(size) if callable(of) else of
    _validate_numbers(**{name: found})
    return None if found is None else int(found)


def name_of(function: Any) -> str:
    """Return the name of a function, a partial of it, or a class."""
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__name__", None) or type(function).__name__)


# --- results ---


def run_of(rows: Sequence[Row], rounds: Sequence[Rounds] = (), baseline: str | None = None) -> Run:
    """Return the run of a program's functions, which has no folder yet."""
    cases = tuple(row.case for row in rows)
    return Run(Path(), Plan(cases=cases, name=BENCH, baseline=baseline, launcher=Choice(BENCH, {})), rows, rounds)


@dataclass(frozen=True, repr=False)
class Timing:
    """The time of one call. Times are in us; one that was not measured is None."""

    name: str  # name of the function
    device: str  # "cpu", or the name of the GPU
    us: float  # trimmed mean of the samples; on a GPU with a cold L2 cache, unless ``cold=False``; NaN if wrong
    low_us: float  # 95 % interval
    high_us: float
    interval_pct: float | None  # half the width of that interval, relative to the time
    warm_us: float | None  # GPU: with the L2 cache as the previous call left it
    latency_us: float | None  # GPU: one call and a synchronize, by the host's clock
    host_us: float | None  # GPU: until the call returns
    pipelined_us: float | None  # GPU: calls back to back, per call
    pct_of_measured_peak: float | None
    peak_mem_bytes: int | None  # peak of one call, above its inputs
    samples: int
    clock_mhz: float | None  # GPU: of its multiprocessors, during the samples
    verdict: str  # "ok", or the gravest doubt about the time: see docs/timing.md
    reason: str  # why it is not ok
    note: str  # why the best instrument was not used, and what is not known
    instrument: str
    samples_us: Sequence[float] = field(default=(), compare=False)  # in their order
    columns: Mapping[str, Scalar] = field(default_factory=dict, compare=False)  # all figures, by docs/columns.md
    row: Row | None = field(default=None, compare=False)  # as a run has it

    @classmethod
    def of(cls, row: Row, samples_us: Sequence[float]) -> Timing:
        """Return the timing that ``row`` has."""
        get: Any = row.metrics.get
        same = ("interval_pct", "latency_us", "host_us", "pipelined_us", "pct_of_measured_peak", "peak_mem_bytes")
        return cls(
            name=row.case.impl.name,
            device=row.device,
            us=math.nan if row.time_us is None else row.time_us,
            low_us=get("low_us", math.nan),
            high_us=get("high_us", math.nan),
            warm_us=get("gpu_warm_us"),
            **{name: get(name) for name in same},
            samples=get("samples", 0),
            clock_mhz=get("sm_clock_mhz"),
            verdict=get("verdict", row.status),
            reason=row.reason or get("verdict_reason", ""),
            note=get("instrument_note", ""),
            instrument=get("instrument", ""),
            samples_us=tuple(samples_us),
            columns=row.metrics,
            row=row,
        )

    def save(self, name: str = "bench", output_dir: str | Path = OUTPUTS) -> Path:
        """Write it as a run of one case, as ``Comparison.save`` does, and return the folder."""
        return save(run_of([] if self.row is None else [self.row]), name, output_dir)

    def __repr__(self) -> str:
        (_, time), *others = self._figures()
        more = ", ".join(f"{name} {text}" for name, text in others)
        said = "; ".join(filter(None, [f"{self.verdict}: {self.reason}" if self.reason else self.verdict, self.note]))
        return _encodable(f"{self.name}: {time}{f' ({more})' if more else ''} on {self.device}, {said}")

    def _repr_html_(self) -> str:
        rows = [*self._figures(), ("device", self.device), ("verdict", self.verdict)]
        rows += [(name, text) for name, text in (("reason", self.reason), ("note", self.note)) if text]
        return html_of(Table(self.name, [], [("", rows)]))

    def _figures(self) -> Iterator[tuple[str, str]]:
        """Yield the time, and then each other figure that is known, with its name."""
        time, spread = column_of("time_us"), interval(self.interval_pct, "±")
        yield time.title, "not timed" if math.isnan(self.us) else f"{time.text(self.us)} {spread}".strip()
        summary = {name: column for name, column in known_columns().items() if column.summary}
        for name, column in sorted(summary.items(), key=lambda item: item[1].summary):
            if (value := self.columns.get(name)) not in (None, ""):
                yield column.title.removeprefix("% "), column.brief(value)


@dataclass(frozen=True)
class Compared:
    """One function of a comparison, at one size."""

    name: str
    size: Any  # a number or a text; None without a sweep
    timing: Timing  # from its samples alone
    paired_us: float | None  # time in the paired rounds, which the table shows; None without them
    correct: bool | None  # None: not checked
    speedup: float | None  # time of the baseline over its time, from paired rounds; None for wrong outputs
    speedup_low: float | None  # 95 % interval
    speedup_high: float | None
    word: str | None  # "faster", "slower", "same" or "unclear"; None for the baseline
    fastest: str  # "yes", "tied", "only" (without a rival), "unknown" (not compared) or "no"; "no" if not checked


class Comparison(Sequence[Compared]):
    """Several functions of the same arguments, or one function at several sizes. A sequence of ``Compared``.

    ``comparison["mine"]`` is the line of one function; with several sizes it is ``comparison["mine", 1024]``.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        rounds: Sequence[Rounds],
        baseline: str | None,
        samples: Mapping[str, Sequence[float]],
    ) -> None:
        self.baseline, self._samples = baseline, samples
        self.run = run_of(rows, rounds, baseline)

    @property
    def lines(self) -> Sequence[Line]:
        """The lines of the table, as a report has them."""
        return self.run.lines

    @cached_property
    def _found(self) -> list[Compared]:
        return [
            Compared(
                line.row.case.impl.name,
                line.row.case.workload.fields.get("n"),
                Timing.of(line.row, self._samples[line.row.case.key]),
                line.paired_time_us,
                line.row.metrics.get("correct"),  # type: ignore[arg-type]
                line.speedup,
                line.speedup_low,
                line.speedup_high,
                line.vs_baseline,
                line.fastest,
            )
            for line in self.lines
        ]

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, which: Any) -> Any:
        if isinstance(which, int | slice):
            return self._found[which]
        name, size = which if isinstance(which, tuple) else (which, None)
        found = [one for one in self._found if one.name == name and (size is None or scalar(size) == one.size)]
        if len(found) != 1:
            known = (repr(one.name) if one.size is None else f"({one.name!r}, {one.size!r})" for one in self)
            raise KeyError(f"{which!r}: give one of {', '.join(known)}")
        return found[0]

    def __iter__(self) -> Iterator[Compared]:
        return iter(self._found)

    def __repr__(self) -> str:
        width = shutil.get_terminal_size((WIDTH, 24)).columns
        table = replace(self._table(), title=self.run.heading(self.run.rows, width))
        return _encodable(text_of(table, width).removesuffix("\n"))

    def _notes(self) -> list[str]:
        names = self.run.names
        found = [*footnotes(self.lines, names), *row_notes([line.row for line in self.lines], names)]
        said = dict.fromkeys(str(line.row.metrics.get("tolerance") or "") for line in self.lines)
        found += [f"checked against the reference; tolerance: {tolerance}" for tolerance in said if tolerance]
        noted = ((names.case(line.row.case), line.row.metrics.get("instrument_note")) for line in self.lines)
        found += [f"{case}: {note}" for case, note in noted if note]
        return found

    def _repr_html_(self) -> str:
        return html_of(self._table())

    def markdown(self) -> str:
        """Return the table in GitHub's Markdown."""
        return markdown_of(self._table())

    def _table(self) -> Table:
        return replace(case_table(self.run, self.lines), notes=self._notes())

    def save(self, name: str = "bench", output_dir: str | Path = OUTPUTS) -> Path:
        """Write the rows as a run, which ``show``, ``compare``, ``report``, ``history`` and ``gate --baseline`` read.

        Args:
            name: of the run and of its workload. Cases are the same in two runs if the name, the arguments' shapes and
                types or the size, and the name of the function are.
            output_dir: the folder of all runs, in which ``<date>/<time>-<name>`` is made.

        Returns:
            The folder of the run.

        Raises:
            ValueError: ``name`` cannot name a folder.
            ModuleNotFoundError: a package of ``kernel-runner[cli]`` is not installed.
            OSError: the folder cannot be written.

        """
        return save(self.run, name, output_dir)

    def frame(self) -> DataFrame:
        """Return a pandas DataFrame: a line for each function and size, with the columns of docs/columns.md."""
        return frame(self.lines)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the times with their intervals, over the size if there are several, and return matplotlib's axes.

        Raises:
            ModuleNotFoundError: matplotlib is not installed.

        """
        try:
            from matplotlib import pyplot
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(MATPLOTLIB, name=error.name) from None
        ax = pyplot.subplots()[1] if ax is None else ax
        shown = [(line.case.workload.fields.get("n"), Timing.of(line.shown.row, ())) for line in self.lines]
        timed = [(size, timing) for size, timing in shown if not math.isnan(timing.us)]
        names = list(dict.fromkeys(timing.name for _, timing in timed))
        if any(size is not None for size, _ in timed):
            for name in names:
                mine = [(size, timing) for size, timing in timed if timing.name == name]
                ax.errorbar([size for size, _ in mine], *_with_errors(mine), marker="o", label=name)
            if all(is_number(size) and size > 0 for size, _ in timed):
                ax.set_xscale("log", base=2)
            ax.set_yscale("log")
            ax.set_xlabel("size")
            ax.set_ylabel("time of a call [us]")
            ax.legend()
        else:
            us, errors = _with_errors(timed)
            ax.barh(names, us, xerr=errors)
            ax.invert_yaxis()
            ax.set_xlabel("time of a call [us]")
        return ax


def _with_errors(timed: Sequence[tuple[Any, Timing]]) -> tuple[list[float], list[list[float]]]:
    """Return the times, and how far each interval reaches below and above them."""
    times = [timing for _, timing in timed]
    return [one.us for one in times], [[one.us - one.low_us for one in times], [one.high_us - one.us for one in times]]


def _encodable(text: str) -> str:
    return encodable(text, getattr(sys.stdout, "encoding", None))
