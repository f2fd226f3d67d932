"""Capture a call in a CUDA graph, and inspect the graph."""

import ctypes
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from threading import active_count
from typing import Any, Generic, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ..records.grouping import reachable

P = ParamSpec("P")
T = TypeVar("T")


class per_gpu(Generic[P, T]):  # noqa: N801  # a decorator, as functools.cache
    """Cache the results of a function by GPU and arguments.

    The function runs outside of the caller's inference, gradient and autocast modes, so that its tensors can be used in
    any mode.
    """

    def __init__(self, function: Callable[P, T]) -> None:
        @cache
        def kept(gpu: int | None, *args: P.args, **kwargs: P.kwargs) -> T:
            with plain_mode():
                return function(*args, **kwargs)

        self.__doc__, self._kept, self.cache_clear = function.__doc__, kept, kept.cache_clear

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the cached result, or call the function."""
        gpu = torch.cuda.current_device() if torch.cuda.is_available() else None
        return self._kept(gpu, *args, **kwargs)  # type: ignore[arg-type]  # they are hashable


@contextmanager
def plain_mode() -> Iterator[None]:
    """Leave inference mode, gradients and autocast inside this context."""
    with torch.inference_mode(False), torch.no_grad(), torch.autocast("cuda", enabled=False):
        yield


class CaptureError(Exception):
    """Raised if a CUDA graph cannot hold a call; the message is the reason in one line."""


def capture_stream() -> torch.cuda.Stream:
    """Return the stream of the current GPU on which this process captures everything.

    There is one, since cuBLAS keeps tens of MiB for each stream that it was used on, and torch does not reuse memory of
    one stream on another. While other threads run it is another one: they may use the legacy default stream.
    """
    return _stream(ordered=not has_threads())


def has_threads() -> bool:
    """Return whether other threads of this process may use CUDA: of Python, or the watchdog of torch.distributed."""
    return active_count() > 1 or _has_watchdog()


def _has_watchdog() -> bool:
    return bool(dist.is_available() and dist.is_initialized())


@per_gpu
def _stream(*, ordered: bool) -> torch.cuda.Stream:
    """Return a stream. If ``ordered``, it waits for the legacy default stream, and the reverse.

    A launch on the default stream while an ordered one is captured is an error. Without this order, such a kernel, as
    ``<<<grid, block>>>`` launches it, would run during the capture and be missing in the graph.
    """
    if not ordered:
        return torch.cuda.Stream()
    handle = ctypes.c_void_p()
    torch.cuda.check_error(torch.cuda.cudart().cudaStreamCreate(ctypes.addressof(handle)))
    return torch.cuda.ExternalStream(handle.value)


keep_cache = False  # True while a program of the user is measured: see runner.api.do_bench


@contextmanager
def _capture_keeping_cache(
    graph: torch.cuda.CUDAGraph, pool: Any, stream: torch.cuda.Stream, capture_error_mode: str
) -> Iterator[None]:
    """Capture like torch.cuda.graph, but keep the memory that torch caches, and do not collect garbage.

    Other threads may allocate and synchronize meanwhile.
    """
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graph.capture_begin(pool, capture_error_mode)
        try:
            yield
        finally:
            graph.capture_end()


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, *, pool: Any = None, ordered: bool = False) -> Iterator[None]:
    """Capture all launches inside into ``graph``, on ``capture_stream()``. They do not run.

    With ``ordered``, a launch on the legacy default stream ends the capture also while other threads run, which must
    not use that stream.

    Raises:
        CaptureError: the code synchronizes, copies to the host, or does something else that a graph cannot hold.

    """
    before = torch.cuda.current_stream()
    stream = _stream(ordered=True) if ordered else capture_stream()
    capture = _capture_keeping_cache if keep_cache else torch.cuda.graph
    try:
        alone = not (has_threads() if keep_cache else _has_watchdog())
        with capture(graph, pool, stream, capture_error_mode="global" if alone else "thread_local"):
            yield
    except Exception as error:
        torch.cuda.set_stream(before)  # torch leaves its own stream current if the end of a capture fails
        torch.cuda.synchronize()
        index = torch.cuda.current_device()
        generator = torch.cuda.default_generators[index]  # it still waits for the end of the capture
        fresh = torch.Generator(device=f"cuda:{index}").manual_seed(generator.initial_seed())
        generator.graphsafe_set_state(fresh.graphsafe_get_state())
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        if any(part in reason for part in ("legacy stream", "previous error during capture")):
            reason = "it launches what cannot be captured, such as a kernel on the legacy default stream"
        raise CaptureError(reason) from error


def captured(run: Callable[[], T], warm_up: Callable[[], object]) -> tuple[torch.cuda.CUDAGraph, T]:
    """Return a graph of ``run``, and what it returned, after ``warm_up`` on the same stream. Raises CaptureError."""
    graph, stream = torch.cuda.CUDAGraph(), capture_stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # a backward runs on the stream of its first call
        warm_up()
    torch.cuda.synchronize()
    with capturing(graph):
        result = run()
    return graph, result


def alias(tensor: Tensor) -> Tensor:
    """Return a tensor over the same memory that does not keep it allocated, as torch's CUDA graph trees do."""
    storage = tensor.untyped_storage()
    unowned = torch._C._construct_storage_from_data_pointer(storage.data_ptr(), tensor.device, storage.nbytes())
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(unowned, int(tensor.storage_offset()), tensor.shape, tensor.stride())


