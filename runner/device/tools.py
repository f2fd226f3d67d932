"""Programs of others that look at a case from outside: where they are, and how they are started and ended."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from runner.device import processes
from runner.experiment.results import SECRET

PLACES = {  # where installers put them beside PATH; of several versions the newest is taken
    "nsys": (
        "/usr/local/cuda/bin/nsys",
        "/opt/nvidia/nsight-systems/*/bin/nsys",
        "/opt/nvidia/nsight-systems-cli/*/bin/nsys",
    ),
    "ncu": ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu"),
    "compute-sanitizer": ("/usr/local/cuda/bin/compute-sanitizer",),
    "cuobjdump": ("/usr/local/cuda/bin/cuobjdump",),
}
GRACE_S = 60.0  # that a tool whose time is over has to write its report
# In the environment of a tool and of all that it starts: who runs it, and another value for each run.
MARK = "KERNEL_RUNNER_TOOL"


@dataclass(frozen=True)
class Ended:
    """How a tool ended. ``code`` is its exit code, below 0 for a signal; ``said`` what it and the case printed."""

    code: int
    said: str
    late: bool = False  # it was ended, because its time was over


def find(name: str, given: str | None = None) -> str | None:
    """The path of tool ``name``: as ``given`` in a config, on PATH, or where installers put it; None if nowhere."""
    if given is not None:
        return shutil.which(os.path.expanduser(given))
    return shutil.which(name) or next((str(path) for place in PLACES[name] for path in _glob(place)), None)


def run(
    command: Sequence[str], log: Path, limit_s: float, more: Mapping[str, str] | None = None, grace_s: float = GRACE_S
) -> Ended:
    """Run ``command`` to its end, in an environment without keys and tokens, and with ``more``; it prints to ``log``.

    Tools store that environment in their reports.

    After ``limit_s`` it is asked to end, after ``grace_s`` more it is killed, with all it has started, also what has
    left its group and its parent, as the agent of nsys does. Raises OSError.
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
        late = False
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            late = True
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace_s)
        finally:
            processes.kill_tree(process.pid)
            processes.kill_group(process)
            for pid in _marked(mark):
                processes.kill_tree(pid)
    return Ended(process.returncode, log.read_text(encoding="utf-8", errors="replace"), late)


def run_by(pid: int) -> int | None:
    """Who runs the tool that process ``pid`` is, or was started by: its pid; None if there is no such tool."""
    with suppress(OSError):  # it has just ended, or is another user's
        if told := re.search(rb"(?:^|\0)%b=(\d+)-" % MARK.encode(), Path(f"/proc/{pid}/environ").read_bytes()):
            return int(told[1])
    return None


def _marked(mark: str) -> Iterator[int]:
    """Processes of the run that has ``mark``; none where there is no Linux to ask."""
    wanted = f"{MARK}={mark}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended, or is another user's
            if wanted in (path / "environ").read_bytes().split(b"\0"):
                yield int(path.name)


def _glob(place: str) -> list[Path]:
    """What is there, the highest version in its path first."""
    found = Path("/").glob(place.removeprefix("/"))
    return sorted(found, key=lambda path: [int(number) for number in re.findall(r"\d+", str(path))], reverse=True)
