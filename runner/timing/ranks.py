"""Ranks: the processes that run one case together, and what they must agree on.

A collective hangs unless all ranks make the same calls in the same order. So every decision about the number of calls
follows from values that are equal on all ranks: samples are matched, and the clock that decides is that of rank 0.
A process alone agrees with itself, at no cost.
"""

import json
import os
import socket
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist

from ..device.exchange import Exchange, MeetingPlace
from ..device.processes import cores
from ..records.case import Scalar
from ..records.replaced import replaced
from . import clock as time
from .verdict import GRAVITY

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # set by torchrun
HERE = "127.0.0.1"


class RanksDiffer(RuntimeError):
    """Raised if ranks are at different places, so that the next collective would hang."""


class Ranks:
    """A process that runs its cases with others which meet at ``path``; alone without a path.

    ``aligned``: they have GPUs, which can wait for each other.
    """

    def __init__(self, rank: int = 0, count: int = 1, path: str = "", *, aligned: bool = False) -> None:
        self.rank, self.count = rank, count
        self._exchange = Exchange(path, rank, count) if path else None
        self._flag = torch.zeros(1, dtype=torch.int32, device="cuda") if aligned else None
        self._place: MeetingPlace | None = None  # where other processes meet

    def gather(self, value: Any, what: str = "value") -> list[Any]:
        """Return the ``value`` of every rank, as JSON keeps it. Raises RanksDiffer if another gives no ``what``."""
        if self._exchange is None:
            return [value]
        given = [json.loads(data) for data in self._exchange.gather(json.dumps([what, value]).encode())]
        for rank, (other, _) in enumerate(given):
            if other != what:
                raise RanksDiffer(f"rank {rank} gives a {other} where rank {self.rank} gives a {what}")
        return [value for _, value in given]

    def meet(self) -> None:
        """Wait until all ranks are here."""
        if self._exchange:
            self._exchange.meet()

    def leave(self) -> None:
        """Let ranks that wait for this one raise HasLeft."""
        if self._exchange:
            self._exchange.leave()

    def align(self) -> None:
        """Let the GPUs wait for each other on their current streams. On a CPU, ``meet`` does it."""
        if self._flag is not None:
            dist.all_reduce(self._flag)

    def another_place(self) -> tuple[str, int, int] | None:
        """Return the meeting place of new processes of the same ranks, as ``join`` takes it; None without ranks."""
        if self._exchange is None:
            return None
        self._place = None if self.rank else MeetingPlace(self.count)
        return self.agreed(self._place and self._place.path), self.rank, self.count

    def agreed(self, value: Any) -> Any:
        """Return the value of rank 0."""
        return self.gather(value)[0]

    def now(self) -> float:
        """Return the clock of rank 0 in seconds, which decides."""
        return float(self.gather(time.perf_counter(), "clock")[0])

    def any(self, flag: object) -> bool:
        """Return whether ``flag`` is true on any rank."""
        return any(self.gather(bool(flag), "condition"))

    def first(self, text: str) -> str:
        """Return the first text that is not empty, with its rank unless all ranks say the same; "" if there is none."""
        texts = self.gather(text, "reason")
        rank = next((rank for rank, text in enumerate(texts) if text), 0)
        return str(texts[rank]) if len({*texts}) == 1 else f"rank {rank}: {texts[rank]}"

    def slowest(self, values: Sequence[float]) -> list[float]:
        """Return the largest of the n-th values of all ranks, for each n."""
        return [max(each) for each in zip(*self.gather(list(values), "samples"), strict=True)]


current = Ranks()  # those of this process
group: object = None  # the group of torch.distributed that ``join`` has made


@contextmanager
def alone() -> Iterator[None]:
    """Measure what ranks know of their own GPUs, without the others: they may know it already."""
    with _being(Ranks()):
        yield


def _being(ranks: Ranks) -> AbstractContextManager[None]:
    return replaced(sys.modules[__name__], "current", ranks)


@contextmanager
def all_or_none(kind: type[Exception]) -> Iterator[None]:
    """Raise ``kind`` on all ranks, with the same message, if one raises it inside."""
    try:
        yield
    except kind as error:
        raise kind(current.first(str(error))) from error.__cause__
    if reason := current.first(""):
        raise kind(reason)


def join(path: str, rank: int, count: int, device: str) -> None:
    """Make this process a rank of ``count`` on "cpu" or a GPU: its device, torch.distributed, torchrun's variables.

    It waits for the other ranks at ``path``, the path of a ``MeetingPlace``.
    """
    global current, group
    on_gpu = device != "cpu" and torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(rank)
    ranks = Ranks(rank, count, path, aligned=on_gpu)
    ranks.meet()
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(variable, loopback)
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
    store = dist.TCPStore(HERE, 0, is_master=True, wait_for_workers=False) if rank == 0 else None
    port = ranks.agreed(store.port if store else 0)
    store = store or dist.TCPStore(HERE, port, is_master=False)
    values = (rank, count, rank, count, HERE, port)
    os.environ |= {name: str(value) for name, value in zip(VARIABLES, values, strict=True)}
    if on_gpu:
        own = torch.device("cuda", rank)
        dist.init_process_group("nccl", store=store, rank=rank, world_size=count, device_id=own)
        ranks.align()  # NCCL connects the ranks
    else:
        torch.set_num_threads(max(1, min(torch.get_num_threads(), cores() // count)))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=count)
    current, group = ranks, dist.group.WORLD


@contextmanager
def of_program() -> Iterator[None]:
    """Be a rank of the program's default group of torch.distributed. All of its ranks enter this together.

    Raises RuntimeError if there is no group, or if it reaches over several machines.
    """
    if not dist.is_initialized():
        raise RuntimeError("torch.distributed has no group here: start the program by torchrun, or give ranks=False")
    rank, count = dist.get_rank(), dist.get_world_size()
    if int(os.environ.get("LOCAL_WORLD_SIZE", count)) != count:
        raise RuntimeError("ranks of several machines cannot be timed together: start all of them on one machine")
    place = MeetingPlace(count) if rank == 0 else None
    path = [place.path if place else ""]
    dist.broadcast_object_list(path)
    ranks = Ranks(rank, count, path[0], aligned=dist.get_backend() == "nccl")
    with _being(ranks):
        try:
            ranks.meet()
            yield
        except BaseException:
            ranks.leave()
            raise


def columns(spreads_us: Sequence[float]) -> dict[str, Scalar]:
    """Return the columns of a call of several ranks, whose samples differ by ``spreads_us`` between ranks."""
    return {"rank_spread_us": statistics.median(spreads_us)} if spreads_us else {}


def gravest(own: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the columns of the rank with the gravest verdict, which its reason names: the slowest sets all times."""
    columns: list[dict[str, Scalar]] = current.gather(own, "verdict")
    rank = min(range(len(columns)), key=lambda rank: GRAVITY.index(str(columns[rank]["verdict"])))
    return columns[rank] | ({"verdict_reason": f"rank {rank}: {columns[rank]['verdict_reason']}"} if rank else {})
