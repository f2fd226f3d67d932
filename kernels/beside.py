"""Work that nothing waits for until the end, on a stream of its own.

The last tiles of a kernel seldom are as many as the GPU has processors: 512 tiles on 132 of them are four rounds, and
in the last one 16 are idle, for an eighth of the time. A second kernel that does not depend on the first begins there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

# Pieces of work that may be under way, whose operands hold memory. An MLP of 8 layers of 4096 on an H200, in bfloat16:
# 4472 us with 1 of them, 4427 with 2, 4406 with 8, and 4536 without a second stream.
BEHIND = 8


class Beside:
    """What ``run`` launches runs beside what the current stream is given next, until ``join``.

    ``join`` must follow even where something is raised in between: until then the other stream writes to memory that
    would be given to others.

    Safe while a CUDA graph is captured. Where ``worth`` is false, which is for work so short that the host's part in
    this takes longer, and where there is no GPU or torch.compile is tracing, all is on the current stream.
    """

    def __init__(self, like: Tensor, *, worth: bool) -> None:
        self.apart = worth and like.is_cuda and not torch.compiler.is_compiling()
        self._main = torch.cuda.current_stream(like.device) if self.apart else None
        self._side = None if self._main is None else _side(like.device, self._main.cuda_stream)
        self._under_way: deque[tuple[torch.cuda.Event, tuple[Tensor, ...]]] = deque()

    def run(self, work: Callable[[], object], *operands: Tensor) -> None:
        """Launch ``work``, after all that the current stream has been given. Its results are tensors made before.

        ``operands`` are kept as long as it reads them; what is freed on one stream is not safe from another.
        """
        if self._main is None or self._side is None:
            work()
            return
        self._side.wait_stream(self._main)
        with torch.cuda.stream(self._side):
            work()
        self._under_way.append((self._side.record_event(), operands))
        if len(self._under_way) > BEHIND:
            done, _ = self._under_way.popleft()
            self._main.wait_event(done)

    def join(self) -> None:
        """What the current stream is given from here on comes after all of it."""
        if self._main is not None and self._side is not None:
            self._main.wait_stream(self._side)
        self._under_way.clear()


@cache
def _side(device: torch.device, beside: int) -> torch.cuda.Stream:
    """One for each stream: what is captured with one of them must not meet what another thread launches."""
    return torch.cuda.Stream(device)
