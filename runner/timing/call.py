"""Call: an implementation bound to its inputs, with its work and its check."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from ..records.case import Scalar

if TYPE_CHECKING:
    from torch import Tensor

    from .correctness import CheckResult


class Batches(NamedTuple):
    """Result of paired rounds for one call."""

    instrument: str
    means_us: list[float]  # ten; none if a race has dropped the call, or if its outputs were wrong
    calls: int  # that were timed
    wrong: str = ""  # what was wrong with their outputs


@dataclass(frozen=True)
class Work:
    """Work that a call cannot avoid in any implementation."""

    flops: int  # floating-point operations of the definition
    bytes_min: int  # each input read once, each output written once
    dtype: str  # type of the inputs
    tf32: bool
    algo_bytes: int = 0  # size of a collective, as nccl-tests counts it; 0: it is not one
    bus_factor: float = 1.0  # of that size, what the busiest link between ranks carries at least


@dataclass(frozen=True)
class Expected:
    """The expected value of one output. It is correct if ``|y - value| <= atol + rtol * |value|`` at every element."""

    name: str  # "y", or "grad of w1"
    value: Tensor  # float64, of the output's shape
    atol: float | Tensor  # a number, or a float64 tensor of the output's shape
    rtol: float
    tolerance: str  # the bound as text, for the row
    share: float = 1.0  # of the elements that must be within the bound, if all are finite
    cap: float = inf  # of |y - value| at every element
    rms: float = inf  # of the root mean square, over all elements, of |y - value| / bound
    # Of |sum (y - rounded value) along| / sum along^2: a factor that all elements within their bounds have in common.
    common: float = inf
    along: Tensor | None = None  # what the factor is of, of the output's shape; None: ``value``
    dtype: str = ""  # of the output; "": that of the workload's other outputs


class Outputs(Protocol):
    """Judge of the outputs of a call. Subclasses say what is expected."""

    takes_whole: ClassVar[bool] = False  # are further calls judged by all that they return, or by its tensors alone?

    def check(self, outputs: Any, changed: Sequence[Tensor] | None = None) -> CheckResult:
        """Compare what a call returned, and the arguments that it ``changed``, as they are now. None: unknown."""

    def check_tensors(self, outputs: Sequence[object], paths: Sequence[str] = ()) -> CheckResult:
        """Compare the tensors among what a call returned, in their order. ``paths``: where they are in it."""
        return self.check(outputs)


@dataclass(frozen=True)
class Call:
    """An implementation bound to its inputs. ``run()`` returns the outputs, in the order of the reference's."""

    run: Callable[[], Any]
    reset: Callable[[], None] | None = None  # restores changes by ``run`` in place; None: there are none
    work: Work | None = None  # None: unknown, as for a kernel without a workload
    judge: Callable[[Sequence[object]], str] | None = None  # outputs → their error as text; empty if correct
    judge_anew: Callable[[Sequence[object]], str] | None = None  # the same for the values that the inputs hold now
    arguments: Any = ()  # that calls share and may change, if they are more than a list of tensors
    reads_inputs: bool = True  # at each call; a backward alone starts from a forward that has read them
    keeps_forward: bool = False  # what the first call has read, as a backward alone does
    columns: Mapping[str, Scalar] = field(default_factory=dict)  # of its row, known before the first ``run``
    captured: bool = False  # ``run`` replays a CUDA graph, and while another one is captured, adds its kernels to that
    inputs: tuple[Tensor, ...] = ()  # tensors that ``run`` reads and that may be moved in memory while it is timed

    def restore(self) -> None:
        """Restore the state from before the first ``run``."""
        if self.reset is not None:
            self.reset()


def in_turn(*steps: Callable[[], object]) -> Callable[[], None]:
    """Return a function that calls ``steps`` in turn."""

    def call() -> None:
        for step in steps:
            step()

    return call
