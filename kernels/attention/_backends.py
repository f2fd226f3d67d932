"""torch's scaled_dot_product_attention by a backend of one's choice."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from ..unsupported import Unsupported

ON_A_GPU = (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION)
REFUSED = ("No available kernel", "No viable backend")  # torch's words


def scaled_dot_product(q: Tensor, k: Tensor, v: Tensor, causal: bool, backend: SDPBackend | None = None) -> Tensor:
    """Compute attention by ``backend``; None: by the one that torch chooses.

    torch aligns a causal mask of its own with the first key, and ours is aligned with the last one. With more keys than
    queries, flash and efficient get that alignment as a flag on a GPU; others get a mask, of which the last is kept.

    Raises:
        Unsupported: ``backend`` does not take these tensors here.

    """
    masked = causal and q.shape[2] > 1  # a single query sees all keys
    mask = None
    if masked and q.shape[2] != k.shape[2]:  # on a CPU, a torch with CUDA would take the flag to its kernels of GPUs
        by_flag = q.is_cuda and backend not in (SDPBackend.MATH, SDPBackend.CUDNN_ATTENTION)
        anew = q.is_cuda and torch.cuda.is_current_stream_capturing()  # a graph makes its own
        made = _mask.__wrapped__ if anew else _mask
        lengths = q.shape[2], k.shape[2]
        mask = causal_lower_right(*lengths) if by_flag else made(*lengths, q.device)
    apply = partial(F.scaled_dot_product_attention, q, k, v, mask, 0.0, masked and mask is None)
    if q.shape[1] != k.shape[1]:
        apply = partial(apply, enable_gqa=True)
    if backend is None:
        return apply()
    if not q.is_cuda and backend in ON_A_GPU:
        raise Unsupported(f"torch has its backend {_name(backend)} on GPUs alone; use device=cuda")
    with sdpa_kernel(backend):
        try:
            return apply()
        except RuntimeError as error:
            if not any(words in str(error) for words in REFUSED):
                raise
            reason = _reason(backend, apply)
    raise Unsupported(reason)


@lru_cache(maxsize=1)
def _mask(length: int, kv_length: int, device: torch.device) -> Tensor:
    return torch.ones(length, kv_length, dtype=torch.bool, device=device).tril_(kv_length - length)


def _name(backend: SDPBackend) -> str:
    return backend.name.removesuffix("_ATTENTION").lower()


def _reason(backend: SDPBackend, apply: Callable[[], Tensor]) -> str:
    """Return why ``backend`` refuses, from the warnings of torch, which tell it for every backend."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with suppress(RuntimeError):
            apply()
    others = ("not used because", "has been runtime disabled")
    texts = [str(one.message).split(" (Triggered")[0].strip() for one in said]
    telling = [text for text in texts if not any(words in text for words in others)]
    return f"torch's backend {_name(backend)} does not take these tensors" + (f": {telling[0]}" if telling else "")
