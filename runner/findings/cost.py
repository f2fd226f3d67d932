"""Estimate the seconds of each part of a case from the operations and bytes of its workload.

The rates of the device are rough. The constants are from runs of the shipped workloads on two cores of a CPU, of 1 to
300 million numbers.
"""

import ast
from collections.abc import Sequence
from math import log
from typing import NamedTuple

from ..device.processes import ROOT
from ..device.rates import rates
from ..models.workload import ITEMSIZE
from ..records.bad_input import BadInput
from ..records.case import CaseRecord
from ..subject.own_workload import OwnWorkload, workload_of
from ..tasks import sizes

CPU = "cpu"
START_S = {True: 3.0, False: 6.0}  # start of the command and its worker: on a CPU, on a GPU
COMPILING_S = 5.0  # first call of ``impl=compiled``, once for a workload
# Bytes that a CPU moves for each number.
DRAWING, EXACTLY, COMPARING = 25, 60, 270  # an input; an input or output of a float64 reference; an output
WITH_ERRORS, COMPARING_OWN = 42, 60  # a user's reference that runs with errors; its outputs
INSIDE = 4  # numbers that a user's function computes for each of its inputs
AFFORDED, DRAWS, LEAST_DRAWS, MORE_RUNS = 3e8, (10, 5), 3, 2  # as in ``subject.tolerance``; by ``quick``
SQUARE_PRODUCTS = 1.5  # the power of the inputs with which their operations grow
PASSES = {"fwd": 1, "bwd": 2, "fwd_bwd": 3}
ELEMENTARY = 8  # bytes that each operation moves where each is a kernel of its own
CHECKED = 3  # calls before the measurement: the first one, and two of the check
SLOW_S, BESIDE_SLOW, FEWEST = 0.05, 7, 5  # a longer call is a sample; calls beside the samples; samples at least
OTHER_CALLS = 25  # calls of a measurement other than ``benchmark``


class Work(NamedTuple):
    """A case, with the operations and the bytes of its row."""

    case: CaseRecord
    flops: float
    moved: float  # bytes


class Definition(NamedTuple):
    """What a workload computes."""

    flops: float
    moved: float  # bytes
    numbers: float  # elements of inputs and outputs; in a user's file those that its function computes
    outputs: float  # numbers
    own: bool  # a user's file


class Cost(NamedTuple):
    """Seconds of the parts of a case."""

    call: float
    reference: float  # with the inputs: once for a problem
    compare: float


class Costs:
    """Costs of cases. It remembers what each workload computes."""

    def __init__(self) -> None:
        self._definitions: dict[str, Definition | None] = {}
        self._rates = {CPU: rates(CPU)}

    def of(
        self, case: CaseRecord, device: str, like: Work | None = None, power: float = SQUARE_PRODUCTS
    ) -> Cost | None:
        """Return the cost of ``case`` on the CPU or the GPU ``device``; None if its sizes cannot be read.

        ``like``: a case of the same user's file, with its operations and its bytes, which its source does not say.
        ``power`` of the inputs with which operations grow.
        """
        if not (defined := self._definition(case)):
            return None
        rate = self._rates.setdefault(device, rates(device))
        if like and defined.own and (other := self._definition(like.case)):
            growth = defined.numbers / other.numbers
            defined = defined._replace(flops=like.flops * growth**power, moved=like.moved * growth or defined.moved)
        kind = str(case.workload.fields.get("dtype"))
        call = max(defined.flops / rate.flops.get(kind, rate.flops["float32"]), defined.moved / rate.bytes)
        if case.impl.name == "naive" and not _multiplies(case.workload.name):
            call = max(call, ELEMENTARY * defined.flops / rate.bytes)
        if defined.own:
            computed = defined.numbers + defined.flops / 64
            draws = min(DRAWS[case.settings.quick], max(LEAST_DRAWS, AFFORDED / computed)) + MORE_RUNS
            reference, comparing = WITH_ERRORS * draws * computed, COMPARING_OWN * defined.outputs
        else:
            reference, comparing = EXACTLY * defined.numbers, COMPARING * defined.outputs
        products = 3 * defined.flops / rate.flops["float64"]
        drawing = DRAWING * defined.numbers / 2
        return Cost(call, (reference + drawing) / rate.bytes + products, comparing / rate.bytes)

    def power(self, works: Sequence[Work]) -> float:
        """Return the power of the inputs with which the operations of ``works``, cases of a user's file, grow."""
        known = sorted((defined.numbers, flops) for case, flops, _ in works if (defined := self._definition(case)))
        (fewest, least), (most, largest) = (known[0], known[-1]) if known else ((0.0, 0.0),) * 2
        return log(largest / least) / log(most / fewest) if most > fewest and least and largest else SQUARE_PRODUCTS

    def _definition(self, case: CaseRecord) -> Definition | None:
        text = case.workload.text
        if text not in self._definitions:
            self._definitions[text] = _defined(case)
        return self._definitions[text]


