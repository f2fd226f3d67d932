"""The tensors that a call returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import nested


def tensors(result: object) -> list[Tensor]:
    """Return the tensors in ``result``, which may be one or hold them in any nesting, detached from autograd."""
    return [leaf.detach() for _, leaf in nested.leaves(result) if isinstance(leaf, Tensor)]


def returned(result: object, changed: Sequence[Tensor] | None) -> Any:
    """Return ``result`` of a call; if it holds no tensor, the arguments that the call ``changed``, if any."""
    return result if tensors(result) or not changed else changed


def tensor_paths(result: object) -> list[str]:
    """Return where each of ``tensors(result)`` is in ``result``, as an expression: ``["past"][0]``."""
    return [path for path, leaf in nested.leaves(result) if isinstance(leaf, Tensor)]


def alias(tensor: Tensor) -> Tensor:
    """Return a tensor over the same memory that does not keep it allocated, as torch's CUDA graph trees do."""
    storage = tensor.untyped_storage()
    unowned = torch._C._construct_storage_from_data_pointer(storage.data_ptr(), tensor.device, storage.nbytes())
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(unowned, int(tensor.storage_offset()), tensor.shape, tensor.stride())
