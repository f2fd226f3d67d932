"""One sweep at a time on a GPU, on the whole machine: a lock per GPU.

The lock is an flock on a file that nobody deletes. Processes that inherit the open file hold the lock too. The kernel
frees it when the last of them ends, so no lock is ever stale. (Children do not inherit a lock of ``lockf``.) The
content of the file only serves the message to those who wait.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shlex
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from runner.device.gpus import Gpu
from runner.experiment.results import printable, redact_command
from runner.experiment.schema import BadInput

VARIABLE = "KERNEL_RUNNER_LOCK_DIR"
MACHINE_WIDE = Path("/var/lock/kernel-runner")
SHARED = Path("/tmp/kernel-runner-locks")  # noqa: S108  # below TMPDIR each job has its own
NOTIFY_EVERY_S = 10.0


@dataclass(eq=False)
class GpuLock:
    """The lock named ``uuid``; messages call it ``label``. Holders of a ``shared`` lock hold it together."""

    uuid: str
    label: str = "the GPU"
    shared: bool = False
    _fd: int | None = field(default=None, init=False)

    def acquire(self, notify: Callable[[str], None], poll_s: float = 0.2) -> None:
        """Wait until the lock is free. Call ``notify`` with its holder at once and then every 10 s.

        Raises BadInput if its file cannot be made or locked.
        """
        assert self._fd is None, f"{self.label} is locked already"
        path = folder() / f"{self.uuid}.lock"
        notify_at = time.monotonic()
        with contextlib.ExitStack() as undo:
            fd = _open(path)
            undo.callback(os.close, fd)
            while not _try_lock(fd, path, shared=self.shared):
                if time.monotonic() >= notify_at:
                    notify(f"waiting for {self.label}: held by {_holder(fd)}")
                    notify_at += NOTIFY_EVERY_S
                time.sleep(poll_s * random.uniform(0.5, 1.0))  # flock is not fair: waiters must not go in step
            _sign(fd, shared=self.shared)
            undo.pop_all()
            self._fd = fd

    def fileno(self) -> int:
        """Return the file descriptor for ``pass_fds`` or a fork: a process that has it holds the lock too."""
        assert self._fd is not None, f"{self.label} is not locked"
        return self._fd

    def release(self) -> None:
        """Release the lock in this process. It stays locked as long as a process lives that has inherited it."""
        if self._fd is not None:
            os.close(self._fd)  # LOCK_UN would release it for those processes too
            self._fd = None


def acquire_all(gpus: Sequence[Gpu], notify: Callable[[str], None], poll_s: float = 0.2) -> list[GpuLock]:
    """Acquire the locks of ``gpus``. A MIG instance also takes a shared lock of the GPU that holds it.

    The order is that of the UUIDs, so that two sweeps that want the same GPUs never wait for each other. Give every
    ``fileno`` to the workers.
    """
    locks = {gpu.parent_uuid: GpuLock(gpu.parent_uuid, f"the whole of {gpu}", shared=True) for gpu in gpus}
    locks |= {gpu.uuid: GpuLock(gpu.uuid, str(gpu)) for gpu in gpus}
    ordered = [locks[uuid] for uuid in sorted(locks) if uuid]
    with contextlib.ExitStack() as undo:
        for lock in ordered:
            undo.callback(lock.release)
            lock.acquire(notify, poll_s)
        undo.pop_all()
    return ordered


def folder() -> Path:
    """Return the folder of the locks, which all users of the machine share, and make it if it is missing.

    Raises BadInput if there is no such folder.
    """
    named = os.environ.get(VARIABLE)
    places = [Path(named)] if named else [MACHINE_WIDE, SHARED]
    for path in filter(_usable, places):
        return path
    tried = " or ".join(map(str, places))
    raise BadInput(
        f"no folder for the locks of GPUs: this user cannot write to {tried}; "
        f"set {VARIABLE} to one that all users of this machine share"
    )


def _usable(path: Path) -> bool:
    """Return whether files can be made in ``path``, which is made for everybody if it is missing."""
    with contextlib.suppress(OSError):
        path.mkdir(parents=True)
        path.chmod(0o1777)  # whatever the umask is
    return path.is_dir() and os.access(path, os.W_OK | os.X_OK)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn an OSError about the file of a lock into BadInput."""
    try:
        yield
    except OSError as error:
        raise BadInput(
            f"{path} cannot be locked: {error.strerror}; let everybody read and write it, or set {VARIABLE} to a "
            "folder on a local disk that all users of this machine share"
        ) from None


def _open(path: Path) -> int:
    """Open the file to read and write; make it for everybody if it is missing. Raises BadInput."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW  # a link in a folder of everybody may lead to a file of this user
    with _explained(path), contextlib.suppress(FileExistsError):
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
        os.fchmod(fd, 0o666)  # whatever the umask is
        return fd
    with _explained(path):
        return os.open(path, flags)  # without O_CREAT: fs.protected_regular refuses it for another user's file


def _try_lock(fd: int, path: Path, *, shared: bool) -> bool:
    with _explained(path), contextlib.suppress(BlockingIOError):
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        return True
    return False


def _sign(fd: int, *, shared: bool) -> None:
    """Write the holder into the file."""
    words = [os.path.basename(sys.orig_argv[0]), *sys.orig_argv[1:]]
    command = shlex.join(redact_command([word]) for word in words)  # everybody may read it
    where = f"pid {os.getpid()} on host {socket.gethostname()} since {datetime.now():%Y-%m-%d %H:%M}"
    text = f"{where} ({command[:200]}){', a shared lock' * shared}"
    with contextlib.suppress(OSError):  # on a full disk the lock holds all the same
        os.ftruncate(fd, 0)
        os.pwrite(fd, text.encode(), 0)


def _holder(fd: int) -> str:
    """Return the content of the file without control characters; everybody may write there."""
    return printable(os.pread(fd, 1000, 0).decode(errors="replace") or "an unknown process")
