"""Capturing a call in a CUDA graph, and what is left to do when that fails."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
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


KERNEL, MEMCPY, MEMSET, HOST, CHILD = 0, 1, 2, 3, 4  # CUgraphNodeType
WORK = (KERNEL, MEMCPY, MEMSET)


@dataclass(frozen=True)
class Contents:
    """The nodes of one captured sample {preparation, timestamp, call, timestamp}."""

    kinds: Mapping[tuple[int, int], int]  # of the call: (type, function) → how many; children's nodes among them
    outside: (
        int  # nodes that neither precede the first timestamp nor lie between the two; all, if it ends with no timestamp
    )
    hosts: int  # host functions, anywhere

    @property
    def work(self) -> int:
        """Kernels, copies and fills of the call."""
        return sum(count for (kind, _), count in self.kinds.items() if kind in WORK)


def contents(graph: int) -> Contents | None:
    """What ``graph``, a CUgraph, holds; None where the driver does not answer."""
    try:
        nodes, edges = _nodes(graph), _edges(graph)
    except (OSError, AttributeError, _Refused):
        return None
    after: dict[int, list[int]] = {node: [] for node in nodes}
    before: dict[int, list[int]] = {node: [] for node in nodes}
    for start, end in edges:
        after[start].append(end)
        before[end].append(start)
    what = {node: _what(node) for node in nodes}  # asked once: a call of hundreds of kernels is captured many times
    last = [node for node in nodes if not after[node] and what[node][0] == KERNEL]
    timestamps = [node for end in last[:1] for node in nodes if what[node] == what[end]]
    hosts = sum(kind == HOST for node in nodes for kind, _ in _unfolded(node, what[node]))
    if len(last) != 1 or len(timestamps) != 2:
        return Contents(Counter(), outside=len(nodes), hosts=hosts)
    (end,) = last
    (begin,) = set(timestamps) - {end}
    preparing = _reached(begin, before)
    call = (_reached(begin, after) & _reached(end, before)) - {begin, end}
    rest = set(nodes) - preparing - call - {begin, end}
    return Contents(
        kinds=Counter(each for node in call for each in _unfolded(node, what[node])),
        outside=len(rest),
        hosts=hosts,
    )


def _reached(start: int, along: Mapping[int, list[int]]) -> set[int]:
    """Every node on a way from ``start``, itself included."""
    seen, waiting = {start}, [start]
    while waiting:
        for node in along[waiting.pop()]:
            if node not in seen:
                seen.add(node)
                waiting.append(node)
    return seen


def _unfolded(node: int, what: tuple[int, int]) -> Iterable[tuple[int, int]]:
    """Type and function of ``node``, which are ``what``, or of the nodes of the graph that it launches."""
    if what[0] != CHILD:
        return [what]
    child = ctypes.c_void_p()
    _ask("cuGraphChildGraphNodeGetGraph", node, ctypes.byref(child))
    return [each for inner in _nodes(child.value or 0) for each in _unfolded(inner, _what(inner))]


class _KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("func", ctypes.c_void_p),
        ("grid_and_block", ctypes.c_uint * 6),
        ("shared_bytes", ctypes.c_uint),
        ("arguments", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kern", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


def _what(node: int) -> tuple[int, int]:
    """Type, and for a kernel its function."""
    kind = ctypes.c_int()
    _ask("cuGraphNodeGetType", node, ctypes.byref(kind))
    if kind.value != KERNEL:
        return kind.value, 0
    params = _KernelNode()
    _ask("cuGraphKernelNodeGetParams_v2", node, ctypes.byref(params))
    return kind.value, params.func or params.kern or 0


def _nodes(graph: int) -> list[int]:
    count = ctypes.c_size_t()
    _ask("cuGraphGetNodes", graph, None, ctypes.byref(count))
    nodes = (ctypes.c_void_p * count.value)()
    _ask("cuGraphGetNodes", graph, nodes, ctypes.byref(count))
    return [node or 0 for node in nodes]


def _edges(graph: int) -> list[tuple[int, int]]:
    """By the second form of the question: the first refuses graphs with programmatic launches."""
    count = ctypes.c_size_t()
    _ask("cuGraphGetEdges_v2", graph, None, None, None, ctypes.byref(count))
    starts, ends = (ctypes.c_void_p * count.value)(), (ctypes.c_void_p * count.value)()
    data = (ctypes.c_char * (8 * count.value))()
    _ask("cuGraphGetEdges_v2", graph, starts, ends, data, ctypes.byref(count))
    return [(start or 0, end or 0) for start, end in zip(starts, ends, strict=True)]


class _Refused(Exception):
    """The driver says no."""


def _ask(function: str, handle: int, *arguments: Any) -> None:
    code = getattr(_driver(), function)(ctypes.c_void_p(handle), *arguments)
    if code:
        raise _Refused(f"{function}: CUDA error {code}")


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
