"""A case under an aid of ``runner.experiment.debug``: what is done around it in its worker."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from runner.experiment import debug
from runner.kernels.unsupported import Unsupported

FORWARD = "Traceback of forward call"  # in autograd's warning of what it then raises


@contextmanager
def aided(aid: str | None, device: str) -> Iterator[None]:
    """Meanwhile a case on ``device`` ("cpu" or "cuda") runs under ``aid``. Raises Unsupported where it is of no use."""
    if why := debug.useless(aid, device):
        raise Unsupported(f"debug={why}")
    if aid != "anomaly":
        yield
        return
    with _told() as told, torch.autograd.set_detect_anomaly(True):
        try:
            yield
        except Exception as error:
            for text in told:
                error.add_note(text)  # the row's detail has it: where the operation was called in the forward
            raise


@contextmanager
def _told() -> Iterator[list[str]]:
    """Autograd's warnings with a traceback; all are shown as ever."""
    told: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        show = warnings.showwarning

        def keep(message: Warning | str, *where: object) -> None:
            if FORWARD in str(message):
                told.append(str(message))
            show(message, *where)  # type: ignore[arg-type]  # just as it came

        warnings.showwarning = keep  # type: ignore[assignment]  # catch_warnings puts it back
        yield told
