"""External tools that examine a case: nsys, ncu, compute-sanitizer, cuobjdump. Find them, run them, and end them."""

import os
import re
import shutil
import signal
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from glob import glob
from pathlib import Path

from ..records.redaction import SECRET
from . import processes
from .files import text_in

PLACES = (  # where installers put tools that are not on PATH
    "/usr/local/cuda/bin/{name}",
    "/opt/nvidia/nsight-systems*/*/bin/{name}",  # and nsight-systems-cli
    "/opt/nvidia/nsight-compute/*/{name}",
)
GRACE_S = 60.0  # for a tool past its time limit to write its report
# A variable in the environment of a tool and of all processes that it starts: <pid of its owner>-<number of the run>.
MARK = "KERNEL_RUNNER_TOOL"


@dataclass(frozen=True)
class Ended:
    """The end of a tool's run. ``code`` is the exit code, below 0 for a signal; ``output`` includes the case's."""

    code: int
    output: str
    timed_out: bool = False


def find_tool(name: str, given: str | None = None) -> str | None:
    """Return the path of a tool: ``given``, on PATH, or the newest version in ``PLACES``; None if it is not there."""
    if given is not None:
        return shutil.which(os.path.expanduser(given))
    if path := shutil.which(name):
        return path
    for place in PLACES:
        if paths := glob(place.format(name=name)):
            return max(paths, key=lambda path: [int(number) for number in re.findall(r"\d+", path)])
    return None


def run_tool(
    command: Sequence[str], log: Path, limit_s: float, more: Mapping[str, str] | None = None, grace_s: float = GRACE_S
) -> Ended:
    """Run ``command`` with its output in ``log``. Its environment has the variables ``more``, but no keys or tokens.

    Tools store their environment in their reports. At ``limit_s`` the tool gets SIGTERM, and ``grace_s`` later it is
    killed, with all processes that it has started, even if they left its group and their parent, as the agent of nsys
    does. Raises OSError.
    """
    mark = f"{os.getpid()}-{uuid.uuid4().hex}"
    environment = {name: value for name, value in processes.environment().items() if not SECRET.search(name)}
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [*command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment | dict(more or {}) | {MARK: mark},
            start_new_session=True,
        )
        timed_out = False
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            timed_out = True
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace_s)
        finally:
            processes.kill_tree(process.pid)
            process.wait()
            processes.kill_marked(f"{MARK}={mark}")
    return Ended(process.returncode, log.read_text(encoding="utf-8", errors="replace"), timed_out)


def owner(pid: int) -> int | None:
    """Return the pid of the process that runs the tool of process ``pid``; None if it does not belong to a tool."""
    mark = re.search(rf"(?:^|\0){MARK}=(\d+)-", text_in(f"/proc/{pid}/environ"))
    return int(mark[1]) if mark else None
