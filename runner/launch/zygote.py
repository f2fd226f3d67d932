"""Where workers come from: a process that has imported torch and run nothing, and forks a worker in 10 ms.

    python -m runner.launch.zygote <fd> <parent>

The parent asks over a socket: {"fork": {...}} with the worker's end of its channel and its log, {"reap": pid}. When
that socket closes, whatever has happened to the parent, all workers and all they have started are killed.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
from typing import Any, NoReturn

from runner import child, tool

SUBREAPER, DEATH_SIGNAL = 36, 1  # of prctl(2)


def main(control: socket.socket, parent: int) -> NoReturn:
    """Serve until the parent goes away."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    _prctl(SUBREAPER, 1)  # what a dead worker leaves behind becomes a child of this process, and is found
    _prctl(DEATH_SIGNAL, signal.SIGKILL)  # while it imports, it would not see its parent go
    if os.getppid() != parent:  # it was gone before this process began
        sys.exit(1)
    _import_all()
    _prctl(DEATH_SIGNAL, 0)  # from now on it has workers to end
    control.send(b"{}")
    workers: set[int] = set()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 2**16, 4)
        if not message:
            break
        request = json.loads(message)
        if "fork" in request:
            pid = os.fork()
            if pid == 0:
                control.close()
                _work(descriptors, request["fork"])
            for descriptor in descriptors:
                os.close(descriptor)
            workers.add(pid)
            control.send(json.dumps({"pid": pid}).encode())
        else:
            pid = request["reap"]
            workers.discard(pid)
            child.kill_tree(pid)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            _kill_orphans(workers)
            control.send(json.dumps({"code": code}).encode())
    for pid in workers:
        child.kill_tree(pid)
    _kill_orphans(set())
    os._exit(0)


def _import_all() -> None:
    """What every worker needs. One thread must be left, since no other would survive a fork."""
    importlib.import_module("runner.worker")
    for name in sys.argv[3:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # the collector need not look at, and so copy, what all workers share
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        print(f"{threads} threads in the process that workers are forked from", file=sys.stderr, flush=True)


def _work(descriptors: list[int], settings: dict[str, Any]) -> NoReturn:
    """The child of a fork: become a worker."""
    from runner.launch import serve

    parent = os.getppid()
    _prctl(DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    os.setsid()  # a group of its own, which can be killed as one
    for number in (signal.SIGTERM, signal.SIGUSR2):  # submitit has its tasks ignore them
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    channel, log = descriptors
    with open(os.devnull, "rb") as nothing:  # an input() in a kernel must not wait for ever
        os.dup2(nothing.fileno(), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environ.update(settings["environment"])
    try:
        serve.main(channel)
    except BaseException as error:
        import traceback

        traceback.print_exc()
        serve.flush()
        os._exit(
            _code(error)
        )  # in here: without its frames the channel closes, and the parent kills what is still there
    serve.flush()
    os._exit(0)


def _code(error: BaseException) -> int:
    """With which Python would end of ``error``."""
    code = error.code if isinstance(error, SystemExit) else 1
    return code if isinstance(code, int) else int(code is not None)


def _kill_orphans(workers: set[int]) -> None:
    """Children of this process that are no workers: what a dead worker has left behind.

    The tool of one that lives may have left its parent too, as the agent of nsys does.
    """
    for pid in child.children(os.getpid()):
        if pid not in workers and tool.run_by(pid) not in workers:
            child.kill_tree(pid)
            os.waitpid(pid, 0)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
