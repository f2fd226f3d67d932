"""torch's scaled_dot_product_attention by a backend of one's choice."""

from __future__ import annotations

import warnings
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..unsupported import Unsupported
from ._operands import causal_mask

# Backends that each say why they refuse; see ``_reason``.
SPEAKS = {
    SDPBackend.FLASH_ATTENTION: "Flash",
    SDPBackend.EFFICIENT_ATTENTION: "Mem",
    SDPBackend.CUDNN_ATTENTION: "cuDNN",
}


def scaled_dot_product(q: Tensor, k: Tensor, v: Tensor, causal: bool, backend: SDPBackend | None = None) -> Tensor:
    """Compute attention by ``backend``; None: by the one that torch chooses.

    torch aligns a causal mask of its own with the first key, and ours is aligned with the last one. So the mask is a
    tensor if there are more keys than queries.

    Raises:
        Unsupported: ``backend`` does not take these tensors here.

    """
    mask = causal_mask(q, k) if causal and q.shape[2] != k.shape[2] else None
    apply = partial(F.scaled_dot_product_attention, q, k, v, mask, 0.0, causal and mask is None)
    if q.shape[1] != k.shape[1]:
        apply = partial(apply, enable_gqa=True)
    if backend is None or torch.compiler.is_compiling():
        return apply()
    with warnings.catch_warnings(record=True) as said, sdpa_kernel(backend):
        warnings.simplefilter("always")
        try:
            return apply()
        except RuntimeError as error:
            if "No available kernel" not in str(error) and "No viable backend" not in str(error):
                raise
            raise Unsupported(_reason(backend, [str(one.message) for one in said])) from error


def _reason(backend: SDPBackend, warned: list[str]) -> str:
    """Return why ``backend`` refuses, from the warnings of torch, which tell it for every backend."""
    name = backend.name.removesuffix("_ATTENTION").lower()
    others = ("kernel not used because", "not used because", "has been runtime disabled")
    telling = [text.split(" (Triggered")[0].strip() for text in warned if not any(word in text for word in others)]
    return f"torch's backend {name} does not take these tensors here" + (f": {telling[0]}" if telling else "")
