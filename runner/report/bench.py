"""The timer for any Python program: ``bench`` times a function, or compares several, in the caller's process.

Results are rows like those of a run, so that tables, words and columns are the same. torch is imported when ``bench``
is called; pandas and matplotlib when a result is asked for a DataFrame or a chart.
"""

from __future__ import annotations

import html
import json
import math
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.experiment.case import CaseRecord, Choice, Scalar
from runner.experiment.results import Comparison as Rounds
from runner.experiment.results import Row, Status, encodable, figure, interval
from runner.report.derive import Line, Run

if TYPE_CHECKING:
    import torch
    from matplotlib.axes import Axes
    from pandas import DataFrame

    from runner.timing.in_process import Measured


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
    make: Callable[[Any], Any] | None = None,
    sizes: Iterable[Any] | None = None,
    grad: bool = False,
    cold: bool = True,
    target_pct: float | None = None,
    max_s: float | None = None,
    flops: int | Callable[[Any], int] | None = None,
    bytes: int | Callable[[Any], int] | None = None,
    measure_peak: bool = False,
    baseline: str | None = None,
    device: str | torch.device | None = None,
) -> Any:
    """Time ``f(*args)``, or compare several functions of the same arguments.

    GPU tensors are timed by timestamps on the GPU, CPU tensors by the host's clock. Tensors among ``args`` that a call
    changes are restored before each call, outside of the time, and at the end. Nothing is printed.

    Args:
        f: a function, or several by their names. Keyword arguments are given by ``functools.partial``.
        *args: its arguments: tensors, lists and dicts of tensors, or anything else.
        check: a reference. It is called with copies of ``args`` in float64, before any function. A function whose
            outputs differ by more than the tolerance is not timed.
        atol: absolute tolerance: ``|y - reference| <= atol + rtol * |reference|``. If neither is given, it follows from
            the type of each output; the result says what it is.
        rtol: relative tolerance.
        make: makes the arguments of one size: a tuple, or one argument. It replaces ``args``.
        sizes: what ``make`` is called with, one after the other.
        grad: time forward and backward: outputs and the gradients of ``args``, or of those that require one.
        cold: on a GPU, empty the L2 cache before each call.
        target_pct: half-width of the 95 % interval to reach, in percent of the time; by default 0.5, on a CPU 2.
        max_s: time limit in seconds for the samples of one function, and of its paired rounds; by default 0.15 and 0.6
            on a GPU, 0.6 on a CPU. Five samples are always taken.
        flops: floating-point operations of a call, for FLOP/s and the share of this GPU's measured peak.
        bytes: bytes that a call must move, for B/s and that share. Both may be functions of the size.
        measure_peak: measure the peak of this GPU, in two seconds, if it is not in the cache yet.
        baseline: the function that others are compared with: by default "torch", or else the first correct one.
        device: "cpu" or "cuda", if the tensors do not say where ``f`` computes.

    Returns:
        A ``Timing`` of one function. A ``Comparison`` of several, or of several sizes.

    Raises:
        Exception: what ``f``, ``check`` or ``make`` raises, as it is.
        TypeError: ``make`` and ``sizes`` are not given together, or beside ``args``.
        ValueError: another argument is out of its allowed values.
        RuntimeError: a CUDA graph is being captured.

    """
    several = isinstance(f, Mapping)
    functions: dict[str, Function] = dict(f) if isinstance(f, Mapping) else {_name(f): f}
    _validate(functions, args, make, sizes, baseline, max_s, target_pct)
    import torch

    from runner.timing import in_process

    settings = replace(in_process.DEFAULTS, cold_l2=cold, **_given(target_pct, max_s))
    options = in_process.Options(
        settings,
        torch.device(device) if device is not None else None,
        grad,
        check,
        atol,
        rtol,
        measure_peak=measure_peak,
        gpu_s=in_process.GPU_S if max_s is None else None,
    )
    rows: list[Row] = []
    samples: dict[str, Sequence[float]] = {}
    rounds: list[Rounds] = []
    for size in [None] if sizes is None else sizes:
        given = args if make is None else _as_tuple(make(size))
        amounts: dict[str, Any] = {"flops": _amount(flops, size), "bytes_min": _amount(bytes, size)}
        name, found, batches = in_process.measure(list(functions.values()), given, replace(options, **amounts))
        workload = _workload(given, size, sizes is not None)
        cases = [_case(workload, each, name) for each in functions]
        rows += [_row(case, one, name) for case, one in zip(cases, found, strict=True)]
        samples |= {case.key: one.samples_us for case, one in zip(cases, found, strict=True)}
        timed = [case.key for case, one in zip(cases, found, strict=True) if not one.wrong]
        if batches:
            rounds.append(
                Rounds(
                    {key: us for key, (_, us, _) in zip(timed, batches, strict=True)},
                    {key: instrument for key, (instrument, _, _) in zip(timed, batches, strict=True)},
                )
            )
    if not several and sizes is None:
        return Timing.of(rows[0], samples[rows[0].case.key])
    return Comparison(rows, rounds, _baseline(functions, rows, baseline), samples)


