"""A CUDA graph of the whole call of another implementation, which launches all of its kernels at once."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from ..kernels.unsupported import Unsupported
from ..timing.call import Call
from . import FirstCalls, Function, Wrapper

WARM_UP = 3  # calls before the capture: torch.compile compiles, libraries make handles, autotuners choose


@dataclass(frozen=True)
class CudaGraph(Wrapper):
    """The call of ``of``, captured when it is first called, and launched as one graph afterwards."""

    EXCLUDED = ("cudagraph",)

    def load(self, op: str) -> Function:
        """Return the function whose call is to be captured."""
        return self.inner.load(op)

    def kept_on_disk(self, op: str) -> bool:
        """Return whether the wrapped implementation keeps compiled code on disk."""
        return self.inner.kept_on_disk(op)

    def first_calls(self, op: str, device: str) -> AbstractContextManager[FirstCalls]:
        """Return the context of the wrapped implementation."""
        return self.inner.first_calls(op, device)

    def wrap_call(self, call: Call, device: str) -> Call:
        """Return ``call`` as a graph: forward, backward and update of all its steps. Raises Unsupported on a CPU."""
        if device == "cpu":
            raise Unsupported("a CUDA graph needs an NVIDIA GPU; run with device=cuda on a machine that has one")
        inner = self.inner.wrap_call(call, device)
        return replace(inner, run=as_graph(inner), captured=True)


def as_graph(call: Call) -> Callable[[], Any]:
    """Return a function that launches a graph of ``call`` on the current stream. It is captured at the first call.

    The function returns the graph's own outputs, which the next launch overwrites. Raises Unsupported if there is no
    graph. One cannot be launched on a stream that is being captured, as it is while the call is timed. There the call
    itself is made, and the graph that is being captured gets the same kernels.
    """
    import torch

    from ..timing.capture import CaptureError, captured

    kept: list[Any] = []  # the graph and its outputs

    def warm_up() -> None:
        for _ in range(WARM_UP):
            call.run()
        call.restore()  # what the calls have changed

    def launch() -> Any:
        if torch.cuda.is_current_stream_capturing():
            return call.run()
        if not kept:
            try:
                kept.extend(captured(call.run, warm_up))
            except CaptureError as error:
                if isinstance(error.__cause__, torch.OutOfMemoryError):
                    raise error.__cause__ from None
                raise Unsupported(f"no CUDA graph can hold this call: {error}") from error
        graph, outputs = kept
        graph.replay()
        return outputs

    return launch
