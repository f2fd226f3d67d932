"""A transformer block of our kernels in Triton: norms, attention and GELU. cuBLAS multiplies, torch adds and gates."""

from __future__ import annotations

from ..attention.triton import attention
from ..gelu.triton import gelu
from ..layernorm.triton import layernorm
from ..rmsnorm.triton import rmsnorm
from ._block import composed

transformer_block = composed(attention, gelu, layernorm, rmsnorm)
