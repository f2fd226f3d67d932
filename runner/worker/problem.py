"""State that the cases of one problem share: inputs, expected outputs, and the calls to compare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from runner.models.workload import Expected, Workload, draw_on
from runner.timing import Call

TimedCall = tuple[Call, Mapping[str, Scalar]]  # with the figures of its row


class Problem:
    """A workload of one size, on one device, from one seed.

    ``low_memory`` becomes true when a case has run out of memory: from then on nothing is kept between cases.
    """

    def __init__(self, case: CaseRecord) -> None:
        self.name = case.problem
        self.low_memory = False
        self._case = case
        self._inputs: tuple[Tensor, ...] | None = None
        self._expected: tuple[Expected, ...] | None = None
        self._calls: dict[str, TimedCall] = {}

    @cached_property
    def workload(self) -> Workload:
        """The workload of the cases."""
        workload: Workload = option("runner.models", self._case.workload)
        return workload

    @cached_property
    def measures(self) -> list[Measurement]:
        """The measurements of each case, in their order."""
        return [option("runner.measure", measure) for measure in self._case.measures]

    @property
    def device(self) -> str:
        """The device, "cpu" or "cuda". Raises Unsupported if there is no GPU but the case asks for one."""
        available = torch.cuda.is_available()
        if self._case.device == "cuda" and not available:
            raise Unsupported("torch sees no NVIDIA GPU here; run with device=cpu, or on a machine that has one")
        return "cuda" if available and self._case.device != "cpu" else "cpu"

    def inputs(self) -> tuple[Tensor, ...]:
        """Return the inputs: the same tensors for every case, so that their addresses make no difference."""
        torch.set_float32_matmul_precision("high" if self.workload.tf32 else "highest")  # a case may have changed it
        if self._inputs is None:
            draw = draw_on(self.device, self.workload.dtype, self.workload.data, self._case.seed)
            with algorithms(deterministic=False):  # the workload may use any operation
                self._inputs = self.workload.inputs(draw)
        return self._inputs

    @property
    def input_bytes(self) -> int:
        """Bytes of the inputs; 0 if there are none yet."""
        return sum(tensor.nbytes for tensor in self._inputs or ())

    def expected(self) -> tuple[Expected, ...]:
        """Return the expected outputs in float64. They are computed before an implementation sees the inputs.

        The workload may use any operation, so its reference is computed without ``deterministic_algorithms``.
        """
        with algorithms(deterministic=False):
            expected = self._expected or self.workload.reference(*self.inputs())
        self._expected = None if self.low_memory else expected
        return expected

    def redraw(self) -> None:
        """Restore inputs that may have been changed: the same numbers in the same tensors, or in new ones."""
        old, self._inputs = self._inputs, None
        if old is None:
            return
        try:
            for was, now in zip(old, self.inputs(), strict=True):
                was.copy_(now)
            self._inputs = old
        except Exception:  # their memory is gone, or their shape: then no earlier call can be trusted either
            self._inputs, self._calls = None, {}

    def keep_call(self, case: CaseRecord, call: Call, metrics: Mapping[str, Scalar]) -> None:
        """Keep ``call``, which has been timed with these ``metrics``, for the comparison."""
        if not self.low_memory:
            self._calls[case.key] = call, metrics

    def release_caches(self) -> bool:
        """Free all that a case can do without, now and from now on. Return False if there was nothing to free."""
        if self.low_memory or not (self._calls or self._expected):
            return False
        self.low_memory = True
        self._expected, self._calls = None, {}
        return True

    def compare(self) -> Comparison:
        """Return paired rounds of the calls that were kept, by the first measurement that can make them."""
        self._expected = None
        self.inputs()  # a case may have changed the precision of products
        if self.low_memory:
            return Comparison(reason="not compared side by side: memory is short")
        if len(self._calls) < 2:
            return Comparison(reason="there is nothing to compare")
        calls = on_same_inputs(list(self._calls.values()))
        for measure in self.measures:
            compare = getattr(measure, "compare", None)
            with algorithms(deterministic=self._case.deterministic_algorithms):
                found = compare(calls, self.device) if compare else None
            if found:
                instruments, batches_us, timed = (
                    dict(zip(self._calls, each, strict=True)) for each in zip(*found, strict=True)
                )
                return Comparison({key: some for key, some in batches_us.items() if some}, instruments, calls=timed)
        return Comparison(reason="not compared side by side: not asked for, or too slow")


def on_same_inputs(calls: Sequence[TimedCall]) -> Sequence[TimedCall]:
    """Return ``calls`` with resets that also undo what the other calls do to the inputs, which all of them share.

    If no call changes its inputs, ``calls`` stay as they are: on a CPU, short calls with a reset are timed singly.
    """
    undo = [call.restore for call, figures in calls if figures.get("mutates_inputs")]

    def restored(call: Call) -> Call:
        def reset() -> None:
            for each in (*undo, call.restore):
                each()

        return replace(call, reset=reset)

    return [(restored(call), figures) for call, figures in calls] if undo else calls


@contextmanager
def algorithms(*, deterministic: bool) -> Iterator[None]:
    """Set ``torch.use_deterministic_algorithms``, and restore it afterwards.

    If it is so already, torch's function is not called, since it imports Inductor.
    """
    mode, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    if mode == deterministic:
        yield
        return
    torch.use_deterministic_algorithms(deterministic)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(mode, warn_only=warn_only)


def option(package: str, choice: Choice) -> Any:  # the class depends on the name
    """Return the object of ``choice``, of a class in ``package``."""
    return schema.build(schema.find(package, choice.name), choice.fields, choice.name)


def device_name(device: str) -> str:
    """Return the name of the device in a row: the GPU's own name, or "cpu"."""
    return torch.cuda.get_device_name() if device != "cpu" and torch.cuda.is_available() else "cpu"
