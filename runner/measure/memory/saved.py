"""What autograd saves for backward, told by its hooks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

Changes = list[tuple[int, int]]  # (address of a storage, its bytes; below 0 when what was saved is dropped)


class _Kept:
    """A saved tensor. Autograd drops it when the backward that needs it is done."""

    def __init__(self, tensor: Tensor, changes: Changes) -> None:
        storage = tensor.untyped_storage()
        self.tensor = tensor
        self._changes, self._address, self._bytes = changes, storage.data_ptr(), storage.nbytes()
        changes.append((self._address, self._bytes))

    def __del__(self) -> None:
        self._changes.append((self._address, -self._bytes))


@contextmanager
def saving() -> Iterator[Changes]:
    """Meanwhile, each tensor that is saved or dropped is written down."""
    changes: Changes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: _Kept(tensor, changes), lambda kept: kept.tensor):
        yield changes
