"""Compute with torch's own methods of tensors, although a case may have replaced them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from operator import is_
from typing import Any

import torch

TENSOR = torch.Tensor
OWN: Mapping[str, Any] = dict(vars(TENSOR))  # as they are before a case is loaded


@contextmanager
def unpatched() -> Iterator[None]:
    """Give tensors their own methods and no function modes inside this context, or this function.

    What runs there calls methods of tensors alone, since functions such as ``torch.add`` may be replaced too.
    """
    names = replaced_methods()
    found = {name: vars(TENSOR)[name] for name in names if name in vars(TENSOR)}
    _set(names, OWN)
    try:
        with torch._C.DisableTorchFunction():
            yield
    finally:
        _set(names, found)


def replaced_methods() -> list[str]:
    """Return the names of torch's own attributes of tensors that are not as they were, in order."""
    found = vars(TENSOR)
    if len(found) == len(OWN) and all(map(is_, map(found.get, OWN), OWN.values())):  # for thousands of operations
        return []
    changed = [name for name in {*found, *OWN} if found.get(name) is not OWN.get(name)]
    return sorted(name for name in changed if name in OWN or hasattr(torch._C.TensorBase, name))  # others are additions


def _set(names: list[str], methods: Mapping[str, Any]) -> None:
    for name in names:
        setattr(TENSOR, name, methods[name]) if name in methods else delattr(TENSOR, name)
