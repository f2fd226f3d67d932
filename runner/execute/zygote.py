"""Where workers come from: a process that has imported torch and run nothing, and forks a worker in 10 ms.

    python -m runner.execute.zygote <fd> <parent>

The parent's first message is {"preload": [module, ...]}, with the log and the descriptors that workers hold open; the
answer comes when workers can be forked. Then it asks {"fork": {...}} with the worker's end of its channel and its log;
{"kill": pid}, which waits for nothing; {"reap": pid, "limit_s": ...}, which waits for its end. No process is touched
that is not a worker. When that socket closes, whatever has happened to the parent, all workers and all they have
started are killed.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from typing import Any, NoReturn

from runner.device import processes, tools

ORPHAN_S = 60.0  # that what a dead worker has started may take to end
SUBREAPER, DEATH_SIGNAL = 36, 1  # of prctl(2)
MOST_FDS = 64  # descriptors of the first message: a log, and the lock of each GPU


def main(control: socket.socket, parent: int) -> NoReturn:
    """Serve until the parent goes away."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the parent's to handle: this one cleans up after it
        signal.signal(number, signal.SIG_IGN)
    _prctl(SUBREAPER, 1)  # what a dead worker leaves behind becomes a child of this process, and is found
    _prctl(DEATH_SIGNAL, signal.SIGKILL)  # while it imports, it would not see its parent go
    if os.getppid() != parent:  # it was gone before this process began
        sys.exit(1)
    importlib.import_module("runner.worker")
    message, descriptors, _, _ = socket.recv_fds(control, 2**16, MOST_FDS)
    if not message:
        os._exit(0)
    for output in (1, 2):
        os.dup2(descriptors[0], output)
    _import_all(json.loads(message)["preload"])
    _prctl(DEATH_SIGNAL, 0)  # from now on it has workers to end
    control.send(b"{}")
    workers: set[int] = set()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 2**16, 4)
        if not message:
            break
        request = json.loads(message)
        if "fork" in request:
            try:
                pid = _fork(control, descriptors, request["fork"])
            except OSError as error:  # too many processes, or no memory: no reason to end those that there are
                answer: dict[str, object] = {"error": error.strerror}
            else:
                workers.add(pid)
                answer = {"pid": pid}
            for descriptor in descriptors:
                os.close(descriptor)
            control.send(json.dumps(answer).encode())
        elif (pid := request.get("kill", request.get("reap"))) not in workers:  # by now it may be anybody's
            control.send(json.dumps({"error": f"{pid} is no worker of this process"}).encode())
        elif "kill" in request:
            processes.kill_tree(pid)
            control.send(b"{}")
        else:
            code = _end(pid, request["limit_s"])
            if code is not None:
                workers.discard(pid)
            _kill_orphans(workers)
            control.send(json.dumps({"code": code}).encode())
    for pid in workers:
        processes.kill_tree(pid)
    _kill_orphans(set())
    os._exit(0)


def _import_all(names: list[str]) -> None:
    """What every worker needs. One thread must be left, since no other would survive a fork."""
    for name in names:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # the collector need not look at, and so copy, what all workers share
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        print(f"{threads} threads in the process that workers are forked from", file=sys.stderr, flush=True)


def _fork(control: socket.socket, descriptors: list[int], settings: dict[str, Any]) -> int:
    """The pid of a new worker, which dies with this process by now: from here on it may be made to stand still."""
    ended, begun = os.pipe()
    try:
        pid = os.fork()
        if pid == 0:
            control.close()
            os.close(ended)
            _work(descriptors, settings, begun)
        os.close(begun)
        begun = -1
        os.read(ended, 1)  # nothing comes: it is closed, or the child is gone
        return pid
    finally:
        for descriptor in (ended, begun):
            if descriptor >= 0:
                os.close(descriptor)


def _work(descriptors: list[int], settings: dict[str, Any], begun: int) -> NoReturn:
    """The child of a fork: become a worker. ``begun`` is closed when it cannot outlive its parent any more."""
    from runner.worker import serve

    parent = os.getppid()
    _prctl(DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    os.setsid()  # a group of its own, which can be killed as one
    os.close(begun)
    for number in (
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGUSR2,
    ):  # submitit has tasks ignore some
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
        # In here: without its frames the channel closes, and the parent kills what is still there.
        os._exit(_code(error))
    serve.flush()
    os._exit(0)


def _code(error: BaseException) -> int:
    """With which Python would end of ``error``."""
    code = error.code if isinstance(error, SystemExit) else 1
    return code if isinstance(code, int) else int(code is not None)


def _end(pid: int, limit_s: float) -> int | None:
    """Kill child ``pid`` with all it has started; its exit code, or None if the kernel has not let it go by then."""
    processes.kill_tree(pid)
    pidfd = os.pidfd_open(pid)
    try:
        if not select.select([pidfd], [], [], limit_s)[0]:
            return None
    finally:
        os.close(pidfd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _kill_orphans(workers: set[int]) -> None:
    """Children of this process that are no workers: what a dead worker has left behind.

    The tool of one that lives may have left its parent too, as the agent of nsys does.
    """
    for pid in processes.children(os.getpid()):
        if pid not in workers and tools.run_by(pid) not in workers:
            _end(pid, ORPHAN_S)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
