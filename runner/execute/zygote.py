"""The zygote: a process that has imported torch, and forks a worker in 10 ms.

    python -m runner.execute.zygote <descriptor of its socket> <process id of its parent>

The first message is {"preload": [module, ...]}, with the descriptors of the log and of locks that workers hold. Then
come requests:

    {"fork": environment}, with the descriptors of the worker's channel and its log → {"pid": ...} or {"error": ...}
    {"reap": pid, "limit_s": ...}: kill a worker and its descendants, and wait for its end → {"code": ... or null}

When the socket closes, because the parent closed it or died, the zygote kills all workers and their descendants.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Mapping
from typing import NoReturn

from ..device import import_path, processes, tools

ORPHAN_S = 60.0  # longest wait for the end of a process that a dead worker has left behind
SUBREAPER, DEATH_SIGNAL = 36, 1  # options of prctl(2)
prctl = ctypes.CDLL(None).prctl
NVIDIA_DEVICE = "/dev/nvidiactl"  # exists where a process can use a GPU
MOST_FDS = 64  # descriptors of the first message: a log, and the lock of each GPU


def main(control: socket.socket, parent: int) -> NoReturn:
    """Serve until the parent closes its end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the parent handles these, and this cleans up
        signal.signal(number, signal.SIG_IGN)
    prctl(SUBREAPER, 1)  # processes that a dead worker leaves behind become children of this one
    prctl(DEATH_SIGNAL, signal.SIGKILL)  # while it imports, it does not notice the death of its parent
    if os.getppid() != parent:  # the parent died before the line above
        sys.exit(1)
    import_path.arrange_here()
    hashing = threading.Thread(target=_hash_triton)
    if os.path.exists(NVIDIA_DEVICE):
        hashing.start()
    importlib.import_module("kernel_runner.worker")
    if hashing.ident:
        hashing.join()  # a fork keeps only the thread that forks
    message, descriptors, _, _ = socket.recv_fds(control, 2**16, MOST_FDS)
    if not message:
        os._exit(0)
    for output in (1, 2):
        os.dup2(descriptors[0], output)
    for name in json.loads(message)["preload"]:
        importlib.import_module(name)
    importlib.import_module("kernel_runner.worker.used_files").modules_at_start()
    gc.collect()
    gc.freeze()  # a collection in a worker must not touch, and thereby copy, pages that all workers share
    prctl(DEATH_SIGNAL, 0)  # from now on it must kill its workers before it ends
    _serve(control)
    os._exit(0)


def _hash_triton() -> None:
    """Compute Triton's hash of its own files, which every process needs before its first kernel.

    It reads libtriton.so, of 300 to 450 MB, in 0.4 s. Here it runs during the import of torch, once for all workers.
    """
    with contextlib.suppress(ImportError):  # without Triton, the first case that needs it reports it
        try:
            from triton.runtime.cache import triton_key
        except ImportError:  # before Triton 3.6
            from triton.compiler.compiler import triton_key
        triton_key()


def _serve(control: socket.socket) -> None:
    workers: set[int] = set()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 2**16, 2)
        if not message:
            break
        request = json.loads(message)
        answer: dict[str, object]
        if "fork" in request:
            try:
                pid = _fork(control, descriptors, request["fork"])
            except OSError as error:  # too many processes or no memory: the workers that exist go on
                answer = {"error": error.strerror}
            else:
                workers.add(pid)
                answer = {"pid": pid}
            for descriptor in descriptors:
                os.close(descriptor)
        else:
            answer = {"code": _end(request["reap"], request["limit_s"])}
            if answer["code"] is not None:
                workers.discard(request["reap"])
            _kill_orphans(workers)
        control.send(json.dumps(answer).encode())
    for pid in workers:
        processes.kill_tree(pid)
    _kill_orphans(set())


def _fork(control: socket.socket, descriptors: list[int], environment: Mapping[str, str]) -> int:
    """Return the pid of a new worker, once it leads a process group and dies with this process."""
    ready, not_ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        control.close()
        os.close(ready)
        _work(descriptors, environment, not_ready)
    os.close(not_ready)
    os.read(ready, 1)  # returns when the child closes its end
    os.close(ready)
    return pid


def _work(descriptors: list[int], environment: Mapping[str, str], not_ready: int) -> NoReturn:
    """Become a worker in the child of a fork. Close ``not_ready`` once this process dies with its parent."""
    from ..worker import serve

    parent = os.getppid()
    prctl(DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    os.setsid()
    os.close(not_ready)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2):  # submitit makes its tasks ignore some of them
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    channel, log = descriptors
    for output in (1, 2):
        os.dup2(log, output)
    os.close(log)
    os.environ.update(environment)
    try:
        serve.main(channel)
    except BaseException as error:
        traceback.print_exc()
        serve.flush()
        code = error.code if isinstance(error, SystemExit) else 1
        # Exit inside the handler: after it the channel is closed, and the parent kills this process.
        os._exit(code if isinstance(code, int) else int(code is not None))
    serve.flush()
    os._exit(0)


def _end(pid: int, limit_s: float) -> int | None:
    """Kill the child ``pid`` and its descendants. Return its exit code; None if it has not ended after ``limit_s``."""
    processes.kill_tree(pid)
    pidfd = os.pidfd_open(pid)
    ended = select.select([pidfd], [], [], limit_s)[0]
    os.close(pidfd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if ended else None


def _kill_orphans(workers: set[int]) -> None:
    """Kill children of this process that are not workers, since dead workers have left them behind.

    A profiler of a living worker is spared; it may have left its parent, as the agent of nsys does.
    """
    for pid in processes.children(os.getpid()):
        if pid not in workers and tools.owner(pid) not in workers:
            _end(pid, ORPHAN_S)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
