"""The worker's end: ``python -m runner.launch.serve <fd> <parent>``. Cases come in, phases and rows go out.

After the cases of one point comes the wish to compare them, and their rounds go out.

The channel is a socket of its own, so that nothing an implementation prints can be taken for a message.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any


def main(channel: Connection) -> None:
    """Serve until the parent goes away, or a case has spoiled this process."""

    def send(**message: Any) -> None:
        channel.send_bytes(json.dumps(message).encode())

    from runner.case import Case
    from runner.hardware import describe
    from runner.worker import Worker, tidy

    tidy()  # before the first case, which would else pay for all that has just been imported
    send(environment=describe())
    worker = Worker(on_phase=lambda phase: send(phase=phase))
    while True:
        try:
            message = json.loads(channel.recv_bytes())
        except EOFError:
            return
        if "case" not in message:
            send(rounds=worker.compare().to_record())
            continue
        row, spoiled = worker.run(Case.from_record(message["case"]))
        sys.stdout.flush()
        sys.stderr.flush()
        send(row=row.to_record(), spoiled=spoiled)
        if spoiled:
            return


def end_with_parent(parent: int) -> None:
    """Linux: whatever kills the parent kills this process as well, even in the middle of an endless kernel."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before this process asked
        sys.exit(1)


if __name__ == "__main__":
    end_with_parent(int(sys.argv[2]))
    main(Connection(int(sys.argv[1])))
