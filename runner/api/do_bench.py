"""``do_bench``: this project's timer in place of Triton's."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor

from ..subject.in_process import DEFAULTS, on, preserved_state
from ..timing.arguments import referenced_tensors
from ..timing.call import Call
from ..timing.procedure import take
from ..timing.settings import TimingSettings


def do_bench(
    fn: Callable[[], Any],
    warmup: float = 25,
    rep: float = 100,
    grad_to_none: Sequence[Tensor] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
) -> Any:
    """Time ``fn`` as ``triton.testing.do_bench`` does, by this project's instruments; for ``@triton.autotune`` too.

    Args:
        fn: called without arguments. It is timed on the GPU, or on the CPU if there is none, or if all tensors that it
            names are there.
        warmup: minimum duration of the warm-up, in ms.
        rep: maximum duration of the samples, in ms. They end earlier once the 95 % interval is within 0.5 %.
        grad_to_none: tensors whose ``.grad`` is set to None before each call, outside of the time.
        quantiles: return these quantiles of the times, between 0 and 1, instead of ``return_mode``.
        return_mode: "mean", "median", "min", "max", or "all" for a list of all times in their order.

    Returns:
        Milliseconds: a number, or a list of them for "all" and for several ``quantiles``.

    Raises:
        ValueError: there is no such ``return_mode``, or ``warmup`` or ``rep`` is below 0.

    """
    modes: dict[str, Callable[[list[float]], Any]] = {"mean": fmean, "median": median, "min": min, "max": max}
    modes["all"] = list
    if return_mode not in modes:
        raise ValueError(f"return_mode={return_mode!r}: give one of {', '.join(modes)}")
    if not (warmup >= 0 and rep >= 0):
        raise ValueError(f"warmup={warmup!r}, rep={rep!r}: give milliseconds, at least 0")
    named = [*referenced_tensors(fn)] if torch.cuda.is_available() else [torch.empty(0)]
    on_gpu = not named or any(one.is_cuda for one in named)
    kind = "cuda" if on_gpu else "cpu"
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    settings = replace(DEFAULTS, warmup_s=warmup / 1e3, max_s=rep / 1e3)

    def drop() -> None:
        for tensor in grad_to_none or ():
            tensor.grad = None

    with preserved_state(), on(device):
        fn()
        call = Call(fn, drop if grad_to_none else None)
        times = [max(0.0, us / 1e3) for us in _samples_us(call, settings, kind)]
    if quantiles is None:
        return modes[return_mode](times)
    found = torch.tensor(times, dtype=torch.float64).quantile(torch.tensor(quantiles, dtype=torch.float64)).tolist()
    return found[0] if len(found) == 1 else found


def _samples_us(call: Call, settings: TimingSettings, kind: str) -> Sequence[float]:
    if kind == "cpu":
        from ..timing.cpu import PerfCounter

        return take(PerfCounter(call.run, call.reset), settings).samples_us
    from ..timing import calibration, cuda, instruments

    torch.cuda.synchronize()
    cuda.warm_up(False)
    instrument, _ = instruments.choose(call, settings)
    return calibration.undisturbed(lambda: take(instrument, settings), [instrument])[0].samples_us
