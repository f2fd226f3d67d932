"""The user's mistakes: one sentence that says what was asked, what is allowed and what to type."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Container, Iterable
from typing import NoReturn


class BadInput(Exception):
    """Nothing has been started; the message is the whole answer. Takes one argument, so that it survives pickling."""


class Parser(argparse.ArgumentParser):
    """Of the words of a sub-command; tells of a mistake as everything else here does."""

    def error(self, message: str) -> NoReturn:
        """Raise BadInput."""
        raise BadInput(message)


NEAR, VERY_NEAR = 0.5, 0.75  # of the letters of both, those in common
ALSO = {"gpu": "cuda", "half": "float16", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}


def choices(asked: str, allowed: Iterable[str], rare: Container[str] = ()) -> str:
    """``did you mean mlp? One of: ...``: the nearest of ``allowed``, then all of them.

    What is seldom meant, ``rare``, has to be very near.
    """
    names = sorted(set(allowed))
    near = difflib.get_close_matches(asked, [name for name in names if name not in rare], 1, NEAR)
    near = difflib.get_close_matches(asked, names, 1, VERY_NEAR) or near
    near = [ALSO[asked]] if ALSO.get(asked) in names else near
    return (f"did you mean {near[0]}? One of: " if near else "one of: ") + ", ".join(names)
