"""Processes of the W&B client: recording and uploading."""

import contextlib
import json
import netrc
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...device import processes, tools
from ...device.tools import Ended
from ...records.redaction import redact

LOG = "wandb.log"
LOCAL = "wandb-local"  # replaces W&B's folders in the home directory; a later ``wandb sync`` reads from it
URL = re.compile(r"https?://\S+/runs/\S+")
REQUEST = re.compile(r'^\w+ "\S+": ')  # precedes some errors of wandb-core
ANSWERED = re.compile(r'"message":("(?:[^"\\]|\\.)*")')  # the server's words in a JSON answer
SIGNATURE = re.compile(r"\?\S+")  # the query of an address
GIVEN_UP = re.compile("giving up|failed to log|failed to upload|fatal error")


def run_module(
    module: Sequence[str], log: Path, environment: Mapping[str, str], limit_s: float, late: str
) -> tuple[Ended, str]:
    """Run ``python -m <module>`` with its output in ``log``. Return its end, and why it was killed, ``late`` or "".

    Raises:
        OSError: it cannot be started.

    """
    command = [sys.executable, "-P", "-m", *module]
    try:
        ended = tools.run_tool(command, log, max(0.0, limit_s), environment, grace_s=0.0)
    except KeyboardInterrupt:  # the user does not want to wait; the results are complete
        return Ended(-1, ""), "interrupted"
    return ended, late if ended.timed_out else ""


def run_silently(module: Sequence[str], folder: Path, environment: Mapping[str, str], limit_s: float, late: str) -> str:
    """Run ``python -m <module>`` with its output in a log in ``folder``. Return why it failed, or "".

    Raises OSError as ``run_module``.
    """
    silent = {**environment, "WANDB_SILENT": "true"}  # otherwise wandb.login() asks the server for the user's name
    ended, stopped = run_module(module, folder / LOG, silent, limit_s, late)
    return stopped if stopped or not ended.code else _end(ended)


def _end(ended: Ended) -> str:
    """Return how the client ended, with the last line that it printed."""
    *_, last = ended.output.splitlines() or [""]
    return f"the W&B client {processes.ending(ended.code)}" + (f": {redact(last)}" if last else "")


def sync(
    folder: Path, recorded: Sequence[Path], environment: Mapping[str, str], limit_s: float, late: str
) -> tuple[str, str]:
    """Upload recorded runs. Return the address of the first, and why the upload failed or "".

    ``wandb sync`` exits with 0 and marks the run as synced even if the server refused parts of it.
    """
    logs = folder / "wandb" / "logs"
    try:
        with tempfile.TemporaryDirectory() as place:  # the output has signed addresses too
            command = ["wandb", "sync", *map(str, recorded)]
            ended, stopped = run_module(command, Path(place) / LOG, environment, limit_s, late)
        printed = SIGNATURE.sub("", ended.output)
        with open(folder / LOG, "a", encoding="utf-8") as log:
            log.write(printed)
        reason = stopped or _refused(printed, logs)
    finally:
        shutil.rmtree(logs, ignore_errors=True)  # they hold signed addresses, which let any reader write
    marks = [mark for path in recorded for mark in path.glob("*.wandb.synced")]
    if len(marks) == len(recorded) and not reason:
        url = URL.search(printed)
        return url.group() if url else f"uploaded {recorded[0]}", ""
    for mark in marks:  # with it, the next ``wandb sync`` would skip the run
        mark.unlink()
    return "", reason or _end(ended)


def _refused(printed: str, logs: Path) -> str:
    """Return the first failure of an upload, from its output and, for single files, its logs; "" if there is none."""
    failures = [line.partition(" ERROR ")[2] for line in printed.splitlines() if " ERROR " in line]
    for log in logs.glob("debug-sync*"):
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            if '"level":"ERROR' in line and GIVEN_UP.search(line):
                record = json.loads(line)
                failures.append(f"{record.get('msg', '')} {record.get('error', '')}".strip())
    for failure in sorted(failures, key=lambda text: "while retrying: " not in text):  # these quote the server
        if answered := ANSWERED.search(failure):
            return str(json.loads(answered[1]))
        return SIGNATURE.sub("", REQUEST.sub("", failure.rpartition("while retrying: ")[2]))
    return ""


def client_environment(folder: Path, timeout_s: float) -> dict[str, str]:
    """Return the environment of W&B's processes: nothing in the home directory, and few retries.

    WANDB_CONFIG_DIR stays, since the user's own server may be named there.
    """
    limits = {"RETRY_MAX": 2, "RETRY_WAIT_MIN_SECONDS": 0.1, "RETRY_WAIT_MAX_SECONDS": 1}
    limits["TIMEOUT_SECONDS"] = timeout_s / 4
    channels = ("GRAPHQL", "FILE_STREAM", "FILE_TRANSFER")
    return {
        "WANDB_DATA_DIR": str(folder / LOCAL),
        "WANDB_CACHE_DIR": str(folder / LOCAL),
        **processes.environment(),
        # The mode is settled already. ``wandb sync`` must print the address, even if the user silences W&B elsewhere.
        "WANDB_MODE": "online",
        "WANDB_SILENT": "false",
        "WANDB_DIR": str(folder),
        "WANDB_ERROR_REPORTING": "false",  # crash reports of the client go to a third server
        **{f"WANDB_X_{channel}_{name}": f"{value:g}" for channel in channels for name, value in limits.items()},
    }


NO_KEY = "no API key"


def may_have_key() -> bool:
    """Return whether there may be an API key. Only the client knows of which server; it is asked in a child process."""
    if any(os.environ.get(name) for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")):
        return True
    named = os.environ.get("NETRC")
    for path in (named,) if named else ("~/.netrc", "~/_netrc"):
        with contextlib.suppress(OSError, netrc.NetrcParseError):
            return bool(netrc.netrc(os.path.expanduser(path)).hosts)
    return False
