"""One CUDA graph of the whole call of another implementation, for a caller who would wait for launches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from runner.experiment import schema
from runner.experiment.schema import CONF, BadInput, choices
from runner.implementations import Implementation, Watch, find, names
from runner.implementations.file import File
from runner.kernels.unsupported import Unsupported

if TYPE_CHECKING:
    from torch import Tensor

    from runner.timing import Call

DESCRIBED = CONF / "impl"
WARM_UP = 3  # calls before the capture: torch.compile compiles, libraries make handles, autotuners choose


@dataclass(frozen=True)
class CudaGraph(Implementation):
    """What ``of`` does in a call, captured when it is first called, and launched as one graph from then on."""

    of: str  # a name, or file.py:function

    def __post_init__(self) -> None:
        allowed = sorted({*names(), *(path.stem for path in DESCRIBED.glob("*.yaml"))} - {"cudagraph", "file"})
        if ":" not in self.of and self.of not in allowed:
            raise ValueError(f"of: no implementation {self.of!r} to capture; {choices(self.of, allowed)}")
        try:
            self._inner()
        except (BadInput, ValueError) as error:
            raise ValueError(f"of: {str(error).removeprefix('path: ')}") from None

    def _inner(self) -> Implementation:
        """What is captured, with the fields that its YAML has."""
        if ":" in self.of:
            return File(self.of)
        path = DESCRIBED / f"{self.of}.yaml"
        fields = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return schema.build(find(self.of), {name: fields[name] for name in fields if name != "name"}, self.of)

    def missing(self, op: str) -> str:
        """Empty if what is to be captured exists."""
        return self._inner().missing(op)

    def sources(self, op: str) -> list[Path]:
        """Source files of this wrapper and of the implementation to capture."""
        return [*super().sources(op), *self._inner().sources(op)]

    def load(self, op: str) -> Callable[..., Tensor]:
        """The function whose call is to be captured."""
        return self._inner().load(op)

    def kept_on_disk(self, op: str) -> bool:
        """Whether the implementation to capture keeps compiled code on disk."""
        return self._inner().kept_on_disk(op)

    def untimed(self, op: str) -> str:
        """Whether the implementation to capture keeps compiled code on disk."""
        return self._inner().untimed(op)

    def watching(self, op: str, device: str) -> AbstractContextManager[Watch]:
        """What is to be captured notices of itself."""
        return self._inner().watching(op, device)

    def around(self, call: Call, device: str) -> Call:
        """``call`` as a graph, forward, backward and update of all its steps. Raises Unsupported on a CPU."""
        if device == "cpu":
            raise Unsupported("a CUDA graph needs an NVIDIA GPU; run with device=cuda on a machine that has one")
        inner = self._inner().around(call, device)
        return replace(inner, run=Captured(inner))


class Captured:
    """``call`` as a function: a graph of it, launched on whatever stream is current.

    Where that stream is itself being captured, as by what times the call, neither torch nor CUDA lets a graph be
    launched. So the call is made as it is, and the graph that is being captured holds the same kernels.

    Raises:
        Unsupported: no graph can hold the call.

    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._graph: Any = None
        self._outputs: tuple[Tensor, ...] = ()

    def __call__(self) -> tuple[Tensor, ...]:
        """What the call gives: the graph's own tensors, which the next launch overwrites."""
        import torch

        if torch.cuda.is_current_stream_capturing():
            return self._call.run()
        if self._graph is None:
            self._capture()
        self._graph.replay()
        return self._outputs

    def _capture(self) -> None:
        """Warm up and capture; what the call changes is put back, as far as it has a reset for that."""
        import torch

        from runner.timing.capture import CaptureError, capture_stream, capturing

        graph, stream = torch.cuda.CUDAGraph(), capture_stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # backward too remembers the stream it was first called on
            for _ in range(WARM_UP):
                self._call.run()
            self._call.restore()
        torch.cuda.synchronize()
        try:
            with capturing(graph):
                self._outputs = self._call.run()
        except CaptureError as error:
            if isinstance(error.__cause__, torch.OutOfMemoryError):
                raise error.__cause__ from None
            raise Unsupported(f"no CUDA graph can hold this call: {error}") from error
        self._graph = graph
