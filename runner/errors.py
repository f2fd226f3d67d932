"""The user's mistakes: one sentence that says what was asked, what is allowed and what to type."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable
from typing import NoReturn


class BadInput(Exception):
    """Nothing has been started; the message is the whole answer. Takes one argument, so that it survives pickling."""


class Parser(argparse.ArgumentParser):
    """Of the words of a sub-command; tells of a mistake as everything else here does."""

    def error(self, message: str) -> NoReturn:
        """Raise BadInput."""
        raise BadInput(message)


def choices(asked: str, allowed: Iterable[str]) -> str:
    """``did you mean mlp? One of: ...``: the nearest of ``allowed``, then all of them."""
    names = sorted(set(allowed))
    near = difflib.get_close_matches(asked, names, 1, 0.5)
    return (f"did you mean {near[0]}? One of: " if near else "one of: ") + ", ".join(names)
