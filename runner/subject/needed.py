"""The memory that a workload in a file needs, found without allocating it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from ..timing.nested import tensors
from .operation import OwnOperation

DRAWS = 3  # float64 outputs that are kept to find the tolerance: the value, and sums over the draws


@dataclass(frozen=True)
class Needed:
    """Bytes of a case."""

    inputs: int  # with the weights of modules
    outputs: int
    check: int  # in float64, beside both


def needed(operation: OwnOperation, device: str = "cpu") -> Needed:
    """Return the bytes of the inputs, the outputs and the check of ``operation``, which runs on tensors without memory.

    Raises what the file raises, also where it reads a value of a tensor.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):
        args, kwargs = operation.draw(device, 0)
        returned = operation.reference(*args, **kwargs)
        inputs, outputs = ([tensor for _, tensor in tensors(value)] for value in ((args, kwargs), returned))
        doubles = 8 * (sum(map(_floats, inputs)) + DRAWS * sum(map(_floats, outputs)))
        return Needed(sum(tensor.nbytes for tensor in inputs), sum(tensor.nbytes for tensor in outputs), doubles)


def _floats(tensor: Tensor) -> int:
    return tensor.numel() if tensor.is_floating_point() else 0