KERNEL, MEMCPY, MEMSET, HOST, CHILD, *EVENTS = range(8)  # CUgraphNodeType; the last do no work, as NCCL leaves them
Kind = tuple[int, int]  # type of a node and, for a kernel, its function


@dataclass(frozen=True)
class GraphContents:
    """Nodes of one captured sample: preparation, timestamp, call, timestamp."""

    kinds: Mapping[Kind, int]  # nodes of the call by kind, including nodes of child graphs
    outside: int  # nodes neither before nor between the timestamps; all nodes, if the last is not a timestamp
    hosts: int  # host functions, anywhere
    work: int  # kernels, copies and fills of the call


def contents(graph: int) -> GraphContents | None:
    """Return the contents of ``graph``, a CUgraph; None if the driver refuses."""
    try:
        return classify({node: _kinds(node) for node in _nodes(graph)}, _edges(graph))
    except (OSError, AttributeError):  # there is no driver, or it is older, or refuses
        return None


def classify(nodes: Mapping[int, Sequence[Kind]], edges: Iterable[tuple[int, int]]) -> GraphContents:
    """Return the contents of a graph. ``nodes`` has the kind of each node, or the kinds in its child graph."""
    after: dict[int, list[int]] = {node: [] for node in nodes}
    before: dict[int, list[int]] = {node: [] for node in nodes}
    for start, end in edges:
        after[start].append(end)
        before[end].append(start)
    last = [node for node, kinds in nodes.items() if not after[node] and [kind for kind, _ in kinds] == [KERNEL]]
    timestamps = [node for end in last[:1] for node, kinds in nodes.items() if kinds == nodes[end]]
    hosts = sum(kind == HOST for kinds in nodes.values() for kind, _ in kinds)
    if len(last) != 1 or len(timestamps) != 2:
        return GraphContents(Counter(), outside=len(nodes), hosts=hosts, work=0)
    (end,) = last
    (begin,) = set(timestamps) - {end}
    call = (reachable([begin], after.__getitem__) & reachable([end], before.__getitem__)) - {begin, end}
    working = {node for node, kinds in nodes.items() if any(kind not in EVENTS for kind, _ in kinds)}
    outside = working - reachable([begin], before.__getitem__) - call - {end}
    kinds = Counter(kind for node in call for kind in nodes[node])
    work = sum(count for (kind, _), count in kinds.items() if kind in (KERNEL, MEMCPY, MEMSET))
    return GraphContents(kinds, outside=len(outside), hosts=hosts, work=work)


def _kinds(node: int) -> list[Kind]:
    kind = ctypes.c_int()
    _ask("cuGraphNodeGetType", node, ctypes.byref(kind))
    if kind.value == CHILD:
        child = ctypes.c_void_p()
        _ask("cuGraphChildGraphNodeGetGraph", node, ctypes.byref(child))
        return [inner_kind for inner in _nodes(child.value or 0) for inner_kind in _kinds(inner)]
    if kind.value != KERNEL:
        return [(kind.value, 0)]
    params = (ctypes.c_uint64 * 9)()  # CUDA_KERNEL_NODE_PARAMS_v2: the first word is func, the eighth is kern
    _ask("cuGraphKernelNodeGetParams_v2", node, ctypes.byref(params))
    return [(KERNEL, params[0] or params[7])]


def _nodes(graph: int) -> list[int]:
    count = ctypes.c_size_t()
    _ask("cuGraphGetNodes", graph, None, ctypes.byref(count))
    nodes = (ctypes.c_void_p * count.value)()
    _ask("cuGraphGetNodes", graph, nodes, ctypes.byref(count))
    return [node or 0 for node in nodes]


def _edges(graph: int) -> list[tuple[int, int]]:
    """Return pairs of nodes. The first version of the driver's function refuses programmatic launches."""
    count = ctypes.c_size_t()
    _ask("cuGraphGetEdges_v2", graph, None, None, None, ctypes.byref(count))
    starts, ends = (ctypes.c_void_p * count.value)(), (ctypes.c_void_p * count.value)()
    data = (ctypes.c_char * (8 * count.value))()
    _ask("cuGraphGetEdges_v2", graph, starts, ends, data, ctypes.byref(count))
    return [(start or 0, end or 0) for start, end in zip(starts, ends, strict=True)]


def _ask(function: str, handle: int, *arguments: Any) -> None:
    code = getattr(_driver(), function)(ctypes.c_void_p(handle), *arguments)
    if code:
        raise OSError(f"{function}: CUDA error {code}")


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
