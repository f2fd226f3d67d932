"""Right and wrong variants of any operation: sums in another order, products of TF32, terms that are left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

LOWER = {torch.float32: torch.bfloat16, torch.bfloat16: torch.float8_e4m3fn, torch.float16: torch.float8_e4m3fn}
PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}
SPLITS = 4


class Altered(TorchDispatchMode):
    """Replaces operators by ``change(name, run, args, kwargs)``, which returns None to leave one as it is."""

    def __init__(self, change: Callable[..., Any]) -> None:
        super().__init__()
        self._change = change

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run ``func``, or what replaces it."""
        kwargs = dict(kwargs or {})
        name = func._schema.name.partition("::")[2]
        changed = self._change(name, lambda *given: func(*given, **kwargs), args, kwargs)
        return func(*args, **kwargs) if changed is None else changed


def _reduced(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Tensor, Callable[[Tensor], Tensor]] | None:
    """Return the terms of a sum or mean in float32, [results, terms], and what makes its result of their sum."""
    x = args[0]
    if name not in ("sum", "mean") or not x.dim() or x.dtype not in LOWER:
        return None
    axes = [axis % x.dim() for axis in (args[1] if len(args) > 1 and args[1] else range(x.dim()))]
    keep = [axis for axis in range(x.dim()) if axis not in axes]
    keepdim = len(args) > 2 and args[2]
    shape = [1 if axis in axes else size for axis, size in enumerate(x.shape) if axis not in axes or keepdim]
    terms = x.permute(*keep, *axes).reshape(math.prod(x.shape[axis] for axis in keep), -1).float()
    scale = terms.shape[1] if name == "mean" else 1
    return terms, lambda total: (total / scale).reshape(shape).to(kwargs.get("dtype") or x.dtype)


def in_order(split: bool) -> Altered:
    """Return a mode in which sums and products are added one term after the other, or in parts of a few each."""

    def sequential(terms: Sequence[Tensor]) -> Tensor:
        total = torch.zeros_like(terms[0])
        for term in terms:
            total = total + term
        return total

    def change(name: str, run: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if name in PRODUCTS and args[0].dtype != torch.float64:
            a, b = (each.float() for each in args[PRODUCTS[name] : PRODUCTS[name] + 2])
            width = max(1, -(-a.shape[-1] // SPLITS)) if split else 1
            parts = [p @ q for p, q in zip(a.split(width, -1), b.split(width, -2), strict=True)]
            if split:  # partial sums in the type of the result, as cuBLAS may
                parts = [part.to(args[0].dtype).float() for part in parts]
            total = sequential(parts) * kwargs.get("alpha", 1)
            total = total + kwargs.get("beta", 1) * args[0].float() if PRODUCTS[name] else total
            return total.to(args[0].dtype)
        reduced = _reduced(name, args, kwargs)
        if reduced is None:
            return None
        terms, finish = reduced
        parts = [part.sum(1) for part in terms.chunk(7, 1)] if split else list(terms.unbind(1))
        return finish(sequential(parts))

    return Altered(change)


def tf32() -> Altered:
    """Return a mode in which factors of products have 10 bits of fraction."""

    def rounded(tensor: Tensor) -> Tensor:
        if tensor.dtype != torch.float32:
            return tensor
        return ((tensor.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)

    def change(name: str, run: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        first = PRODUCTS.get(name, 0 if name == "convolution" else None)
        if first is None:
            return None
        return run(*args[:first], *(rounded(a) if isinstance(a, Tensor) else a for a in args[first:]))

    return Altered(change)


def dropped() -> Altered:
    """Return a mode in which the last 1 % of the terms of sums and products are left out, at least one."""

    def change(name: str, run: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if name in PRODUCTS:
            place = PRODUCTS[name]
            a = args[place].clone()
            a[..., a.shape[-1] - max(1, a.shape[-1] // 100) :] = 0
            return run(*args[:place], a, *args[place + 1 :])
        if name == "convolution":
            weight = args[1].flatten(1).clone()
            weight[:, weight.shape[1] - max(1, weight.shape[1] // 100) :] = 0
            return run(args[0], weight.view(args[1].shape), *args[2:])
        if name == "_softmax":
            x = args[0].float()
            kept = x.narrow(args[1], 0, x.shape[args[1]] - max(1, x.shape[args[1]] // 100))
            return (x - kept.logsumexp(args[1], keepdim=True)).exp().to(args[0].dtype)
        if (reduced := _reduced(name, args, kwargs)) is not None:
            terms, finish = reduced
            return (
                finish(terms[:, : terms.shape[1] - max(1, terms.shape[1] // 100)].sum(1))
                if terms.shape[1] > 1
                else None
            )
        return None

    return Altered(change)


def lowered(lower: torch.dtype) -> Altered:
    """Return a mode in which each result is rounded to a narrower type."""

    def change(name: str, run: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if name.endswith("_") or name in ("detach", "view", "t", "transpose", "permute", "expand", "select", "slice"):
            return None
        out = run(*args)
        return tree_map_only(Tensor, lambda t: t.to(lower).to(t.dtype) if t.is_floating_point() else t, out)

    return Altered(change)