def _validate(
    functions: Mapping[str, Function],
    args: Sequence[Any],
    make: object,
    sizes: object,
    baseline: str | None,
    max_s: float | None,
    target_pct: float | None,
) -> None:
    """Raise TypeError or ValueError if the arguments of ``bench`` do not fit together."""
    if (make is None) != (sizes is None) or (make is not None and args):
        raise TypeError("bench(f, make=lambda n: ..., sizes=[...]): give both, and no other arguments of f")
    if not functions:
        raise ValueError("bench: no function is given")
    for name, function in functions.items():
        if not isinstance(name, str) or not callable(function):
            raise TypeError(f"bench: {name!r}: {function!r}: give a function, or a dict of functions by their names")
    if baseline is not None and baseline not in functions:
        raise ValueError(f"baseline={baseline!r}: give one of {', '.join(functions)}")
    for name, value in (("max_s", max_s), ("target_pct", target_pct)):
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name}={value!r}: give a number above 0")


def _given(target_pct: float | None, max_s: float | None) -> dict[str, Any]:
    """Return the settings that the caller has given."""
    found = {"target_pct": target_pct, "target_cpu_pct": target_pct, "max_s": max_s}
    return {name: float(value) for name, value in found.items() if value is not None}


def _amount(of: int | Callable[[Any], int] | None, size: Any) -> int | None:
    found = of(size) if callable(of) else of
    return None if found is None else int(found)


def _as_tuple(made: Any) -> tuple[Any, ...]:
    return made if isinstance(made, tuple) else (made,)


def _name(function: Any) -> str:
    """Return the name of a function, a partial of it, or a class."""
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__name__", None) or type(function).__name__)


def _baseline(functions: Mapping[str, Function], rows: Sequence[Row], asked: str | None) -> str | None:
    """Return the name of the baseline: one that has a time."""
    timed = {row.case.impl.name for row in rows if row.time_us is not None}
    return asked or next((name for name in ("torch", *functions) if name in timed), None)


# --- rows ---


class _Choice(Choice):
    @cached_property
    def text(self) -> str:
        return json.dumps(self.to_record())


class _Case(CaseRecord):
    """A case of a function that no configuration names."""

    @cached_property
    def key(self) -> str:
        return f"{self.problem} {self.impl.text}"

    @cached_property
    def shared_key(self) -> str:
        return self.key

    @property
    def problem(self) -> str:
        return self.workload.text


def _workload(args: Sequence[Any], size: Any, swept: bool) -> Choice:
    """Return the size, or what the arguments are: ``[4096, 1024] float32``."""
    if swept:
        return _Choice("size", {"n": _scalar(size)})
    shapes = [
        f"{list(one.shape)} {str(one.dtype).removeprefix('torch.')}"
        for one in args
        if hasattr(one, "shape") and hasattr(one, "dtype")
    ]
    return _Choice(", ".join(shapes) or "call", {})


def _scalar(size: Any) -> Scalar:
    return size if isinstance(size, int | float | str) else str(size)


def _case(workload: Choice, name: str, device: str) -> CaseRecord:
    return _Case(workload, _Choice(name, {}), (), "cpu" if device == "cpu" else "cuda", 0)


