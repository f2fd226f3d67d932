"""``python -m runner ...`` without the two seconds of ``import torch``: forked from a process that has imported it.

``install()`` replaces ``subprocess.Popen`` by one that forks where the command is ``[sys.executable, "-m", "runner",
...]`` or ``[sys.executable, "script.py", ...]`` and its environment changes nothing that is read at start; every other
command starts as ever, and so does one with ``COLD=1`` in its environment. What such a process starts in turn is forked
from it; what must not have the torch of a case, or other values of TRITON_INTERPRET, from a process that ``serve``
runs in, of which there is one for each value. What every run needs of the runner is imported beforehand, too; where
``sys.path`` leads to another copy, that one is imported as in a cold start.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

PACKAGES = ("torch", "hydra", "omegaconf", "pandas", "rich.live", "rich.table", "wandb", "wandb.sdk.launch")
# Python, a library or a test looks at these when a process starts, or in /proc, where they cannot be changed.
AT_START = ("COLD", "PYTHON", "LC_", "LANG", "LD_", "OMP_", "MKL_", "TRITON_INTERPRET", "CUDA_LAUNCH", "MARK")
MODULES = (
    "runner",
    "kernel_runner.device.gpus",
    "kernel_runner.execute.zygote",
    "kernel_runner.worker.serve",
    "kernel_runner.worker.again",
    "kernel_runner.report.wandb.record",
    "kernel_runner.report.wandb.workspace",
    "kernel_runner.cli.tasks",
    "wandb",
    "pytest",
)
TOPS = ("runner", "kernel_runner")  # both names of the package
OURS = (
    "cli.run",
    "config.resume",
    "config.shapes",
    "config.sweep",
    "execute.local",
    "findings.flat",
    "report.flat_formats",
    "report.output",
)
OURS += ("report.live", "report.terminal", "timing.timer", "worker", "worker.serve")
OURS += tuple(
    f"measure.{name}" for name in ("benchmark", "by_hand", "inspect", "memory", "ncu", "nsys", "parts", "profile")
)
COMPILING = (  # what a compilation imports, and nothing does before
    "torch.distributed.tensor.experimental",
    "torch.export",
    "torch.utils.cpp_extension",
    "sympy.physics.units",
)
COMMAND = ["workload=softmax", "workload.rows=64", "impl=naive,torch", "log=none", "-m"]
COMMAND += [f"measure.benchmark.{words}" for words in ("samples=20", "max_s=0.02", "warmup_s=0")]
INTERPRET = "TRITON_INTERPRET"
SITE = "sitecustomize"  # the module that a cold start imports
OWN = ("runner", f"{SITE}.py")  # what a folder of PYTHONPATH has that puts no package in the place of another
REAL = subprocess.Popen
HUGE = 2**21  # bytes of a huge page
MADV_COLLAPSE = 25  # of Linux 6.1 and later


def forkable(args: object, env: Mapping[str, str] | None) -> bool:
    """Whether a forked process does what ``args`` would do in a cold one."""
    words = _words(args)
    if not _place(words):
        return False
    given = dict(os.environ if env is None else env)
    changed = {name for name in {*given, *BASE} if name.startswith(AT_START) and given.get(name) != BASE.get(name)}
    paths = {*given.get("PYTHONPATH", "").split(os.pathsep)} - {*BASE.get("PYTHONPATH", "").split(os.pathsep)}
    paths -= {"", os.curdir}
    if not all(any(os.path.exists(os.path.join(path, name)) for name in OWN) for path in paths):  # of other packages
        return False
    return changed <= {"PYTHONPATH", "PYTHONUNBUFFERED", INTERPRET} and given.get(INTERPRET) in (None, "1")


def unlike_here(args: object, env: Mapping[str, str] | None) -> bool:
    """Whether a process forked from this one would differ from a cold one, and one forked by a server would not."""
    words = _words(args)
    again = words[_place(words)] == "kernel_runner.worker.again"
    if again and "judge" in json.loads(Path(words[3]).read_text()):
        return True  # it would judge with the operators that the case has replaced
    return (os.environ if env is None else env).get(INTERPRET) != BASE.get(INTERPRET)


class Forked(REAL):  # type: ignore[type-arg]
    """A Popen whose child is forked from this process, if that will do. Its other threads must only wait."""

    here = True  # else from the process that ``serve`` runs in

    def _execute_child(self, *given: Any) -> None:
        names = REAL._execute_child.__code__.co_varnames[1:]  # type: ignore[attr-defined]
        call = dict(zip(names, given, strict=False))
        if call["preexec_fn"] or not forkable(call["args"], call["env"]):
            super()._execute_child(*given)  # type: ignore[misc]
            return
        ends = call["p2cread"], call["c2pwrite"], call["errwrite"]
        if not self.here and "debug=interpret" in _words(call["args"]):
            _server("1")  # for its workers; it goes on as long as this process is connected to it
        try:
            self._fork(call, [end if end >= 0 else place for place, end in enumerate(ends)])
        except OSError:  # who forks has ended, and has said why; or nobody has started it
            super()._execute_child(*given)  # type: ignore[misc]
            return
        self._child_created = True
        for end, other in zip(ends, (call["p2cwrite"], call["c2pread"], call["errread"]), strict=True):
            if end >= 0 and other >= 0:  # of a pipe; else it is the caller's, or /dev/null
                os.close(end)
        if (devnull := getattr(self, "_devnull", None)) is not None:
            os.close(devnull)

    def _fork(self, call: Mapping[str, Any], outputs: Sequence[int]) -> None:
        if not self.here or unlike_here(call["args"], call["env"]):
            self._fork_elsewhere(_request(call), outputs)
            return
        keep = {number: number for number in call["pass_fds"]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, about other threads
            self.pid = os.fork()
        if self.pid == 0:
            become(_request(call), outputs, keep)

    def _fork_elsewhere(self, request: Mapping[str, Any], outputs: Sequence[int]) -> None:
        with LOCK:
            server = _server(request["env"].get(INTERPRET, ""), start=not self.here)
            ended, status = os.pipe()
            message = json.dumps(request).encode(errors="surrogateescape")
            socket.send_fds(server, [message], [*outputs, status, *request["keep"]])
            self.pid = json.loads(server.recv(2**16))["pid"]
        os.close(status)
        self._ended = ended

    def poll(self) -> int | None:
        return self._told(0) if self._is_elsewhere() else super().poll()

    def wait(self, timeout: float | None = None) -> int:
        if not self._is_elsewhere():
            return super().wait(timeout)
        if self._told(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return int(self.returncode)

    def _is_elsewhere(self) -> bool:
        return hasattr(self, "_ended")

    def _told(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], timeout)[0]:
            self.returncode = int(os.read(self._ended, 16) or b"1")
            os.close(self._ended)
        return self.returncode


class Elsewhere(Forked):
    """A Popen whose child is forked from the process that ``serve`` runs in."""

    here = False


def _words(args: object) -> list[str]:
    """The command without ``-P``, which keeps the working directory out of ``sys.path``."""
    words = [str(word) for word in args] if isinstance(args, list | tuple) else []
    return words[:1] + words[2:] if words[1:2] == ["-P"] else words


def _place(words: Sequence[str]) -> int:
    """Where ``words`` name a script, or one of MODULES; 0 if they name neither."""
    if words[:2] == [sys.executable, "-m"]:
        return 2 if words[2] in MODULES else 0
    return int(words[:1] == [sys.executable] and words[1:2] != [] and words[1].endswith(".py"))


def _request(call: Mapping[str, Any]) -> dict[str, Any]:
    session = call.get("start_new_session", False)
    return {
        "words": _words(call["args"]),
        "safe": list(call["args"])[1:2] == ["-P"],
        "cwd": os.fspath(call["cwd"] or os.getcwd()),
        "env": dict(os.environ if call["env"] is None else call["env"]),
        "session": bool(session),
        "keep": list(call["pass_fds"]),
    }


def become(request: Mapping[str, Any], outputs: Sequence[int], keep: Mapping[int, int]) -> NoReturn:
    """Be a fresh Python. ``keep``: the descriptors to leave open, by the numbers that they are to have."""
    code = 1
    try:
        _descriptors(outputs, keep)
        if request["session"]:
            os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        words = list(request["words"])
        place = _place(words)
        run = words[place]
        if run == "kernel_runner.execute.zygote":  # it looks who its parent is
            words[4] = str(os.getppid())
        sys.argv, sys.orig_argv = words[place:], words
        path = [one for one in request["env"].get("PYTHONPATH", "").split(os.pathsep) if one]
        sys.path[:] = [
            *([] if request["safe"] else [os.path.dirname(os.path.abspath(run)) if place == 1 else request["cwd"]]),
            *dict.fromkeys(path),
            *(one for one in PATH if one not in path),
        ]
        if any(os.path.exists(os.path.join(folder, f"{SITE}.py")) for folder in path):
            sys.modules.pop(SITE, None)
            importlib.import_module(SITE)
        _runner_of_path(run)
        atexit._clear()
        through = bool(os.environ.get("PYTHONUNBUFFERED"))
        for place, name, errors in ((1, "stdout", "strict"), (2, "stderr", "backslashreplace")):
            binary = open(place, "wb", buffering=0 if through else -1)  # noqa: SIM115
            setattr(sys, name, io.TextIOWrapper(binary, "utf-8", errors, write_through=through))
        sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115
        subprocess.Popen = Forked  # type: ignore[misc]
        code = _main(run)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _runner_of_path(run: str) -> None:
    """Keep the modules of the runner, but for ``run``, if ``sys.path`` leads to their files; else forget them."""
    # To go through the names of all modules would copy the memory of each.
    late = [*takewhile(lambda name: name != LAST, reversed(sys.modules))]
    ours = {name: sys.modules.pop(name) for name in reversed(late) if name.partition(".")[0] in TOPS}
    spec = find_spec(TOPS[1])
    if ours and spec and spec.origin == ours[TOPS[1]].__file__:
        sys.modules.update({name: module for name, module in ours.items() if name != run})


def _main(run: str) -> int:
    """Run a module or a script as the interpreter does; its exit code."""
    code: object = 0
    try:
        if run.endswith(".py"):
            runpy.run_path(run, run_name="__main__")
        else:
            runpy.run_module(run, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return code if isinstance(code, int) else 0


def _descriptors(outputs: Sequence[int], keep: Mapping[int, int]) -> None:
    """Those of ``outputs`` become 0, 1 and 2; ``keep`` get their numbers; all others are closed."""
    floor = max([3, *keep, *keep.values(), *outputs]) + 1
    moved = [os.dup2(one, floor + place) for place, one in enumerate([*outputs, *keep.values()])]
    for number, now in zip([0, 1, 2, *keep], moved, strict=True):
        os.dup2(now, number)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            with contextlib.suppress(OSError):
                os.close(int(name))


LOCK = threading.Lock()
BASE: Mapping[str, str] = {}
PATH: list[str] = []
LAST = ""  # the module before those of the runner, which are the last ones of sys.modules
ADDRESS = "PRELOADED_ADDRESS"  # in the environment of all processes of one pytest session
STARTED_WITH = "PRELOADED_STARTED_WITH"  # and what the environment had AT_START
SERVERS: dict[tuple[int, str], socket.socket] = {}  # process, value of INTERPRET → its connection


def install() -> None:
    """From now on, in this process. The one that forks starts when it is first wanted, and serves all of a session."""
    global BASE
    os.environ.setdefault(ADDRESS, f"runner-tests-{os.getpid()}")
    at_start = {name: value for name, value in os.environ.items() if name.startswith(AT_START)}
    BASE = dict(os.environ) | json.loads(os.environ.setdefault(STARTED_WITH, json.dumps(at_start)))
    if sys.platform == "linux":
        subprocess.Popen = Elsewhere  # type: ignore[misc]


def stand_in() -> str:
    """The first lines of a program that stands in for a profiler: a command of the runner that it starts is forked."""
    _server("")  # of this process: that of the stand-in would end with it
    imported = f"import sys\nsys.path.append({os.path.dirname(__file__)!r})\nimport preloaded"
    return f"#!{sys.executable}\n{imported}\npreloaded.install()"


def _server(interpret: str, *, start: bool = True) -> socket.socket:
    """The connection of this process to the one that forks what has this value of INTERPRET. Raises OSError."""
    address = f"\0{BASE[ADDRESS]}-{interpret}"
    while (key := (os.getpid(), interpret)) not in SERVERS:
        if start:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, contextlib.suppress(OSError):
                listener.bind(address)  # by the first who comes
                listener.listen(64)
                env = {name: value for name, value in BASE.items() if name != INTERPRET}
                env |= {"OPENBLAS_NUM_THREADS": "1", **({INTERPRET: interpret} if interpret else {})}
                words = [sys.executable, os.path.abspath(__file__), str(listener.fileno())]
                REAL(words, pass_fds=[listener.fileno()], env=env, stdin=subprocess.DEVNULL)
        ours = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**20)
        try:
            ours.connect(address)
            SERVERS[key] = ours
        except ConnectionRefusedError:  # it has just ended
            if not start:
                raise
    return SERVERS[key]


def serve(listener: socket.socket) -> None:
    """Fork what is asked for, and tell of each end, until all who asked are gone."""
    global LAST
    for name in (*PACKAGES, *(f"{TOPS[1]}.{name}" for name in OURS)):
        if find_spec(name.partition(".")[0]):
            importlib.import_module(name)
    cuda = importlib.import_module("torch").version.cuda  # with it, Inductor starts CUDA, which survives no fork
    if cuda is None and not os.environ.get(INTERPRET):  # what is interpreted is not compiled
        importlib.import_module("torch._inductor.compile_fx")
        for name in COMPILING:  # this and the keys below take 0.4 s of each process that compiles
            importlib.import_module(name)
        codecache = importlib.import_module("torch._inductor.codecache")
        codecache.torch_key()
        codecache.CacheBase.get_system()
    of = importlib.import_module(f"{TOPS[1]}.store.fingerprint").Fingerprints().of
    plan = importlib.import_module(f"{TOPS[1]}.config").plan
    for command in ([], ["log=none"], COMMAND):  # others, of whatever options, are planned in half the time
        for case in plan(command).cases:
            of(case)
    ours = [name for name in sys.modules if name.partition(".")[0] in TOPS]
    sys.modules.update({name: sys.modules.pop(name) for name in ours})
    LAST = [*sys.modules][-len(ours) - 1]
    importlib.import_module(f"{TOPS[1]}.worker.used_files").modules_at_start()
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        sys.exit(f"{__file__}: {threads} threads, of which a fork has but one")
    gc.collect()
    gc.freeze()
    _collapse()
    PATH[:] = sys.path[1:]
    clients = [listener.accept()[0]]
    children: dict[int, tuple[int, int]] = {}
    while clients:
        for one in select.select([listener, *clients, *children], [], [])[0]:
            if one is listener:
                clients.append(listener.accept()[0])
            elif one in children:
                pid, status = children.pop(one)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with contextlib.suppress(BrokenPipeError):
                    os.write(status, str(code).encode())
                os.close(status)
                os.close(one)
            elif not _answer(one, children):
                clients.remove(one)
                one.close()


def _collapse() -> None:
    """Move the memory of this process to huge pages: for 340 MB of small ones a fork takes 23 ms of CPU, not 6."""
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for line in Path("/proc/self/maps").read_text().splitlines():
        (place, rights, *_), file = line.split()[:5], line.split()[5:]
        start, end = (int(edge, 16) for edge in place.split("-"))
        if rights == "rw-p" and file in ([], ["[heap]"]) and end - start >= HUGE:
            advise(start, end - start, MADV_COLLAPSE)  # refused by an older Linux: then forks take as long as before


def _answer(client: socket.socket, children: dict[int, tuple[int, int]]) -> bool:
    """Fork what ``client`` asks for. False if it has gone."""
    message, received, _, _ = socket.recv_fds(client, 2**20, 64)
    if not message:
        return False
    request = json.loads(message)
    outputs, status, keep = received[:3], received[3], received[4:]
    pid = os.fork()
    if pid == 0:
        become(request, outputs, dict(zip(request["keep"], keep, strict=True)))
    children[os.pidfd_open(pid)] = pid, status
    for descriptor in (*outputs, *keep):
        os.close(descriptor)
    client.send(json.dumps({"pid": pid}).encode())
    return True


if __name__ == "__main__":
    BASE = dict(os.environ)
    serve(socket.socket(fileno=int(sys.argv[1])))
