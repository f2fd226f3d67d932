"""The command line. ``python -m runner overrides`` runs a grid; the first word may name a sub-command instead."""

import errno
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from io import TextIOWrapper

from .. import __version__

HELP = ("--help", "-h")
LONGEST = 2000  # characters of a message, which may quote a whole value
# What ``python -m runner`` prints alone, and ``--help`` first: what it answers, and ten things to type.
FIRST_WORDS = """\
Which implementation of this GPU operation is fastest, how sure are we, and why?

  python -m runner workload=softmax workload.cols=1000,4096 -m          sweep a size
  python -m runner workload=gelu impl=naive,torch,compiled,triton -m    compare implementations
  python -m runner workload=gelu impl=torch,file impl.path=my.py:f -m   your own function beside torch
  python -m runner workload=rms_norm.py impl=reference,compiled -m      your own operation, in one file
  python -m runner workload=mlp impl=compiled -m                        the workload's default sweep
  python -m runner workload=mlp 'measure=[benchmark,profile]'           one case, and why is it slow?
  python -m runner plan workload=gelu impl=naive,torch -m               what would run, and how long will it take?
  python -m runner resume=last                                          go on after an interruption
  python -m runner report html                                          the newest run as a page; show: its table
  python -m runner --help workload=mlp impl=compiled                    all commands, options and their fields
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 all well, 1 a case failed, 2 bad input, 130 interrupted.

    Raises SystemExit with the code if argparse or Hydra has answered, or after the report of an interrupted run.
    """
    words = [*(sys.argv[1:] if argv is None else argv)]  # ``list`` is a sub-command here, once it has been imported
    try:
        return _main(words)
    except BaseException as error:  # before the first case, or a second Ctrl-C: the first one still prints the table
        if not _is_interrupt(error):
            raise
        name = words[0] if words else "help"
        has_cases = name == "run" or not name.isidentifier()  # other sub-commands have none
        kept = "; every case that was done is in the journal" if has_cases else ""
        print(f"runner: stopped{kept}", file=sys.stderr)
        return 128 + signal.SIGINT


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether ``error`` is KeyboardInterrupt or was raised from it, as some libraries do."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _main(words: Sequence[str]) -> int:
    """Run a command. Slow imports are in here, so that an interrupt during them is reported too."""
    if "--version" in words:  # Hydra would print its own
        print(f"kernel-runner {__version__}")
        return 0
    if not words:
        print(FIRST_WORDS, end="")
        return 0
    if sys.platform == "win32":
        print("runner: Windows is not supported; run it on Linux, or on Windows inside WSL2", file=sys.stderr)
        return 2
    if find_spec("hydra") is None:
        print("runner: the command needs Hydra and more; pip install 'kernel-runner[cli]'", file=sys.stderr)
        return 2
    from ..execute import CannotStart
    from ..records.bad_input import BadInput
    from ..records.options import has_option
    from ..records.plain_text import SIGNS
    from ..records.untrusted import visible

    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - a shell has closed it: >&-
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors=SIGNS)  # the encoding of a terminal may lack the ★
    name = "run"
    if words and "=" not in words[0] and has_option("cli", words[0]):
        name, *words = words
    if name == "run" and any(word in HELP or word.startswith("query=") for word in words):
        name, words = "help", [word for word in words if word not in HELP]
    command = import_module(f".{name}", __package__)
    try:
        for word in words:
            if word != word.encode(errors="ignore").decode():  # no file format takes such bytes
                raise BadInput(f"{word!a} is not UTF-8; rename the file that it names, or set a UTF-8 locale")
        try:
            code: int = command.main(words)
        finally:
            sys.stdout.flush()  # here, where a closed pipe is not an error
    except (BadInput, CannotStart) as error:
        text = visible(str(error))
        print("runner:", text if len(text) <= LONGEST else f"{text[:LONGEST]} [...]", file=sys.stderr)
        return 2 if isinstance(error, BadInput) else 1
    except BrokenPipeError:  # ``head`` has read enough; Python must not try to write again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(f"runner: cannot write the output: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code
