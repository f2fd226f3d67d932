"""One user of a GPU at a time, on the whole machine: a lock per GPU, which whoever may still use the GPU holds.

The lock is flock's, on a file that nobody deletes. It belongs to the open file: processes that inherit the descriptor
hold it as well, the kernel frees it when the last of them is gone, and no lock is ever stale. (One of lockf would not
do: it goes when the process closes any other descriptor of that file, and no child inherits it.) What is in the file is
for the message alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import re
import shlex
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from runner.device.gpus import Gpu
from runner.experiment.results import redact_command
from runner.experiment.schema import BadInput

VARIABLE = "KERNEL_RUNNER_LOCK_DIR"
MACHINE_WIDE = Path("/var/lock/kernel-runner")
CPU = "cpu"  # the uuid of the lock for sweeps on the CPU, which disturb each other as well
TELL_EVERY_S = 10.0
RECORD_BYTES = 2048  # of what is in the file: always as many, so that one write replaces it


class GpuLock:
    """The lock named ``uuid``; ``label`` is what messages call it. ``shared``: with others who share it."""

    def __init__(self, uuid: str, label: str = "", *, shared: bool = False) -> None:
        self.uuid = uuid
        self.label = label or uuid
        self.shared = shared
        self._fd: int | None = None

    def acquire(self, say: Callable[[str], None], poll_s: float = 0.2) -> None:
        """Wait until it is free; ``say`` hears who has it, at once and then every 10 s.

        Raises BadInput where there is no folder, or no file system, for it.
        """
        assert self._fd is None, f"{self.label} is locked already"
        name = re.sub(r"[^A-Za-z0-9.-]", "_", self.uuid)  # MIG-GPU-.../1/0, as drivers once called an instance
        path = folder() / f"{name}.lock"
        tell_at = time.monotonic()
        while True:
            fd = _open(path)
            try:
                if _taken(fd, path, self.shared):
                    _sign(fd, self.shared)
                    self._fd, fd = fd, -1
                    return
                if time.monotonic() >= tell_at:
                    say(f"waiting for {self.label}: held by {_holder(fd)}")
                    tell_at += TELL_EVERY_S
            finally:
                if fd >= 0:
                    os.close(fd)
            time.sleep(poll_s * random.uniform(0.5, 1.0))  # flock is not fair: two who wait must not go in step

    def fileno(self) -> int:
        """For ``pass_fds``, or a fork: the process that has it holds the lock too. Closed on exec if not passed on."""
        assert self._fd is not None, f"{self.label} is not locked"
        return self._fd

    def release(self) -> None:
        """Let go of it here. It stays locked as long as a process lives that has inherited it."""
        if self._fd is not None:
            os.close(self._fd)  # and no LOCK_UN, which would unlock it for those processes too
            self._fd = None


def acquire_all(gpus: Sequence[Gpu], say: Callable[[str], None], poll_s: float = 0.2) -> list[GpuLock]:
    """The locks of ``gpus``, acquired; for a MIG instance also its GPU's, shared with users of the other instances.

    In order of their UUIDs, so that two who want the same GPUs never wait for each other. Pass on every ``fileno``.
    """
    locks = {gpu.parent_uuid: GpuLock(gpu.parent_uuid, f"the whole of {gpu}", shared=True) for gpu in gpus}
    locks |= {gpu.uuid: GpuLock(gpu.uuid, str(gpu)) for gpu in gpus}
    ordered = [locks[uuid] for uuid in sorted(locks) if uuid]
    with contextlib.ExitStack() as undo:
        for lock in ordered:
            undo.callback(lock.release)
            lock.acquire(say, poll_s)
        undo.pop_all()
    return ordered


def folder() -> Path:
    """Where the locks are: the same for every user of the machine, who all may write there. Made if need be.

    Raises BadInput if there is no such place.
    """
    if named := os.environ.get(VARIABLE):
        if _usable(Path(named)):
            return Path(named)
        raise BadInput(f"{VARIABLE}={named} is no folder that this user can write to; set {VARIABLE} to one")
    temporary = Path(tempfile.gettempdir(), "kernel-runner-locks")
    for path in (MACHINE_WIDE, temporary):
        if not path.is_symlink() and _usable(path):  # a link in a folder that is everybody's could lead anywhere
            return path
    raise BadInput(
        f"no folder for the locks of GPUs: neither {MACHINE_WIDE} nor {temporary} can be written to; "
        f"set {VARIABLE} to one that all users of this machine share"
    )


def _usable(path: Path) -> bool:
    """Whether files can be made in ``path``, which is made if it is not there, for everybody."""
    try:
        path.mkdir(parents=True)
        path.chmod(0o1777)  # whatever the umask is
    except FileExistsError:
        pass
    except OSError:
        return False
    return path.is_dir() and os.access(path, os.W_OK | os.X_OK)


def _open(path: Path) -> int:
    """The file, open to read and write, made for everybody if it is not there. Raises BadInput."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        while True:
            # O_CREAT on another user's file in a sticky folder is refused under fs.protected_regular, so not at first.
            with contextlib.suppress(FileNotFoundError):
                return os.open(path, flags)
            with contextlib.suppress(FileExistsError):
                fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
                os.fchmod(fd, 0o666)  # whatever the umask is
                return fd
    except OSError as error:
        raise _unusable(path, error) from None


def _taken(fd: int, path: Path, shared: bool) -> bool:
    """Whether the lock is ours now. Not if the file was deleted meanwhile: others would lock its successor."""
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise _unusable(path, error) from None
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _unusable(path: Path, error: OSError) -> BadInput:
    return BadInput(
        f"{path} cannot be locked: {error.strerror}; let everybody read and write it, or set {VARIABLE} to a folder "
        "on a local disk that all users of this machine share"
    )


def _sign(fd: int, shared: bool) -> None:
    """Write into the file who holds it."""
    words = [os.path.basename(word) if place == 0 else word for place, word in enumerate(sys.orig_argv)]
    command = shlex.join(redact_command([word]) for word in words)  # everybody may read it
    holder = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": command[:200],
        "shared": shared,
    }
    with contextlib.suppress(OSError):  # a full disk: it is locked all the same
        os.pwrite(fd, json.dumps(holder).encode().ljust(RECORD_BYTES), 0)
        os.ftruncate(fd, RECORD_BYTES)


def _holder(fd: int) -> str:
    """``pid 123 on host x since 12:00 (python -m runner ...)``, if the file says so: anybody may write to it."""
    try:
        holder = json.loads(os.pread(fd, RECORD_BYTES, 0))
        since = datetime.fromisoformat(holder["since"]).astimezone()
        day = "" if since.date() == datetime.now().astimezone().date() else f"{since:%Y-%m-%d} "
        text = f"pid {holder['pid']} on host {holder['host']} since {day}{since:%H:%M} ({holder['command']})"
        text += ", maybe among others who share it" if holder.get("shared") else ""
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        return "somebody unknown"
    return "".join(letter if letter.isprintable() else "?" for letter in text)
