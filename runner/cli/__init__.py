"""The command line. ``python -m runner [overrides]`` runs a grid; the first word may name a sub-command instead."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper

from runner import __version__

HELP = ("--help", "-h")


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 all well, 1 a case failed, 2 bad input with nothing started, 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _main(words)
    except BaseException as error:  # before the first case, or the second one: of the first the table still came
        if not _is_interrupt(error):
            raise
        journaled = not words or not words[0].isidentifier()  # sub-commands have no cases
        kept = "; every case that was done is in the journal" if journaled else ""
        print(f"runner: stopped{kept}", file=sys.stderr)
        return 128 + signal.SIGINT


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether ``error`` is one, or what some library has made of it."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _main(words: Sequence[str]) -> int:
    """The same, but for KeyboardInterrupt. It imports what takes time, so that an interrupt of that is told too."""
    if "--version" in words:  # Hydra would tell its own
        print(f"kernel-runner {__version__}")
        return 0
    from runner.execute import CannotStart
    from runner.experiment import schema
    from runner.experiment.schema import BadInput

    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a ★ that a terminal's encoding lacks must not cost the table
    name = words[0] if words and "=" not in words[0] and schema.exists("runner.cli", words[0]) else "run"
    if name == "run" and any(word in HELP or word.startswith("query=") for word in words):
        name, words = "help", ["help", *(word for word in words if word not in HELP)]
    command = import_module(f"runner.cli.{name}")
    try:
        _check_letters(words)
        code: int = command.main(words if name == "run" else words[1:])
        sys.stdout.flush()  # here, where it is no error that the reader has gone
    except BadInput as error:
        print(f"runner: {error}", file=sys.stderr)
        return 2
    except CannotStart as error:  # rows that there are by then are in the journal
        print(f"runner: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader, `head` say, has seen enough; Python must not try again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return code


def _check_letters(words: Sequence[str]) -> None:
    """Raise BadInput at bytes that are no UTF-8, which Python passes on as halves of characters: no file takes them."""
    from runner.experiment.schema import BadInput

    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise BadInput(f"{word!a} is not UTF-8; rename the file that it names, or set a UTF-8 locale") from None
