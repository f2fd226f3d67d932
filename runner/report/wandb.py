"""``log=wandb``: Weights & Biases, one run per sweep.

Two child processes do the work, after the last timing: ``runner.report.wandb_record`` records the finished run offline,
where no server can disturb it, and ``wandb sync`` uploads it. Nothing of W&B is imported in this process.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Annotated, Literal

from runner.device import processes

REFUSED = "/\\#?%:"  # W&B takes none of these in a project's name
PROJECT_LENGTH = 128
TAG_LENGTH = 64
STATE = "wandb.json"  # written by the recorder: the folder that W&B recorded in, and why it cannot be uploaded
LOG = "wandb.log"
MARGIN_S = 15.0  # beyond timeout_s, to record on a slow disk
LOCAL = "wandb-local"  # replaces W&B's folders in the home directory; a later ``wandb sync`` reads from it
URL = re.compile(r"https?://\S+/runs/\S+")
REQUEST = re.compile(r'^\w+ "\S+": ')  # precedes some errors of wandb-core
SIGNATURE = re.compile(r"\?\S+")  # the query of an address
GIVEN_UP = re.compile("giving up|failed to log|failed to upload|fatal error")


@dataclass(frozen=True)
class Wandb:
    """Report a run to Weights & Biases. Fields are those of conf/log/wandb.yaml."""

    project: str
    entity: str | None
    group: str | None
    tags: tuple[str, ...]
    mode: Literal["auto", "online", "offline"]
    timeout_s: Annotated[float, "above 0"]

    def __post_init__(self) -> None:
        if not 0 < len(self.project) <= PROJECT_LENGTH or set(self.project) & set(REFUSED):
            allowed = f"1 to {PROJECT_LENGTH} characters without any of {' '.join(REFUSED)}"
            raise ValueError(f"project: {self.project!r} is not allowed; give {allowed}")
        for tag in self.tags:
            if not 0 < len(tag) <= TAG_LENGTH:
                raise ValueError(f"tags: {tag!r} is not allowed; give 1 to {TAG_LENGTH} characters each")

    def publish(self, folder: Path) -> list[str]:
        """Record the run in ``folder``, and upload it unless the user wants otherwise. Raise nothing."""
        if os.environ.get("WANDB_MODE") == "disabled" and self.mode == "auto":
            return ["W&B: off (WANDB_MODE=disabled)"]
        deadline, url = time.monotonic() + self.timeout_s, ""
        try:
            absolute = folder.resolve()
            environment = _environment(absolute, self.timeout_s)
            recorded, why = self._record(absolute, environment)
            if recorded and not (why := self._offline() or why):
                late = f"not uploaded within log.wandb.timeout_s={self.timeout_s:g}"
                url, why = _sync(absolute, Path(recorded), environment, deadline - time.monotonic(), late)
        except Exception as error:  # a failure of W&B must not change the exit code of a run
            recorded, why = None, f"{type(error).__name__}: {error}"
        if not recorded:
            return [f"W&B: not logged ({why}); the results are in {shlex.quote(str(folder))}"]
        if why:
            path = folder / "wandb" / Path(recorded).name
            return [f"W&B: kept offline ({why}); to upload: wandb sync {shlex.quote(str(path))}"]
        return [f"W&B: {url}"]

    def _record(self, folder: Path, environment: Mapping[str, str]) -> tuple[str | None, str]:
        """Return the folder that W&B recorded the run in, if any, and why the run cannot be uploaded or recorded."""
        state = folder / STATE
        state.unlink(missing_ok=True)  # from an earlier session
        module = ["runner.report.wandb_record", str(folder), json.dumps(asdict(self))]
        silent = {"WANDB_SILENT": "true"}  # otherwise wandb.login() asks the server for the user's name
        limit_s = self.timeout_s + MARGIN_S
        with open(folder / LOG, "wb") as log:
            code, stopped = _run(module, log, {**environment, **silent}, limit_s, f"not done within {limit_s:g} s")
        if not state.exists():
            return None, stopped or f"it ended with code {code}, see {LOG}"
        found = json.loads(state.read_text(encoding="utf-8"))
        return found["recorded"], found["why"]

    def _offline(self) -> str:
        """Return which setting forbids the upload; "" if none does."""
        if self.mode == "offline":
            return "log.wandb.mode=offline"
        if self.mode == "auto" and os.environ.get("WANDB_MODE") in ("offline", "dryrun"):
            return f"WANDB_MODE={os.environ['WANDB_MODE']}"
        return ""


def _run(
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


def _sync(folder: Path, recorded: Path, environment: Mapping[str, str], limit_s: float, late: str) -> tuple[str, str]:
    """Upload a recorded run. Return its address, and why the upload failed or "".

    ``wandb sync`` exits with 0 and marks the run as synced even if the server refused parts of it.
    """
    logs = folder / "wandb" / "logs"
    try:
        with tempfile.TemporaryFile(dir=folder) as output:
            _, stopped = _run(["wandb", "sync", str(recorded)], output, environment, limit_s, late)
            output.seek(0)
            printed = SIGNATURE.sub("", output.read().decode(errors="replace"))
        with open(folder / LOG, "a", encoding="utf-8") as log:
            log.write(printed)
        why = stopped or _refused(printed, logs)
    finally:
        shutil.rmtree(logs, ignore_errors=True)  # they hold signed addresses, which let any reader write
    marks = list(recorded.glob("*.wandb.synced"))
    if marks and not why:
        found = URL.search(printed)
        return found.group() if found else f"uploaded {recorded}", ""
    for mark in marks:  # with it, the next ``wandb sync`` would skip the run
        mark.unlink()
    return "", why or f"the upload failed, see {LOG}"


def _refused(printed: str, logs: Path) -> str:
    """Return the first failure of an upload, from its output and, for single files, its logs; "" if there is none."""
    failures = [line.partition(" ERROR ")[2] for line in printed.splitlines() if " ERROR " in line]
    for log in logs.glob("debug-sync*"):
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            if '"level":"ERROR' in line and GIVEN_UP.search(line):
                record = json.loads(line)
                failures.append(f"{record.get('msg', '')} {record.get('error', '')}".strip())
    for failure in sorted(failures, key=lambda text: "while retrying: " not in text):  # these quote the server
        return SIGNATURE.sub("", REQUEST.sub("", failure.rpartition("while retrying: ")[2]))
    return ""


def _environment(folder: Path, timeout_s: float) -> dict[str, str]:
    """Return the environment of W&B's processes: nothing in the home directory, and few retries.

    WANDB_CONFIG_DIR stays, since the user's own server may be named there.
    """
    limits = {"RETRY_MAX": 2, "RETRY_WAIT_MIN_SECONDS": 0.1, "RETRY_WAIT_MAX_SECONDS": 1}
    limits["TIMEOUT_SECONDS"] = timeout_s / 4
    channels = ("GRAPHQL", "FILE_STREAM", "FILE_TRANSFER")
    own = {
        "WANDB_DATA_DIR": str(folder / LOCAL),
        "WANDB_CACHE_DIR": str(folder / LOCAL),
        **processes.environment(),
        "WANDB_DIR": str(folder),
        "WANDB_ERROR_REPORTING": "false",  # crash reports of the client go to a third server
        **{f"WANDB_X_{channel}_{name}": f"{value:g}" for channel in channels for name, value in limits.items()},
    }
    # The mode is settled already. ``wandb sync`` must print the address, even if the user silences W&B elsewhere.
    return {name: value for name, value in own.items() if name not in ("WANDB_MODE", "WANDB_SILENT")}
