"""A transformer block of PyTorch: its fused norms and GELU, and scaled_dot_product_attention."""

from __future__ import annotations

from ..attention.torch import attention
from ..gelu.torch import gelu
from ..layernorm.torch import layernorm
from ..rmsnorm.torch import rmsnorm
from ._block import composed

transformer_block = composed(attention, gelu, layernorm, rmsnorm)
