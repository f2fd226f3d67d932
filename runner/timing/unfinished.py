"""Find collectives on a CPU that a call starts and does not wait for, so that its time does not include them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from . import clock as time
from . import ranks
from .call import Call

LATE_S = 0.03  # a rank that begins so late holds up the collectives of all others


def unfinished(call: Call) -> str:
    """Name the operators of torch.distributed that still run on a rank when ``call`` has returned; "" for none.

    Each of two ranks begins late once. A call that waits returns late then too; one that does not, before the end.
    Sends are left out, since their receivers wait. Functional collectives have no work to be asked.
    """
    group, names = ranks.current, set[str]()
    for late in (0, group.count - 1) if group.count > 1 else ():
        call.restore()
        group.meet()
        if group.rank == late:
            time.sleep(LATE_S)
        with _Works() as seen:
            call.run()
        open_works = [(name, work) for name, work in seen.works if not _has_ended(work)]
        names |= {name for name, work in open_works if work.wait() and work.is_completed()}  # some never are completed
    call.restore()
    going = ", ".join(sorted(names))
    return group.first(f"it returns before {going} of torch.distributed has ended: wait for the work" if going else "")


def _has_ended(work: dist.Work) -> bool:
    """Return whether ``work`` is done. Gloo completes its future, for which DistributedDataParallel waits, first."""
    if work.is_completed():
        return True
    with suppress(RuntimeError):  # a receive has no future
        return bool(work.get_future().done())
    return False


class _Works(TorchDispatchMode):  # type: ignore[misc]  # torch gives it no type
    """Keeps the work of each collective and receive inside."""

    def __init__(self) -> None:
        super().__init__()
        self.works: list[tuple[str, Any]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: else torch imports torch._dynamo with the first operator, which takes seconds."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.namespace == "c10d" and (name := func._schema.name.removeprefix("c10d::").strip("_")) != "send":
            self.works.append((name, dist.Work.unbox(out[-1] if isinstance(out, tuple) else out)))
        return out
