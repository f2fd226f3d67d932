"""The worker's side of its channel: cases come in, phases and rows go out.

A message is a line of JSON. The first one names the device to measure on, if there is one. After the cases of a
problem, the parent asks for their comparison. The channel is a socket of its own, so that output of an implementation
cannot be taken for a message.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import orjson

from runner.device import identity
from runner.experiment.case import CaseRecord


def main(descriptor: int) -> None:
    """Serve until the parent closes the channel, or a case has spoiled this process."""
    # Inductor loads compiled code from its cache: by default from a folder of /tmp that another user may have made.
    if not (private := identity.cache_folder("inductor")).is_relative_to(os.devnull):
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(private))
    from runner.worker import Worker, calibrations, recall, tidy, warm_up

    channel = socket.socket(fileno=descriptor)
    messages = channel.makefile("rb")

    def send(**message: Any) -> None:
        channel.sendall(orjson.dumps(message) + b"\n")

    with contextlib.suppress(OSError):  # out of memory, Linux kills a worker before its parents
        Path("/proc/self/oom_score_adj").write_text("800")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # the parent sends it before it kills a late worker, to see the stack
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump of a process with a GPU has many GiB
    settings = orjson.loads(messages.readline())
    if device := settings["begin"]:
        warm_up(device, settings["like"] and CaseRecord.from_record(settings["like"]))
    tidy()  # otherwise the first case pays for all that has just been imported
    send(environment=identity.describe())
    worker = Worker(lambda phase: send(phase=phase), Path(settings["files"]))
    while True:
        try:
            message = orjson.loads(messages.readline())
        except (ValueError, OSError):  # the channel ended, perhaps amid a message
            return
        if "recall" in message:
            recall(message["recall"])
        elif "prepare" in message:
            send(prepared=worker.prepare(CaseRecord.from_record(message["prepare"])))
        elif "case" not in message:
            send(rounds=worker.compare().to_record())
        else:
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
    """Write what was printed to the log, unless a case has closed the streams."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


if __name__ == "__main__":  # where nothing forks workers: runner.execute.worker_process.Spawner
    main(int(sys.argv[1]))
