"""Processes of the W&B client: recording and uploading."""

from __future__ import annotations

import contextlib
import json
import netrc
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from ...device import processes
from ...findings.kept_files import read_kept
from ...records.redaction import redact

LOG = "wandb.log"
LOCAL = "wandb-local"  # replaces W&B's folders in the home directory; a later ``wandb sync`` reads from it
URL = re.compile(r"https?://\S+/runs/\S+")
REQUEST = re.compile(r'^\w+ "\S+": ')  # precedes some errors of wandb-core
ANSWERED = re.compile(r'"message":("(?:[^"\\]|\\.)*")')  # the server's words in a JSON answer
SIGNATURE = re.compile(r"\?\S+")  # the query of an address
GIVEN_UP = re.compile("giving up|failed to log|failed to upload|fatal error")


def run_module(
    module: list[str], output: IO[bytes], environment: Mapping[str, str], limit_s: float, late: str
) -> tuple[int, str]:
    """Run ``python -m <module>`` to its end or kill it. Return its exit code and why it was killed, ``late`` or "".

    Raises:
        OSError: it cannot be started.

    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", *module],
        stdin=subprocess.DEVNULL,  # on a terminal, the client would ask for a key and wait forever
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )
    try:
        return process.wait(max(0.0, limit_s)), ""
    except subprocess.TimeoutExpired:
        return -1, late
    except KeyboardInterrupt:  # the user does not want to wait; the results are complete
        return -1, "interrupted"
    finally:
        processes.kill_group(process)  # W&B's core has a group of its own, and ends with its parent


def run_silently(module: list[str], folder: Path, environment: Mapping[str, str], limit_s: float, late: str) -> str:
    """Run ``python -m <module>`` like ``run_module``, with its output in a log in ``folder``.

    Return why it failed, with the last line of the log, or "".
    """
    silent = {**environment, "WANDB_SILENT": "true"}  # otherwise wandb.login() asks the server for the user's name
    with open(folder / LOG, "wb") as log:
        code, stopped = run_module(module, log, silent, limit_s, late)
    if stopped or not code:
        return stopped
    *_, last = read_kept(folder / LOG).splitlines() or [""]
    return f"the W&B client ended with code {code}" + (f": {redact(last)}" if last else "")


def sync(
    folder: Path, recorded: Sequence[Path], environment: Mapping[str, str], limit_s: float, late: str
) -> tuple[str, str]:
    """Upload recorded runs. Return the address of the first, and why the upload failed or "".

    ``wandb sync`` exits with 0 and marks the run as synced even if the server refused parts of it.
    """
    logs = folder / "wandb" / "logs"
    try:
        with tempfile.TemporaryFile(dir=folder) as output:
            _, stopped = run_module(["wandb", "sync", *map(str, recorded)], output, environment, limit_s, late)
            output.seek(0)
            printed = SIGNATURE.sub("", output.read().decode(errors="replace"))
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
    return "", reason or f"the upload failed, see {LOG}"


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
    variables = {
        "WANDB_DATA_DIR": str(folder / LOCAL),
        "WANDB_CACHE_DIR": str(folder / LOCAL),
        **processes.environment(),
        "WANDB_DIR": str(folder),
        "WANDB_ERROR_REPORTING": "false",  # crash reports of the client go to a third server
        **{f"WANDB_X_{channel}_{name}": f"{value:g}" for channel in channels for name, value in limits.items()},
    }
    # The mode is settled already. ``wandb sync`` must print the address, even if the user silences W&B elsewhere.
    return {name: value for name, value in variables.items() if name not in ("WANDB_MODE", "WANDB_SILENT")}


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