def _row(case: CaseRecord, found: Measured, device: str) -> Row:
    status: Status = "wrong" if found.wrong else "ok"
    return Row(case=case, status=status, reason=found.wrong, device=device, metrics=found.columns)


# --- results ---


@dataclass(frozen=True, repr=False)
class Timing:
    """The time of one call. Times are in us; one that was not measured is None."""

    name: str  # of the function
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
    samples: int
    clock_mhz: float | None  # GPU: of its multiprocessors, during the samples
    verdict: str  # "ok", or the gravest doubt about the time: see docs/timing.md
    reason: str  # why it is not ok
    note: str  # why the best instrument was not used, and what is not known
    instrument: str
    samples_us: Sequence[float] = field(default=(), compare=False)  # in their order
    columns: Mapping[str, Scalar] = field(default_factory=dict, compare=False)  # all figures, by docs/columns.md

    @classmethod
    def of(cls, row: Row, samples_us: Sequence[float]) -> Timing:
        """Return the timing that ``row`` has."""
        get: Any = row.metrics.get
        nan = math.nan
        us = nan if row.time_us is None else row.time_us
        return cls(
            name=row.case.impl.name,
            device=row.device,
            us=us,
            low_us=get("low_us", nan),
            high_us=get("high_us", nan),
            interval_pct=get("interval_pct"),
            warm_us=get("gpu_warm_us"),
            latency_us=get("latency_us"),
            host_us=get("host_us"),
            pipelined_us=get("pipelined_us"),
            pct_of_measured_peak=get("pct_of_measured_peak"),
            samples=get("samples", 0),
            clock_mhz=get("sm_clock_mhz"),
            verdict=get("verdict", row.status),
            reason=row.reason or get("verdict_reason", ""),
            note=get("instrument_note", ""),
            instrument=get("instrument", ""),
            samples_us=tuple(samples_us),
            columns=row.metrics,
        )

    def __repr__(self) -> str:
        (_, time), *others = self._figures()
        more = ", ".join(f"{name} {text}" for name, text in others)
        said = "; ".join(filter(None, [f"{self.verdict}: {self.reason}" if self.reason else self.verdict, self.note]))
        return _encodable(f"{self.name}: {time}{f' ({more})' if more else ''} on {self.device}, {said}")

    def _repr_html_(self) -> str:
        rows = [*self._figures(), ("device", self.device), ("verdict", self.verdict)]
        rows += [(name, text) for name, text in (("reason", self.reason), ("note", self.note)) if text]
        return _html([], [("", [list(row) for row in rows])], caption=self.name)

    def _figures(self) -> Iterator[tuple[str, str]]:
        """Yield the time, and then each other figure that is known, with its name."""
        spread = interval(self.interval_pct, "±")
        yield "time", "not timed" if math.isnan(self.us) else f"{figure(self.us, 'us')} {spread}".strip()
        for name in ("warm", "latency", "host", "pipelined"):
            if (us := getattr(self, f"{name}_us")) is not None:
                yield name, figure(us, "us")
        if self.pct_of_measured_peak is not None:
            yield "of measured peak", f"{self.pct_of_measured_peak:.0f} %"
        if tolerance := self.columns.get("tolerance"):
            yield "tolerance", str(tolerance)
        if self.samples:
            yield "samples", str(self.samples)
        if self.clock_mhz is not None:
            yield "clock", figure(self.clock_mhz, "MHz")


