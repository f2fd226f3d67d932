"""Copies of batches from the host's memory to the device, one before each step of a training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ..kernels.unsupported import Unsupported

Loading = Literal["pageable", "pinned", "overlapped"]


class Loader:
    """Copies the next batch to where the step finds it: ``batch`` after ``load(index)``.

    pageable: the host waits for each copy. pinned: it does not, and the copy is in order with the kernels. overlapped:
    pinned, and the next batch is copied on a second stream while the step computes, so there are two places.
    """

    def __init__(self, batches: Sequence[tuple[Tensor, ...]], steps: int, loading: Loading) -> None:
        """Copy ``batches`` to the host; step ``index`` of ``steps`` gets batch ``index`` modulo their number."""
        if loading != "pageable" and not batches[0][0].is_cuda:
            raise Unsupported(f"loading={loading} needs an NVIDIA GPU; use loading=pageable")
        self._pinned = loading != "pageable"
        self._host = [tuple(map(self._on_host, batch)) for batch in batches]
        self._places = [tuple(map(torch.empty_like, batches[0])) for _ in range(1 + (loading == "overlapped"))]
        self._steps = steps
        self._stream = torch.cuda.Stream(batches[0][0].device) if loading == "overlapped" else None
        self.batch = self._places[0]

    def _on_host(self, tensor: Tensor) -> Tensor:
        copied = torch.empty_like(tensor, device="cpu", pin_memory=self._pinned)
        return copied.copy_(tensor)

    def load(self, index: int) -> None:
        """Have the batch of step ``index`` on the device before what the current stream does next."""
        self.batch = self._places[index % len(self._places)]
        if self._stream is None:
            self._copy(index)
            return
        current = torch.cuda.current_stream(self._stream.device)
        if index == 0:
            self._ahead(0, current)
        current.wait_stream(self._stream)
        if index + 1 < self._steps:
            self._ahead(index + 1, current)

    def _ahead(self, index: int, current: torch.cuda.Stream) -> None:
        """Copy on the second stream, once the step that had this place before is done."""
        assert self._stream is not None
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            self._copy(index)

    def _copy(self, index: int) -> None:
        places, batch = self._places[index % len(self._places)], self._host[index % len(self._host)]
        for to, tensor in zip(places, batch, strict=True):
            to.copy_(tensor, non_blocking=self._pinned)
