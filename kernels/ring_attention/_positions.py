"""What a query of this rank sees of the keys of another one."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Seen = Literal["all", "none", "up to own place", "before own place"]


def seen(rank: int, source: int, variant: str, causal: bool) -> Seen:
    """Return which keys of ``source`` a query of ``rank`` sees, by its place among the queries of its rank."""
    if not causal:
        return "all"
    if variant == "striped":  # query i is at i ranks + rank, key j at j ranks + source
        return "up to own place" if source <= rank else "before own place"
    return "all" if source < rank else "up to own place" if source == rank else "none"


def positions(length: int, rank: int, ranks: int, variant: str, device: torch.device) -> Tensor:
    """Return where in the whole sequence the ``length`` positions of ``rank`` are."""
    place = torch.arange(length, device=device)
    return place * ranks + rank if variant == "striped" else place + rank * length
