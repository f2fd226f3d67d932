"""The console on stdout."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

FILE_WIDTH = 400  # characters: a pipe or a file has room for the whole table


def console(file: IO[str] | None = None) -> Console:
    """Return the console on stdout, or on ``file``.

    It raises BrokenPipeError, where rich would end the process with exit code 1, and leaves ``:ok:`` as it is.
    """
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    out = Piped(file=file, emoji=False)
    return out if out.is_terminal else Piped(file=file, width=FILE_WIDTH, emoji=False)


def say(out: Console, text: Text | str) -> None:
    """Print ``text`` as it is: without markup, highlights and line breaks of rich."""
    out.print(text, markup=False, highlight=False, soft_wrap=True)
