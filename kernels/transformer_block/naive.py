"""A transformer block from elementary operations, with all scores of the attention in memory."""

from __future__ import annotations

from ..attention.naive import attention
from ..gelu.naive import gelu
from ..layernorm.naive import layernorm
from ..rmsnorm.naive import rmsnorm
from ._block import composed

transformer_block = composed(attention, gelu, layernorm, rmsnorm)
