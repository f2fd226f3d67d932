"""The child process of ``log=wandb``: records a finished run offline, then uploads it if it may.

    python -m runner.report.wandb_upload <folder> <the Wandb fields as JSON>

Recording needs no server, so no server can spoil it; uploading is ``wandb sync`` in a process of its own, which
may be killed at any moment. How far it came stands in ``<folder>/wandb.json`` after each step.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.report.wandb import TAG_LENGTH, State
from runner.report.wandb_content import FIGURES, Content, kept, tables
from runner.store import journal

if TYPE_CHECKING:
    from collections.abc import Sequence

    import wandb

    from runner.experiment.results import Row

LOCAL = "wandb-local"  # what W&B would else keep in the home directory; an upload at a later time reads from it
NAME_LENGTH = 128
URL = re.compile(r"https?://\S+/runs/\S+")
REQUEST = re.compile(r'^\w+ "\S+": ')  # stands before some errors of wandb-core
SIGNATURE = re.compile(r"\?\S+")  # the query of an address
GIVEN_UP = re.compile("giving up|failed to log|failed to upload|fatal error")

QUIET: dict[str, Any] = {  # W&B adds nothing of its own finding, and prints nothing
    "silent": True,
    "console": "off",
    "save_code": False,
    "disable_git": True,
    "disable_code": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
}


def main(folder: Path, settings: dict[str, Any]) -> None:
    """Records the run in ``folder``; uploads it unless ``settings["offline"]`` says why not."""
    deadline = time.monotonic() + settings["timeout_s"]
    os.environ.update(_surroundings(folder, settings["timeout_s"]))
    try:
        import wandb
    except ImportError as error:
        State(why=f"wandb cannot be imported: {error}").write(folder)
        return
    recorded = record(folder, settings)
    wandb.teardown()
    why = settings["offline"] or _no_credentials()
    State(recorded, why=why or "the upload did not end").write(folder)
    if why:
        return
    try:
        sync(folder, recorded, deadline - time.monotonic()).write(folder)
    except subprocess.TimeoutExpired:
        State(recorded, why=f"not uploaded within log.wandb.timeout_s={settings['timeout_s']:g}").write(folder)


def record(folder: Path, settings: dict[str, Any]) -> str:
    """One offline W&B run of all rows in ``folder``; gives the folder W&B keeps it in.

    Raises:
        wandb.Error, OSError: it cannot be written.

    """
    import wandb
    import yaml

    with open(folder / "configs.yaml", encoding="utf-8") as file:
        plan = next(yaml.safe_load_all(file))
    environment = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    content = Content(journal.read(folder), plan["baseline"], journal.read_rounds(folder))
    tags = dict.fromkeys(tag[:TAG_LENGTH] for tag in [*settings["tags"], *content.workloads, *content.impls])
    run = wandb.init(
        mode="offline",
        dir=str(folder),
        project=settings["project"],
        entity=settings["entity"],
        group=settings["group"],
        name=f"{folder.parent.name}/{folder.name}"[:NAME_LENGTH],  # <date>/<time>-<name>: where the results are
        job_type="sweep",
        tags=list(tags),
        config=content.config(plan, environment),
        settings=wandb.Settings(**QUIET),
    )
    _log(run, content)
    _keep(run, folder, content.rows)
    recorded = str(Path(run.settings.sync_dir))
    run.finish(exit_code=1 if any(row.failed for row in content.rows) else 0)
    return recorded


def _log(run: wandb.Run, content: Content) -> None:
    """The table and charts in the first step, then the problems of each workload's charts by size."""
    import wandb

    table = content.table()
    wandb.Table.MAX_ROWS = max(wandb.Table.MAX_ROWS, len(table.data))  # longer ones are cut without an error
    page: dict[str, Any] = {"rows": wandb.Table(columns=[*table.columns], data=[*table.data])}
    for workload in content.workloads:
        charts = content.charts(workload)
        for figure, chart in charts.items():
            problems = [tuple(zip(*some, strict=True)) for some in chart.series.values()]
            page[f"charts/{workload}/{figure}"] = wandb.plot.line_series(
                xs=[list(xs) for xs, _ in problems],
                ys=[list(ys) for _, ys in problems],
                keys=list(chart.series),
                title=chart.title,
                xname=chart.x,
            )
        for chart in list(charts.values())[:1]:
            x = f"{workload}/{chart.x}"
            run.define_metric(x, summary="none", hidden=True)
            for figure in FIGURES:  # summary: the last size says nothing of the sweep
                run.define_metric(f"{workload}/{figure}/*", step_metric=x, step_sync=False, summary="none")
    run.log(page)
    for workload in content.workloads:
        for record in content.history(workload):
            run.log(record)
    run.summary.update(content.summary())


