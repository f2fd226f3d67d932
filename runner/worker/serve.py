"""The worker's side of its channel: cases come in, phases and rows go out.

A message is a line of JSON. The first message names the device to measure on, if any. After the cases of a problem,
the parent requests their paired rounds. The channel is a separate socket, so that output of an implementation cannot be
taken for a message.
"""

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

from ..device import cache, identity, import_path
from ..records.case import CaseRecord


def main(descriptor: int) -> None:
    """Serve until the parent closes the channel, or a case has spoiled this process."""
    # Inductor loads compiled code from its cache: by default from a folder of /tmp that another user may have made.
    if not (private := cache.cache_folder("inductor")).is_relative_to(os.devnull):
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(private))
    import_path.arrange_here()
    del sys.argv[1:]  # a script of the user's may read it
    from ..timing import ranks
    from ..timing.instrument import calibrations
    from . import Worker, tidy, warm_up_process

    channel = socket.socket(fileno=descriptor)
    messages = channel.makefile("rb")

    def send(**message: Any) -> None:
        channel.sendall(orjson.dumps(message) + b"\n")

    with contextlib.suppress(OSError):  # when memory is short, Linux kills a worker before its parents
        Path("/proc/self/oom_score_adj").write_text("800")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # the parent sends it to a late worker before it kills it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump of a process with a GPU has many GiB
    settings = orjson.loads(messages.readline())
    if place := settings["place"]:
        path, rank, count = place
        ranks.join(path, rank, count, settings["begin"])
    if device := settings["begin"]:
        warm_up_process(device, settings["like"] and CaseRecord.from_record(settings["like"]))
    tidy()  # otherwise the first case would collect the garbage of all imports
    send(environment=identity.describe())
    worker = Worker(lambda phase: send(phase=phase), Path(settings["files"]))
    while True:
        try:
            message = orjson.loads(messages.readline())
        except (ValueError, OSError):  # the channel ended, perhaps within a message
            return
        if "recall" in message:
            calibrations.update(message["recall"])
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
            send(row=row.to_record(), spoiled=spoiled, calibrations=calibrations)
            if spoiled:
                return


def flush() -> None:
    """Flush the output to the log, unless a case has closed the streams."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


if __name__ == "__main__":  # started by runner.execute.spawn.Spawner
    main(int(sys.argv[1]))
