"""Weights of one module for another one, so that both compute the same."""

from __future__ import annotations

from torch import Tensor, nn, no_grad


def share(model: nn.Module, other: nn.Module) -> str:
    """Give ``other`` the parameters and buffers of ``model``, if both have the same names and shapes.

    They are the same tensors, but for those of another type, which get the values. Return the column ``weights``; ""
    if neither has any.
    """
    states = (module.state_dict(keep_vars=True) for module in (model, other))
    weights, others = ({name: one for name, one in state.items() if isinstance(one, Tensor)} for state in states)
    if {name: weight.shape for name, weight in weights.items()} != {name: one.shape for name, one in others.items()}:
        return "from the same seed"
    with no_grad():
        for name, weight in weights.items():
            path, _, leaf = name.rpartition(".")
            if type(weight) is type(others[name]) and weight.dtype == others[name].dtype:
                setattr(other.get_submodule(path), leaf, weight)
            else:
                others[name].copy_(weight)
    return "those of the reference" if weights else ""