@dataclass(frozen=True)
class Compared:
    """One function of a comparison, at one size."""

    name: str
    size: Any  # None without a sweep; the text of one that is no number
    timing: Timing
    correct: bool | None  # None: not checked
    speedup: float | None  # time of the baseline over its time, from paired rounds; None for wrong outputs
    speedup_low: float | None  # 95 % interval
    speedup_high: float | None
    word: str | None  # "faster", "slower", "same" or "unclear"; None for the baseline
    fastest: str  # "yes", "tied" or "no"; "no" if the outputs were not checked


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
        cases = [row.case for row in rows]
        self.run = Run(Path(), rows, rounds, baseline, (), (), 0, title="bench", cases=cases)

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
        found = [one for one in self._found if one.name == name and (size is None or _scalar(size) == one.size)]
        if len(found) != 1:
            known = ", ".join(
                f"({one.name!r}, {one.size!r})" if one.size is not None else repr(one.name) for one in self
            )
            raise KeyError(f"{which!r}: give one of {known}")
        return found[0]

    def __iter__(self) -> Iterator[Compared]:
        return iter(self._found)

    def __repr__(self) -> str:
        from runner.report import terminal

        width = shutil.get_terminal_size((WIDTH, 24)).columns
        parts, _ = terminal.drawn(self.lines, self.run.names, width)
        table = "".join(text for text, _ in parts)
        title = terminal.title(self.run, self.run.rows, width)
        return _encodable("\n".join([title, table, *self._notes()]))

    def _notes(self) -> list[str]:
        """Return what stands below the table."""
        from runner.report import terminal

        names = self.run.names
        found = [*terminal.explain(self.lines, names), *terminal.notes([line.row for line in self.lines], names)]
        said = dict.fromkeys(str(line.row.metrics.get("tolerance") or "") for line in self.lines)
        found += [f"checked: |y - reference| <= {tolerance}" for tolerance in said if tolerance]
        found += [
            f"{names.case(line.row.case)}: {note}"
            for line in self.lines
            if (note := line.row.metrics.get("instrument_note"))
        ]
        return [_in_words_of_bench(note) for note in found]

    def _repr_html_(self) -> str:
        from runner.report.formats import sheet

        found = sheet(self.run, self.lines)
        return _html(found.heads, found.groups, caption=found.title.splitlines()[0], notes=self._notes())

    def markdown(self) -> str:
        """Return the table in GitHub's Markdown."""
        from runner.report.formats import markdown, sheet

        return markdown(replace(sheet(self.run, self.lines), notes=self._notes()))

    def frame(self) -> DataFrame:
        """Return a pandas DataFrame: a line for each function and size, with the columns of docs/columns.md."""
        from runner.report.frame import frame

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
        timed = [one for one in self if not math.isnan(one.timing.us)]
        names, numbers = list(dict.fromkeys(one.name for one in timed)), all(_is_number(one.size) for one in timed)
        if any(one.size is not None for one in timed):
            for name in names:
                mine = [one for one in timed if one.name == name]
                ax.errorbar([one.size for one in mine], *_with_errors(mine), marker="o", label=name)
            if numbers:
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


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and value > 0


def _with_errors(found: Sequence[Compared]) -> tuple[list[float], list[list[float]]]:
    """Return the times, and how far each interval reaches below and above them."""
    times = [one.timing for one in found]
    return [one.us for one in times], [[one.us - one.low_us for one in times], [one.high_us - one.us for one in times]]


def _in_words_of_bench(note: str) -> str:
    """Return a note of a run in the words of ``bench``."""
    for name in ("measure.benchmark.target_cpu_pct", "measure.benchmark.target_pct"):
        note = note.replace(name, "target_pct")
    return note


def _encodable(text: str) -> str:
    return encodable(text, getattr(sys.stdout, "encoding", None))


def _html(
    heads: Sequence[str],
    groups: Iterable[tuple[str, Sequence[Sequence[str]]]],
    *,
    caption: str,
    notes: Sequence[str] = (),
) -> str:
    """Return a table in HTML, with every text escaped."""

    def cells(tag: str, texts: Sequence[str]) -> str:
        left = ' style="text-align:left"'
        return "".join(f"<{tag}{'' if place else left}>{html.escape(text)}</{tag}>" for place, text in enumerate(texts))

    found = [f"<table><caption>{html.escape(caption)}</caption>"]
    found += [f"<tr>{cells('th', heads)}</tr>"] if heads else []
    for heading, rows in groups:
        found += [f'<tr><th colspan="{len(heads)}">{html.escape(heading)}</th></tr>'] if heading else []
        found += [f"<tr>{cells('td', row)}</tr>" for row in rows]
    return "".join([*found, "</table>", *(f"<p>{html.escape(note)}</p>" for note in notes)])