def _keep(run: wandb.Run, folder: Path, rows: Sequence[Row]) -> None:
    """What measurements have kept: an artifact of all files, and tables of what is one."""
    import wandb

    if not (files := kept(folder, rows)):
        return
    artifact = wandb.Artifact(f"files-{run.id}", type="measurements")
    for file in files:
        artifact.add_file(str(folder / file), name=file)
    run.log_artifact(artifact)
    drawn = tables(folder, rows)
    run.log({name: wandb.Table(columns=[*table.columns], data=[*table.data]) for name, table in drawn.items()})


def sync(folder: Path, recorded: str, limit_s: float) -> State:
    """``wandb sync`` of what was recorded, which exits with 0 and marks the run as synced even if parts were refused.

    Raises subprocess.TimeoutExpired if it had to be killed; nothing is lost by that.
    """
    logs = folder / "wandb" / "logs"
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "wandb", "sync", recorded],
            env={name: value for name, value in os.environ.items() if name != "WANDB_SILENT"},  # it prints the URL
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=max(0.0, limit_s),
        )
        print(SIGNATURE.sub("", done.stdout), flush=True)
        refused = _refused(done.stdout, logs)
    finally:
        shutil.rmtree(logs, ignore_errors=True)  # for there stand signed addresses, good for whoever reads them
    marks = list(Path(recorded).glob("*.wandb.synced"))
    if marks and not refused:
        found = URL.search(done.stdout)
        return State(recorded, url=found.group() if found else f"uploaded {recorded}")
    for mark in marks:  # with it, the next `wandb sync` would skip the run
        mark.unlink()
    return State(recorded, why=refused or "the upload failed without saying why")


def _refused(printed: str, logs: Path) -> str:
    """The first failure of an upload, from what it printed and, for single files, logged; empty if there is none."""
    failures = [line.partition(" ERROR ")[2] for line in printed.splitlines() if " ERROR " in line]
    for log in logs.glob("debug-sync*"):
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            if '"level":"ERROR' in line and GIVEN_UP.search(line):
                record = json.loads(line)
                failures.append(f"{record.get('msg', '')} {record.get('error', '')}".strip())
    for failure in sorted(failures, key=lambda text: "while retrying: " not in text):  # those say what came back
        return SIGNATURE.sub("", REQUEST.sub("", failure.rpartition("while retrying: ")[2]))
    return ""


def _no_credentials() -> str:
    """Why W&B cannot be asked; empty if it can. Sends nothing: whether the key is right, only the upload will tell."""
    import wandb

    try:
        known = wandb.login(prompt=False, verify=False)
    except wandb.Error as error:
        return str(error)
    return "" if known else "no API key"


def _surroundings(folder: Path, timeout_s: float) -> dict[str, str]:
    """Environment of everything W&B starts: silent, out of the home directory, and quick to give up.

    WANDB_CONFIG_DIR stays as it is: the user's own server may be named there.
    """
    limits: dict[str, float] = {}
    for channel in ("GRAPHQL", "FILE_STREAM", "FILE_TRANSFER"):
        limits |= {f"{channel}_RETRY_MAX": 2, f"{channel}_RETRY_WAIT_MIN_SECONDS": 0.1}
        limits |= {f"{channel}_RETRY_WAIT_MAX_SECONDS": 1, f"{channel}_TIMEOUT_SECONDS": timeout_s / 4}
    own = {
        "WANDB_DIR": str(folder),
        "WANDB_DATA_DIR": os.environ.get("WANDB_DATA_DIR", str(folder / LOCAL)),
        "WANDB_CACHE_DIR": os.environ.get("WANDB_CACHE_DIR", str(folder / LOCAL)),
        "WANDB_SILENT": "true",  # else login() asks the server for the user's name
        "WANDB_ERROR_REPORTING": "false",  # crash reports of the client, to a third server
    }
    return own | {f"WANDB_X_{name}": f"{value:g}" for name, value in limits.items()}


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
