"""What the cases of one problem share: the inputs, what should come of them, and the calls that can be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from runner.experiment import schema
from runner.experiment.case import CaseRecord, Choice, Scalar
from runner.experiment.results import Comparison
from runner.kernels.unsupported import Unsupported
from runner.measure import Measurement
from runner.models.draw import draw_on
from runner.models.workload import Expected, Workload
from runner.timing import Call


class Problem:
    """A workload of one size, on one device, from one seed."""

    def __init__(self, case: CaseRecord) -> None:
        self.name = case.problem
        self._case = case
        self._inputs: tuple[Tensor, ...] | None = None
        self._expected: tuple[Expected, ...] | None = None
        self._calls: dict[str, tuple[Call, Mapping[str, Scalar]]] = {}
        self._low_memory = False

    @cached_property
    def workload(self) -> Workload:
        """What is computed."""
        workload: Workload = option("runner.models", self._case.workload)
        return workload

    @cached_property
    def measures(self) -> list[Measurement]:
        """What is observed of each case."""
        return [option("runner.measure", measure) for measure in self._case.measures]

    @property
    def device(self) -> str:
        """Where it runs, "cpu" or "cuda". Raises Unsupported."""
        return resolve(self._case.device)

    def inputs(self) -> tuple[Tensor, ...]:
        """The same tensors for every case, so that where they lie makes no difference between two."""
        torch.set_float32_matmul_precision("high" if self.workload.tf32 else "highest")  # a case may have changed it
        if self._inputs is None:
            draw = draw_on(self.device, self.workload.dtype, self.workload.data, self._case.seed)
            self._inputs = self.workload.inputs(draw)
        return self._inputs

    @property
    def input_bytes(self) -> int:
        """Memory of the inputs, if they have been made."""
        return sum(tensor.nbytes for tensor in self._inputs or ())

    def expected(self) -> tuple[Expected, ...]:
        """What is right, in float64; computed before any implementation has seen the inputs."""
        if self._expected is None:
            self._expected = self.workload.reference(*self.inputs())
        return self._expected

    def redraw(self) -> None:
        """The inputs may have been changed: put the same numbers into the same tensors, or make new ones."""
        old, self._inputs = self._inputs, None
        if old is None:
            return
        try:
            for was, now in zip(old, self.inputs(), strict=True):
                was.copy_(now)
            self._inputs = old
        except Exception:  # their memory is gone, or their shape: then no earlier call can be trusted either
            self._inputs, self._calls = None, {}

    def keep(self, case: CaseRecord, call: Call, metrics: Mapping[str, Scalar]) -> None:
        """``call`` has been timed, which gave ``metrics``, and takes part in the comparison."""
        if not self._low_memory:
            self._calls[case.key] = call, metrics

    @property
    def holds_much(self) -> bool:
        """Something is held that a case could do without."""
        return not self._low_memory and (bool(self._calls) or self._expected is not None)

    def release_caches(self) -> None:
        """Memory is short: from now on nothing is held but what the case at hand needs."""
        self._low_memory = True
        self._expected, self._calls = None, {}

    def release_expected(self) -> None:
        """The case at hand has been checked; the next one would like to find it."""
        if self._low_memory:
            self._expected = None

    @property
    def low_memory(self) -> bool:
        """Memory is short."""
        return self._low_memory

    def compare(self) -> Comparison:
        """The calls kept, side by side, by the first measurement that can do it."""
        self._expected = None
        self.inputs()  # a case may have changed the precision of products
        if self._low_memory:
            return Comparison(reason="not compared side by side: memory is short")
        if len(self._calls) < 2:
            return Comparison(reason="there is nothing to compare")
        calls = on_same_inputs(list(self._calls.values()))
        for measure in self.measures:
            compare = getattr(measure, "compare", None)
            if compare and (found := compare(calls, self.device)):
                by_key = dict(zip(self._calls, found, strict=True))
                return Comparison(
                    batches_us={key: batches for key, (_, batches) in by_key.items()},
                    instruments={key: instrument for key, (instrument, _) in by_key.items()},
                )
        return Comparison(reason="not compared side by side: not asked for, or too slow")


def on_same_inputs(
    calls: Sequence[tuple[Call, Mapping[str, Scalar]]],
) -> Sequence[tuple[Call, Mapping[str, Scalar]]]:
    """Calls with their figures, each with a reset that also undoes what another one does to the inputs of all.

    Where no call changes its inputs, ``calls`` as they are: a short call on a CPU that needs a reset is timed singly.
    """
    undo = [call.restore for call, figures in calls if figures.get("mutates_inputs")]

    def restored(call: Call) -> Call:
        def reset() -> None:
            for each in (*undo, call.restore):
                each()

        return replace(call, reset=reset)

    return [(restored(call), figures) for call, figures in calls] if undo else calls


def option(package: str, choice: Choice) -> Any:  # the class depends on the name
    """The object that ``choice`` says, of a class in ``package``."""
    return schema.build(schema.find(package, choice.name), choice.fields, choice.name)


def resolve(device: str) -> str:
    """``auto`` as cpu or cuda. Raises Unsupported if there is no GPU and one is asked for."""
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise Unsupported("torch sees no NVIDIA GPU here; run with device=cpu, or on a machine that has one")
    return "cuda" if available and device != "cpu" else "cpu"


def device_name(device: str) -> str:
    """What a row says it ran on: the GPU's own name, or cpu."""
    return torch.cuda.get_device_name() if device != "cpu" and torch.cuda.is_available() else "cpu"
