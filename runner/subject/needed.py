"""The memory that a workload in a file needs, found without allocating it."""

from __future__ import annotations

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from ..timing.nested import tensors
from .operation import OwnOperation

DRAWS = 3  # float64 outputs that are kept to find the tolerance: the value, and sums over the draws


def needed(operation: OwnOperation, device: str = "cpu") -> tuple[int, int, int]:
    """Return the bytes of the inputs with weights, of the outputs, and of the check in float64 beside both.

    ``operation`` runs on tensors without memory. Raises what its file raises, also where it reads a value of a tensor.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):
        args, kwargs = operation.draw(device, 0)
        returned = operation.reference(*args, **kwargs)
        inputs, outputs = ([tensor for _, tensor in tensors(value)] for value in ((args, kwargs), returned))
        doubles = 8 * (sum(map(_floats, inputs)) + DRAWS * sum(map(_floats, outputs)))
        return sum(tensor.nbytes for tensor in inputs), sum(tensor.nbytes for tensor in outputs), doubles


def _floats(tensor: Tensor) -> int:
    return tensor.numel() if tensor.is_floating_point() else 0
