"""How long a grid will take: by rows of cases like its own, scaled to its sizes, else by operations and bytes alone."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, log
from statistics import median
from typing import Any

from ..records.case import CaseRecord
from ..records.columns import TIMES
from ..records.figures import counted
from ..records.grouping import grouped
from ..records.row import Row
from .cost import CHECKED, COMPILING_S, CPU, START_S, Cost, Costs, Work, measured_s, rounds_s
from .past import MOST_ROWS, newest_first

UNKNOWN = "unknown: no earlier run"  # that resembles the case, and its sizes cannot be read
SAME, SAME_WORKLOAD, FAR_SIZES, OTHER_WORKLOAD, OTHER_DEVICE, DEFINITION = BASES = (
    "from the same case",
    "from the same workload and implementation",
    "from sizes far from these",
    "from other workloads with the same implementation",
    "from another or an unknown device",
    "from operations and bytes",
)
GUESSES = BASES[2:]
GUESSED_SHARE = 0.2  # from this share of guessed time on, all of it is called a guess
FAR = 16.0  # times as long a call, or as short, as that of the row: too far to scale it up
MOST_SLOWER = 20.0  # times what operations and bytes take
MOST_ALIKE = 50  # rows of a kind that are looked at, the newest
NOTHING = Cost(0.0, 0.0, 0.0)
REFERENCE = ""  # in place of an implementation: what the first case of a problem computes for all
Kind = tuple[str, ...]  # what similar cases share


@dataclass(frozen=True)
class Observed:
    """The seconds of an earlier case; of the reference alone if the label is REFERENCE."""

    work: Work
    label: str  # label of its implementation
    device: str
    total: float  # without the reference
    cost: Cost = NOTHING  # call 0: it was not timed
    measure: float = 0.0

    @property
    def built_s(self) -> float:
        """Seconds that do not grow with the sizes."""
        return self.total - CHECKED * self.cost.call - self.cost.compare - self.measure


@dataclass
class Estimate:
    """Estimated seconds of a grid."""

    seconds: dict[str, float | None] = field(default_factory=dict)  # key of a case → its time; None: unknown
    bases: dict[str, str] = field(default_factory=dict)  # key of a case → one of BASES
    beside_s: float = 0.0  # start of the worker, and paired rounds
    rows: int = 0  # number of rows of earlier runs that were read
    runs: int = 0

    @property
    def total_s(self) -> float:
        """Seconds of the cases that are known, and of what comes beside them."""
        return self.beside_s + sum(filter(None, self.seconds.values()))

    @property
    def is_guess(self) -> bool:
        """Whether a fifth of the time of the cases, or more, is guessed."""
        guessed = sum(self.seconds[key] or 0.0 for key, basis in self.bases.items() if basis in GUESSES)
        return guessed > GUESSED_SHARE * (self.total_s - self.beside_s)

    def __str__(self) -> str:
        if not self.bases:
            return UNKNOWN
        found = Counter(self.bases.values())
        counts = [(found[basis], basis) for basis in BASES if found[basis]]
        basis = ", ".join(f"{count} {basis}" if counts[1:] else basis for count, basis in counts)
        rows = f"{counted(self.rows, 'row')} of {counted(self.runs, 'earlier run')}" if self.rows else "no earlier run"
        more = f" and more, {unknown} {UNKNOWN}" if (unknown := len(self.seconds) - len(self.bases)) else ""
        return f"about {duration(self.total_s)}{', a guess' * self.is_guess} ({basis}; {rows}){more}"


def duration(seconds: float) -> str:
    """Return ``4 s``, ``3.3 min`` or ``5.2 h``."""
    unit, size = ("s", 1) if seconds < 120 else ("min", 60) if seconds < 7200 else ("h", 3600)
    return f"{max(1, seconds / size):.2g} {unit}" if seconds < 10 * size else f"{seconds / size:.0f} {unit}"


def estimate(
    cases: Sequence[CaseRecord],
    output_dir: str,
    devices: Collection[str] | None = None,
    limits: Mapping[str, Any] | None = None,
    most_rows: int = MOST_ROWS,
) -> Estimate:
    """Estimate the time of ``cases`` on one of ``devices``, by the rows under ``output_dir`` that are most similar.

    These are rows of the same case, on the same device if possible; else of the same workload and implementation, in
    the nearest sizes; else of the same implementation. ``limits``: time limits of the launcher, by name.
    """
    past = Past(output_dir, limits or {}, most_rows)
    guess = Estimate(rows=past.rows, runs=past.runs)
    for problem in grouped(cases, lambda case: (case.problem, case.replica)).values():
        device = CPU if problem[0].settings.device == CPU else min(devices or [""])
        costs = []
        for case in problem:
            seconds, cost, basis = past.forecast(case, device, first=case is problem[0])
            guess.seconds[case.key] = seconds
            costs.append(cost)
            if basis:
                guess.bases[case.key] = basis
        guess.beside_s += min(rounds_s(problem, device, costs), past.limit_s("measure"))
        guess.beside_s += 0.0 if guess.beside_s else START_S[device == CPU]
    return guess


class Past:
    """The times of cases of earlier runs."""

    def __init__(self, output_dir: str, limits: Mapping[str, Any], most_rows: int) -> None:
        """Read the rows of the newest runs under ``output_dir``. ``limits`` as of ``estimate``."""
        self.rows = self.runs = 0
        self._limits = limits
        self._costs, self._compiled = Costs(), set[str]()
        self._alike: dict[Kind, list[Observed]] = {}
        for rows in newest_first(output_dir, most_rows):
            for each in (of_run := list(self._observed(rows))):
                self.rows += each.label != REFERENCE
                for _, kind in _kinds(each.work.case, each.label, each.device):
                    self._alike.setdefault(kind, []).append(each)
            self.runs += bool(of_run)

    def forecast(self, case: CaseRecord, device: str, *, first: bool) -> tuple[float | None, Cost, str]:
        """Return the seconds of ``case`` on ``device``, its cost, and their basis, one of BASES.

        ``first``: of its problem, so that it computes the reference too. None if nothing is known.
        """
        cost, basis = self._costs.of(case, device), DEFINITION
        if (nearest := self._nearest(case, case.impl_label, device)) is not None:
            seconds, cost, basis = nearest
        elif cost:
            seconds = COMPILING_S * self._compiles(case) + self._checked_and_measured(case, device, cost)
        else:
            return None, NOTHING, ""
        if first:
            known, defined = self._nearest(case, REFERENCE, device), self._costs.of(case, device)
            seconds += min(known[0] if known else defined.reference if defined else 0.0, self.limit_s("check"))
        return seconds, cost or NOTHING, basis

    def _compiles(self, case: CaseRecord) -> bool:
        """Return whether ``case`` is the first of its workload that is compiled, which takes most of the time."""
        first = case.impl.name == "compiled" and case.workload.name not in self._compiled
        self._compiled |= {case.workload.name} if first else set()
        return first

    def limit_s(self, phase: str) -> float:
        """Return the time limit of ``phase``."""
        return float(self._limits.get(f"{phase}_limit_s") or inf)

    def _checked_and_measured(self, case: CaseRecord, device: str, cost: Cost, correction: float = 1.0) -> float:
        """Return the seconds of the first call, the check and the measurements; a phase at its limit is the last."""
        needed = cost.call, (CHECKED - 1) * cost.call + cost.compare, correction * measured_s(case, device, cost)
        limits = self.limit_s("build"), self.limit_s("check"), self.limit_s("measure") * len(case.measures)
        total = 0.0
        for seconds, limit_s in zip(needed, limits, strict=True):
            total += min(seconds, limit_s)
            if seconds > limit_s:
                break
        return total

    def _nearest(self, case: CaseRecord, label: str, device: str) -> tuple[float, Cost, str] | None:
        """Return the median of what the most similar cases give, a cost, and the basis; None without any."""
        for basis, kind in _kinds(case, label, device):
            alike = self._alike.get(kind, [])[:MOST_ALIKE]
            power = self._costs.power([each.work for each in alike])
            scaled = [(*self._scaled(each, case, device, power), each.built_s) for each in alike]
            if "path" not in case.workload.fields:  # a short call is mostly overhead: the definition says more
                scaled = [each for each in scaled if each[0] <= FAR]
            if not scaled:
                continue
            distance = min(abs(log(growth)) for growth, *_ in scaled)
            nearest = [each for each in scaled if abs(log(each[0])) <= distance + 0.01]
            if distance > log(FAR) and basis not in GUESSES:
                basis = FAR_SIZES
            seconds = median(each[1] for each in nearest)
            _, _, cost, built_s = nearest[0]
            if label != REFERENCE and basis != SAME and self._compiles(case):
                seconds += max(each.built_s for each in alike) - built_s
            return seconds, cost, basis
        return None

    def _scaled(self, seen: Observed, case: CaseRecord, device: str, power: float) -> tuple[float, float, Cost]:
        """Return the growth of the time from an earlier case to ``case``, and the seconds and the cost of ``case``."""
        before = self._costs.of(seen.work.case, seen.device, seen.work)
        after = self._costs.of(case, device, seen.work, power)
        if seen.label == REFERENCE:
            if not (before and after):
                return 1.0, seen.total, seen.cost
            growth = after.reference / before.reference
            return growth, _grown(seen.total, before.reference, growth), seen.cost
        if not (before and after and seen.cost.call):
            return 1.0, seen.total, seen.cost
        growth = after.call / before.call
        compare_s = seen.cost.compare * after.compare / before.compare
        cost = Cost(_grown(seen.cost.call, before.call, growth), 0.0, compare_s)
        correction = seen.measure / measured_s(seen.work.case, seen.device, seen.cost)
        return growth, seen.built_s + self._checked_and_measured(case, device, cost, correction), cost

    def _observed(self, rows: Sequence[Row]) -> Iterator[Observed]:
        """Yield the time that each of the ``rows`` of a run took, and that of the reference of each problem.

        The longest check of a problem has computed the reference, the shortest has only compared.
        """
        took = [row for row in rows if row.metrics.get("wall_s")]
        for group in grouped(took, lambda row: (row.case.problem, row.case.replica)).values():
            calls = [next((_number(row, name) for name in TIMES if _number(row, name)), 0.0) / 1e6 for row in group]
            checks = [_number(row, "check_s") for row in group]
            place = checks.index(max(checks))
            first, compare_s = group[place], min(checks)
            if len(group) == 1:
                defined = self._costs.of(first.case, first.device)
                compare_s = min(checks[0], defined.compare + 2 * calls[0]) if defined and calls[0] else 0.0
            reference_s = checks[place] - compare_s + _number(first, "inputs_s")
            for row, call_s, check_s in zip(group, calls, checks, strict=True):
                total = _number(row, "wall_s") - (reference_s if row is first else 0.0)
                compared_s = max(0.0, (compare_s if row is first else check_s) - 2 * call_s)
                work = Work(row.case, _number(row, "flops"), _number(row, "bytes_min"))
                cost, measure_s = Cost(call_s, 0.0, compared_s), _number(row, "measure_s")
                yield Observed(work, row.case.impl_label, row.device, total, cost, measure_s)
            work = Work(first.case, _number(first, "flops"), 0.0)
            yield Observed(work, REFERENCE, first.device, reference_s)


def _grown(seconds: float, defined_s: float, growth: float) -> float:
    """Scale the time of an earlier part. Its overhead, the time above ``defined_s``, does not grow."""
    return seconds + min(seconds, MOST_SLOWER * defined_s) * (growth - 1)


def _number(row: Row, column: str) -> float:
    return float(row.metrics.get(column) or 0.0)


def _kinds(case: CaseRecord, label: str, device: str) -> Iterator[tuple[str, Kind]]:
    """Yield the traits that similar cases share with ``case``, the most similar first, each with its name in BASES.

    ``label``: its implementation, or REFERENCE. Other workloads share neither that nor a function of a user's file.
    """
    alike = ((SAME, case.problem), (SAME_WORKLOAD, case.workload.text), (SAME_WORKLOAD, case.workload.name))
    others = ((OTHER_WORKLOAD, ""),) if label != REFERENCE and "path" not in case.impl.fields else ()
    for kinds in (alike, others):
        for on in dict.fromkeys((device, "")):
            for basis, shared in kinds:
                yield basis if on == device else OTHER_DEVICE, (shared, label if shared else case.impl.name, on)
