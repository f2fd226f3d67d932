"""A worker's own end: cases come in, phases and rows go out.

A message is a line of JSON. The first one says on which device it will measure, if it will. After the cases of one
problem comes the wish to compare them, and their rounds go out. The channel is a socket of its own, so that nothing an
implementation prints can be taken for a message.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import resource
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from runner.device import identity, processes
from runner.experiment.case import CaseRecord


def main(descriptor: int) -> None:
    """Serve until the parent goes away, or a case has spoiled this process."""
    # What Inductor has compiled is loaded as code: by default from a folder of /tmp that others may have made before.
    if not (private := identity.cache_folder("inductor")).is_relative_to(os.devnull):
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(private))
    from runner.device.identity import describe
    from runner.worker import Worker, calibrations, recall, tidy, warm_up

    channel = socket.socket(fileno=descriptor)
    messages, me = channel.makefile("rb"), os.getpid()

    def send(**message: Any) -> None:
        if os.getpid() != me:  # a case has forked, and both are on their way to a row: one of them is the worker
            os._exit(0)
        channel.sendall(json.dumps(message).encode() + b"\n")

    processes.prefer_for_oom_kill()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # asked for before a worker that is late is killed: where is it?
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the core of a process with a GPU is many GiB
    settings = json.loads(messages.readline())
    if device := settings["begin"]:
        warm_up(device, settings["like"] and CaseRecord.from_record(settings["like"]))
    tidy()  # before the first case, which would else pay for all that has just been imported
    send(environment=describe())
    worker = Worker(lambda phase: send(phase=phase), Path(settings["files"]))
    while True:
        try:
            message = json.loads(messages.readline())
        except (ValueError, OSError):  # the end of the channel, or of a message amid which the parent has died
            return
        if "recall" in message:
            recall(message["recall"])
            continue
        if "prepare" in message:
            send(prepared=worker.prepare(CaseRecord.from_record(message["prepare"])))
            continue
        if "case" not in message:
            send(rounds=worker.compare().to_record())
            continue
        case = CaseRecord.from_record(message["case"])
        if leftovers := worker.leftovers(case):
            send(full=leftovers)
            return
        row, spoiled = worker.run(case)
        flush()
        send(row=row.to_record(), spoiled=spoiled, calibrations=calibrations())
        if spoiled:
            return


def flush() -> None:
    """What has been printed is in the log, if that can be had: a case may have closed what it printed to."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


if __name__ == "__main__":  # where nothing forks it: runner.execute.worker_process.Spawner
    main(int(sys.argv[1]))
