"""A lock per GPU, so that one sweep at a time uses a GPU of this machine.

The lock is an flock on a file that is never deleted. Processes that inherit the open file hold the lock too. The system
frees it when the last of them ends, so a lock is never stale. (Children do not inherit a lock of ``lockf``.) The
content of the file is only for the message to waiting processes.
"""

import contextlib
import fcntl
import os
import random
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from ..records.bad_input import BadInput
from ..records.plain_text import printable
from ..records.redaction import redact_command
from .gpus import Gpu

VARIABLE = "KERNEL_RUNNER_LOCK_DIR"
MACHINE_WIDE = Path("/var/lock/kernel-runner")
SHARED = Path("/tmp/kernel-runner-locks")  # noqa: S108  # not below TMPDIR, which may differ between jobs
NOTIFY_EVERY_S, POLL_S = 10.0, 0.2


@dataclass(eq=False)
class GpuLock:
    """The lock named ``uuid``; messages call it ``label``. Holders of a ``shared`` lock hold it together."""

    uuid: str
    label: str = "the GPU"
    shared: bool = False
    _fd: int | None = field(default=None, init=False)

    def acquire(self, notify: Callable[[str], None]) -> None:
        """Wait until the lock is free. Call ``notify`` with its holder at once and then every 10 s.

        Raises BadInput if its file cannot be created or locked.
        """
        assert self._fd is None, f"{self.label} is locked already"
        path = folder() / f"{self.uuid}.lock"
        notify_at = time.monotonic()
        with contextlib.ExitStack() as undo:
            fd = _open(path)
            undo.callback(os.close, fd)
            while not _try_lock(fd, path, shared=self.shared):
                if time.monotonic() >= notify_at:
                    holder = os.pread(fd, 1000, 0).decode(errors="replace") or "an unknown process"
                    notify(f"waiting for {self.label}: held by {printable(holder)}")  # everybody may write there
                    notify_at += NOTIFY_EVERY_S
                # Random, since flock is not fair to processes that poll in step.
                time.sleep(POLL_S * random.uniform(0.5, 1.0))
            _sign(fd, shared=self.shared)
            undo.pop_all()
            self._fd = fd

    def fileno(self) -> int:
        """Return the file descriptor, for ``pass_fds`` or a fork: a process with it holds the lock too."""
        assert self._fd is not None, f"{self.label} is not locked"
        return self._fd

    def release(self) -> None:
        """Release the lock in this process. It stays locked while a process that has inherited it lives."""
        if self._fd is not None:
            os.close(self._fd)  # LOCK_UN would release it for those processes too
            self._fd = None


def acquire_all(gpus: Sequence[Gpu], notify: Callable[[str], None]) -> list[GpuLock]:
    """Acquire the locks of ``gpus``. A MIG instance also takes a shared lock of the GPU that holds it.

    Locks are taken in the order of the UUIDs, so two sweeps never wait for each other. Workers get each ``fileno``.
    """
    locks = {gpu.parent_uuid: GpuLock(gpu.parent_uuid, f"the whole of {gpu}", shared=True) for gpu in gpus}
    locks |= {gpu.uuid: GpuLock(gpu.uuid, str(gpu)) for gpu in gpus}
    ordered = [locks[uuid] for uuid in sorted(locks) if uuid]
    with contextlib.ExitStack() as undo:
        for lock in ordered:
            undo.callback(lock.release)
            lock.acquire(notify)
        undo.pop_all()
    return ordered


def folder() -> Path:
    """Return the folder of the locks, which all users of the machine share; create it if it is missing.

    Raises BadInput if there is no such folder.
    """
    configured = os.environ.get(VARIABLE)
    places = [Path(configured)] if configured else [MACHINE_WIDE, SHARED]
    for path in filter(_usable, places):
        return path
    tried = " or ".join(map(str, places))
    raise BadInput(
        f"no folder for the locks of GPUs: this user cannot write to {tried}; "
        f"set {VARIABLE} to a folder that all users of this machine share"
    )


def _usable(path: Path) -> bool:
    """Return whether files can be created in ``path``, which is created for everybody if it is missing."""
    with contextlib.suppress(OSError):
        path.mkdir(parents=True)
        path.chmod(0o1777)  # independently of the umask
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
    """Open the file to read and write; create it for everybody if it is missing. Raises BadInput."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW  # a link in a folder of everybody may lead to a file of this user
    with _explained(path), contextlib.suppress(FileExistsError):
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
        os.fchmod(fd, 0o666)  # independently of the umask
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
    command = redact_command(words)  # everybody may read it
    holder = f"pid {os.getpid()} on host {socket.gethostname()} since {datetime.now():%Y-%m-%d %H:%M}"
    text = f"{holder} ({command[:200]}){', a shared lock' * shared}"
    with contextlib.suppress(OSError):  # the lock holds even on a full disk
        os.ftruncate(fd, 0)
        os.pwrite(fd, text.encode(), 0)
