"""Plan: all cases of a run, and what to do with their rows."""

import re
from dataclasses import dataclass
from typing import Literal

from .case import CaseRecord, Choice
from .row import Status

Part = Literal["sources", "versions", "device", "measure"]  # parts of the fingerprint of a row
LOCAL = Choice("local", {})  # the launcher
NAME = re.compile(r"\w[\w.+-]{0,99}")  # name of a run
OUTPUTS = "outputs"  # where runs are, unless ``output_dir`` says otherwise
NAME_RULE = "it names a folder, so give letters, digits and . _ + -, 100 at most"


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Which rows of an earlier run still count: the fields of ``resume`` in config.yaml."""

    of: str | None = None  # the run's folder, or "last"; None: a new run
    retry: tuple[Status, ...] = ()  # statuses that do not count
    ignore: tuple[Part, ...] = ()  # what may have changed since
    trust: bool = False  # resume also in a folder that others can write to


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All cases of a run, validated, and what to do with their rows."""

    cases: tuple[CaseRecord, ...]  # the cases of one problem stand together
    name: str  # names the run's folder
    baseline: str | None = None  # label of what speed-ups are against; None: torch, else the first correct
    output_dir: str = ""
    launcher: Choice = LOCAL
    log: tuple[Choice, ...] = ()  # reporters beside the terminal and rows.csv
    columns: tuple[str, ...] = ()  # shown on the terminal; empty: the usual ones
    question: str | None = None  # that the run answers
    conclusion: tuple[Choice, ...] = ()  # analyses of runner.findings.analyses that answer it
    resume: Resume = Resume()
    whole: bool = False  # the cases are those of the folder that is resumed
