"""State that the cases of a problem share: inputs, expected outputs, and calls for the paired rounds."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from ..kernels.unsupported import Unsupported
from ..measure import Measurement
from ..models.workload import Workload
from ..records.case import CaseRecord, Scalar
from ..records.options import option_class
from ..records.paired_rounds import PairedRounds
from ..records.replaced import setting
from ..records.schema import build
from ..subject.operation import expected_outputs, workload_of
from ..subject.path import TimedCall, on_same_inputs, remembered
from ..timing import ranks
from ..timing.call import Call, Outputs


class ProblemState:
    """State of a workload of one size, on one device, from one seed.

    ``low_memory`` becomes true when a case has run out of memory; then nothing is kept between cases.
    """

    def __init__(self, case: CaseRecord) -> None:
        self.name = case.problem
        self.low_memory = False
        self._case = case
        self._inputs: tuple[Tensor, ...] | None = None
        self._expected: Outputs | None = None
        self._now: Callable[[], Outputs] | None = None
        self._calls: dict[str, TimedCall] = {}
        self._others: dict[int, Tensor] | None = None  # values of integers for another seed, by their addresses

    @cached_property
    def workload(self) -> Workload:
        """The workload of the cases."""
        workload: Workload = workload_of(self._case.workload)
        place: dict[str, Any] = {"rank": ranks.current.rank, "world_size": ranks.current.count}
        return replace(workload, **{name: value for name, value in place.items() if name in vars(workload)})

    @cached_property
    def measures(self) -> list[Measurement]:
        """The measurements of each case, in their order."""
        return [build(option_class("measure", each.name), each.fields, each.name) for each in self._case.measures]

    @property
    def device(self) -> str:
        """The device, "cpu" or "cuda". Raises Unsupported if the case needs a GPU and there is none."""
        available = torch.cuda.is_available()
        if self._case.settings.device == "cuda" and not available:
            raise Unsupported("torch sees no NVIDIA GPU here; run with device=cpu, or on a machine that has one")
        return "cuda" if available and self._case.settings.device != "cpu" else "cpu"

    def inputs(self) -> tuple[Tensor, ...]:
        """Return the inputs: the same tensors for every case, so that times do not differ by their addresses."""
        # Whether float32 products and convolutions may round their factors to TF32; a case may have changed it.
        torch.set_float32_matmul_precision("high" if self.workload.tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = self.workload.tf32
        if self._inputs is None:
            with algorithms(deterministic=False):  # the workload may use any operation
                self._inputs = self.workload.draw_inputs(self.device, self._case.settings.seed)
        return self._inputs

    @property
    def input_bytes(self) -> int:
        """Bytes of the inputs; 0 if there are none yet."""
        return sum(tensor.nbytes for tensor in self._inputs or ())

    def expected(self) -> Outputs:
        """Return the expected outputs in float64, which are computed before an implementation sees the inputs."""
        expected = self._expected or self._compute_expected()
        self._expected = None if self.low_memory else expected
        return expected

    @property
    def expected_now(self) -> Callable[[], Outputs]:
        """A function that returns the expected outputs for the values that the inputs hold when it is called."""
        self._now = None if self.low_memory else self._now or remembered(self._compute_expected, self.inputs())
        return self._now or self._compute_expected

    def _compute_expected(self) -> Outputs:
        """Return the expected outputs for the values that the inputs hold now.

        The workload may use any operation, so its reference is computed without ``deterministic_algorithms``.
        """
        workload, inputs, quick = self.workload, self.inputs(), self._case.settings.quick
        with algorithms(deterministic=False):
            return expected_outputs(workload, inputs, quick=quick)

    def redraw(self) -> None:
        """Restore inputs that may have been changed: the same numbers in the same tensors, or in new tensors."""
        old, self._inputs = self._inputs, None
        if old is None:
            return
        try:
            for was, now in zip(old, self.inputs(), strict=True):
                was.data.copy_(now)
            self._inputs = old
        except Exception:  # their memory or shape has changed, so earlier calls are invalid too
            self._inputs, self._calls, self._expected, self._now = None, {}, None, None
            self.__dict__.pop("workload")  # it may keep them

    def other_integers(self, inputs: Sequence[Tensor]) -> dict[int, Tensor]:
        """Return the values of integer ``inputs`` for another seed, by their addresses; {} if they do not fit."""
        if self._others is None and inputs and not self.low_memory and ranks.current.count == 1:
            self._others = {}
            with suppress(Exception), algorithms(deterministic=False):
                drawn = self.workload.draw_inputs(self.device, self._case.settings.seed + 1)
                both = zip(self.inputs(), drawn, strict=True)
                self._others = {x.data_ptr(): other for x, other in both if any(x is one for one in inputs)}
        others = self._others or {}
        fits = all(x.data_ptr() in others and others[x.data_ptr()].shape == x.shape for x in inputs)
        return others if fits else {}

    def keep_call(self, case: CaseRecord, call: Call, metrics: Mapping[str, Scalar]) -> None:
        """Keep ``call``, which has been timed with these ``metrics``, for the paired rounds."""
        if not self.low_memory:
            self._calls[case.key] = call, metrics

    def call_of(self, case: CaseRecord) -> Call | None:
        """Return the call that ``keep_call`` kept of ``case``, if it did."""
        call, _ = self._calls.get(case.key, (None, {}))
        return call

    def release_caches(self) -> bool:
        """Free the caches, and keep none from now on. Return False if there was nothing to free."""
        if self.low_memory or not (self._calls or self._expected):
            return False
        self.low_memory = True
        self._expected, self._now, self._calls = None, None, {}
        return True

    def compare(self) -> PairedRounds:
        """Return paired rounds of the kept calls, by the first measurement that can make them."""
        self._expected = self._now = None
        self.inputs()  # it also sets the precision of products again, which a case may have changed
        if self.low_memory:
            return PairedRounds(reason="no paired rounds: memory is short")
        if len(self._calls) < 2:
            return PairedRounds(reason="there is nothing to compare")
        calls = on_same_inputs(list(self._calls.values()))
        for measure in self.measures:
            compare = getattr(measure, "compare", None)
            with algorithms(deterministic=self._case.settings.deterministic_algorithms):
                results = compare(calls, self.device) if compare else None
            if results:
                return PairedRounds.of(dict(zip(self._calls, results, strict=True)))
        return PairedRounds(reason="no paired rounds: turned off, or calls are too slow")


def algorithms(*, deterministic: bool) -> AbstractContextManager[None]:
    """Set ``torch.use_deterministic_algorithms``, and restore it afterwards.

    If it is set already, torch's function is not called, since it imports Inductor.
    """
    if torch.are_deterministic_algorithms_enabled() == deterministic:
        return nullcontext()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    use = partial(torch.use_deterministic_algorithms, warn_only=warn_only)
    return setting(torch.are_deterministic_algorithms_enabled, use, deterministic)


def device_name(device: str) -> str:
    """Return the name of the device in a row: the GPU's own name, or "cpu"."""
    return torch.cuda.get_device_name() if device != "cpu" and torch.cuda.is_available() else "cpu"
