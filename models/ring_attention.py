"""Attention of a sequence that is split over ranks, around which keys and values travel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from .attention import Attention
from .ranks import OnRanks, gathered
from .workload import Draw, Expected, Size

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class RingAttention(OnRanks):
    """y [batch, heads, length / ranks, d] on each rank: its queries' attention to the keys and values of all ranks."""

    batch: Size
    heads: Size  # of queries
    kv_heads: Size  # of keys and values; each is read by heads / kv_heads heads of queries
    length: Size  # of the whole sequence
    d: Size  # numbers of a head
    causal: bool  # a query sees the keys up to its own position
    variant: Literal["ring", "striped"]  # positions of a rank: the next length / ranks, or every ranks-th
    dtype: Literal["float32", "float16", "bfloat16"]

    def __post_init__(self) -> None:
        self.require_multiple("length", "ranks")
        self.require_multiple("heads", "kv_heads")

    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """Return q, k and v of this rank."""
        sizes = (self.length // self.ranks, self.d)
        return tuple(draw(self.batch, heads, *sizes) for heads in (self.heads, self.kv_heads, self.kv_heads))

    def options(self) -> Mapping[str, object]:
        """Return the mask and the split."""
        return {"causal": self.causal, "variant": self.variant}

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Return y of this rank's queries, with the tolerance of the workload attention.

        That leaves room for the results of blocks, each rounded to the dtype before they are merged.
        """
        import torch

        q, *own = inputs
        at = 3 if self.variant == "striped" else 2  # of the rank among the dimensions of a sequence
        k, v = (gathered(x).movedim(0, at).flatten(2, 3) for x in own)
        place = torch.arange(q.shape[2], device=q.device)
        last = place * self.ranks + self.rank if self.variant == "striped" else place + self.rank * q.shape[2]
        return self._whole().expected_of(q, k, v, last=last if self.causal else None)

    def flops(self) -> int:
        """Those of the attention of the whole sequence, over the number of ranks: 4 d for a pair of query and key."""
        return replace(self._whole(), length=self.length).flops() // self.ranks

    def bytes_min(self) -> int:
        """Queries, keys and values of a rank, read once, and y, written once."""
        return replace(self._whole(), kv_length=self.length // self.ranks).bytes_min()

    def _whole(self) -> Attention:
        """Return the attention of one rank's queries to all keys."""
        return Attention(
            batch=self.batch,
            heads=self.heads,
            kv_heads=self.kv_heads,
            length=self.length // self.ranks,
            kv_length=self.length,
            d=self.d,
            causal=self.causal,
            pass_="fwd",  # noqa: S106 - no password
            layout="contiguous",
            dtype=self.dtype,
            tf32=self.tf32,
            data=self.data,
        )