def _defined(case: CaseRecord) -> Definition | None:
    fields = case.workload.fields
    try:
        made = workload_of(case.workload)
    except (BadInput, LookupError):  # the file is gone, or the row is of another version
        return None
    if not isinstance(made, OwnWorkload):
        moved = made.bytes_min()
        numbers = moved / ITEMSIZE[made.dtype]
        return Definition(made.flops(), moved, numbers, getattr(made, "outputs", numbers / 2), own=False)
    numbers = sizes.numbers(made.file, fields)
    flops, moved = (sizes.stated(made.file, part, fields) or 0.0 for part in ("flops", "bytes"))
    if not numbers:
        return None
    passes, item = PASSES[made.fields.pass_], ITEMSIZE.get(str(made.fields.dtype or made.file.dtype), 4)
    moved = moved or (INSIDE - 1) * passes * item * numbers
    return Definition(flops, moved, INSIDE * passes * numbers, numbers, own=True)


def _multiplies(workload: str) -> bool:
    """Return whether the naive implementation of a shipped workload has matrix products."""
    try:
        tree = ast.parse((ROOT / "kernels" / workload / "naive.py").read_bytes())
    except (OSError, ValueError, SyntaxError):
        return True
    return any(isinstance(node, ast.MatMult) for node in ast.walk(tree))


def measured_s(case: CaseRecord, device: str, cost: Cost) -> float:
    """Return the seconds of all measurements of ``case``."""
    total = 0.0
    for measure in case.measures:
        if measure.name != "benchmark":
            total += 1 + OTHER_CALLS * cost.call
            continue
        max_s, warmup_s = (float(measure.fields.get(name) or 0.0) for name in ("max_s", "warmup_s"))
        if device == CPU:
            warm_up = 5 * warmup_s if cost.call < SLOW_S else 0.0
            sampling = max(FEWEST * cost.call, 0.8 * max_s + cost.call)
            total += 0.15 + warm_up + sampling + BESIDE_SLOW * cost.call + cost.compare
        else:  # with cold and with warm caches, as a graph, and latencies
            total += 0.3 + max_s + 60 * cost.call + cost.compare
    return total


def rounds_s(cases: Sequence[CaseRecord], device: str, costs: Sequence[Cost]) -> float:
    """Return the seconds of the paired rounds of the ``cases`` of a problem."""
    fields = next((measure.fields for measure in cases[0].measures if measure.name == "benchmark"), {})
    if len(cases) < 2 or not fields.get("paired_rounds"):
        return 0.0
    if device != CPU:
        return 0.1 * len(cases)
    allowed_s, round_s = float(fields.get("max_s") or 0.0) * len(cases), sum(cost.call for cost in costs)
    if 10 * round_s > 2 * allowed_s:  # too slow to compare
        return 5 * round_s
    return 5 * round_s + max(1.5 * allowed_s, 10 * round_s) + sum(cost.compare for cost in costs)
