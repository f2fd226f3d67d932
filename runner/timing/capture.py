"""Capturing a call in a CUDA graph, and what is left to do when that fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch


class CaptureError(Exception):
    """A CUDA graph cannot hold a call; the message is the reason, in one line."""


@cache
def capture_stream() -> torch.cuda.Stream:
    """The stream on which this process captures.

    One for all: cuBLAS keeps tens of MiB for each stream that it has been on, and memory that torch got back on one
    stream it gives to no other.
    """
    return torch.cuda.Stream()


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, *, pool: Any = None) -> Iterator[None]:
    """What is launched within becomes ``graph``, and is not run. The stream for it is current meanwhile.

    Raises:
        CaptureError: it synchronises, copies to the host, or does whatever else a graph cannot hold.

    """
    before = torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=capture_stream()):
            yield
    except Exception as error:
        torch.cuda.set_stream(before)  # torch leaves its own current when it is the end of a capture that fails
        _forget()
        raise CaptureError(str(error).strip().partition("\n")[0] or type(error).__name__) from error


def _forget() -> None:
    """A capture that failed leaves torch's random generator waiting for its end; give it a state that does not."""
    torch.cuda.synchronize()
    for index, generator in enumerate(torch.cuda.default_generators):
        fresh = torch.Generator(device=f"cuda:{index}").manual_seed(generator.initial_seed())
        generator.graphsafe_set_state(fresh.graphsafe_get_state())
