"""``log=wandb``: Weights & Biases, one run per sweep."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from runner.device import processes

REFUSED = "/\\#?%:"  # W&B takes none of these in a project's name
PROJECT_LENGTH = 128
TAG_LENGTH = 64
STATE = "wandb.json"
MARGIN_S = 15.0  # beyond timeout_s, to record on a slow disk and to say how the upload ended


@dataclass(frozen=True)
class State:
    """How far the child came. ``recorded``: W&B's folder; ``url``: once uploaded; ``why``: what stopped it."""

    recorded: str | None = None
    url: str | None = None
    why: str = ""

    def write(self, folder: Path) -> None:
        """Replaces ``<folder>/wandb.json`` at once, for the parent may read it at any time."""
        new = folder / f"{STATE}.new"
        new.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")
        new.replace(folder / STATE)

    @classmethod
    def read(cls, folder: Path) -> State:
        """What the child wrote last; an empty State if it wrote nothing."""
        try:
            return cls(**json.loads((folder / STATE).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return cls()


@dataclass(frozen=True)
class Wandb:
    """Fields are those of conf/log/wandb.yaml. Nothing of W&B is imported in this process."""

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
        """Log the finished run in ``folder``; gives what to tell the user, a line each. Raises nothing.

        It is called when the last case has been timed and not before: no process of W&B runs beside a timing.
        All of it happens in a child process; the upload ends after ``timeout_s``, and the child soon after.
        """
        try:
            folder = folder.resolve()
            if os.environ.get("WANDB_MODE") == "disabled" and self.mode == "auto":
                return ["W&B: off (WANDB_MODE=disabled)"]
            return [self._publish(folder)]
        except Exception as error:  # of a logger, no failure is worth the exit code of a sweep
            return [_not_logged(f"{type(error).__name__}: {error}", folder)]

    def _publish(self, folder: Path) -> str:
        """The one line for the user."""
        State().write(folder)  # of this call, not of an earlier one
        end = _child(folder, {**asdict(self), "offline": self._offline()}, self.timeout_s + MARGIN_S)
        state = State.read(folder)
        if state.url:
            return f"W&B: {state.url}"
        if state.recorded:
            return f"W&B: kept offline ({end or state.why}); to upload: wandb sync {_pasted(Path(state.recorded))}"
        return _not_logged(state.why or end or "no run was recorded", folder)

    def _offline(self) -> str:
        """Why the run is not to be uploaded; empty if it is, should there be an API key."""
        if self.mode == "offline":
            return "log.wandb.mode=offline"
        if self.mode == "auto" and os.environ.get("WANDB_MODE") in ("offline", "dryrun"):
            return f"WANDB_MODE={os.environ['WANDB_MODE']}"
        return ""


def _child(folder: Path, settings: dict[str, object], limit_s: float) -> str:
    """Run ``runner.report.wandb_upload`` to its end, or kill it; says how it ended, empty if well. Raises OSError."""
    environment = processes.environment()
    environment.pop("WANDB_MODE", None)  # settled already
    with open(folder / "wandb.log", "wb") as log:
        upload = subprocess.Popen(
            [sys.executable, "-P", "-m", "runner.report.wandb_upload", str(folder), json.dumps(settings)],
            stdin=subprocess.DEVNULL,  # the client asks for a key where it sees a terminal, and waits for ever
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    try:
        code = upload.wait(limit_s)
    except subprocess.TimeoutExpired:
        return f"not done within {limit_s:g} s"
    except KeyboardInterrupt:  # the user will not wait for the upload; the run itself is over, and stands
        return "interrupted"
    finally:
        processes.kill_group(upload)  # W&B's core has a group of its own, and ends when its parent has
    return f"it ended with code {code}, see {folder / 'wandb.log'}" if code else ""


def _pasted(path: Path) -> str:
    """``path`` as short as it can be pasted into the shell this was started from."""
    try:
        here = Path.cwd()
    except OSError:  # it has been removed meanwhile
        return shlex.quote(str(path))
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


def _not_logged(why: str, folder: Path) -> str:
    return f"W&B: not logged ({why}); the results are in {_pasted(folder)}"
