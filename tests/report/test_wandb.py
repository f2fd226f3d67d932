"""``log=wandb``: what is recorded, and that no server, key or client can spoil a run or hold it up."""

import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from runner.device import processes
from runner.findings.lines import derive_lines
from runner.records.row import Row
from runner.report import wandb
from runner.report.wandb import Wandb
from runner.report.wandb.client import sync
from runner.report.wandb.state import read_state
from runner.store import journal, run_folder

KEY = "0123456789abcdef" * 3
SECRET = "chocolate-chip"
LONG = partial(pytest.param, marks=pytest.mark.long)
LOG = Wandb(
    project="kernel-runner",
    entity=None,
    group="nightly",
    per="sweep",
    job_type=None,
    tags=("h100", "h100"),
    notes=None,
    mode="auto",
    timeout_s=30.0,
)
OFFLINE = replace(LOG, mode="offline")


def kept(lines, folder):
    """Why the run was kept offline, and the folder to upload, as the one line says."""
    (line,) = lines
    why, _, command = line.removeprefix("W&B: kept offline (").partition("); to upload: wandb sync ")
    (path,) = shlex.split(command)
    assert Path(path).resolve().parent == folder / "wandb"
    return why, Path(path)


@pytest.fixture(scope="module")
def offline(made, read_wandb, tmp_path_factory):
    """A run published without a key, from the folder that ``outputs`` is in: (folder, lines, what was recorded)."""
    top = tmp_path_factory.mktemp("offline")
    with pytest.MonkeyPatch.context() as patch:
        made.isolate(patch, top / "home")
        patch.chdir(top)
        folder = made.finished(top / "outputs" / "2025-01-31" / "10-11-12-both", made.sweep())
        patch.setenv("LAB_COOKIE", SECRET)
        lines = replace(OFFLINE, tags=(*OFFLINE.tags, f"of {SECRET}")).publish(folder.relative_to(top))
        _, path = kept(lines, folder)
        yield folder, lines, read_wandb(path.resolve())


# What is recorded


def test_an_offline_run_is_kept_and_the_line_can_be_pasted(offline):
    _, lines, recorded = offline
    path = f"outputs/2025-01-31/10-11-12-both/wandb/{recorded.folder.name}"
    assert lines == [f"W&B: kept offline (log.wandb.mode=offline); to upload: wandb sync {path}"]


def test_without_a_key_nothing_is_recorded_and_one_line_says_how_to_share_the_run(folder, home, monkeypatch):
    before = sorted(folder.iterdir())
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    share = f"to share this run: wandb login, then python -m runner report wandb {folder}"
    assert LOG.publish(folder) == [f"W&B: not logged (no API key); {share}"]
    assert sorted(folder.iterdir()) == before


def test_a_netrc_for_other_servers_is_no_key(folder, home):
    (home / ".netrc").write_text(f"machine example.org\n  login user\n  password {KEY}\n")
    (line,) = LOG.publish(folder)
    assert line.startswith("W&B: not logged (no API key); to share this run: wandb login, then")
    assert not (folder / "wandb").exists()
    assert_no_secret(folder)


def test_the_table_holds_every_row_of_the_journal(offline):
    folder, _, recorded = offline
    table = recorded.table(recorded.history[0]["rows"])
    fields = [f"workload.{name}" for name in ("rows", "cols", "dtype", "tf32", "size")]
    assert table["columns"][:7] == ["workload", *fields, "impl"]
    shown = {line["key"]: line for line in (dict(zip(table["columns"], cells, strict=True)) for cells in table["data"])}
    rows = journal.read_rows(folder)
    assert len(rows) == len(table["data"]) == len(shown) == 18
    for line in derive_lines(rows, None):
        row = line.row
        seen = shown[row.case.key]
        name = row.case.impl.name
        assert (seen["workload"], seen["impl"], seen["implementation"]) == (row.case.workload.name, name, name)
        assert (seen["status"], seen["reason"], seen["device"]) == (row.status, row.reason, row.device)
        assert seen["fastest"] == line.fastest
        figures = {"time_us": row.time_us, "tflops": line.tflops, "gbps": line.gbps, "speedup": line.speedup}
        expected = dict.fromkeys(fields) | row.metrics | figures
        expected |= {f"workload.{name}": value for name, value in row.case.workload.fields.items()}
        for name, value in expected.items():
            if isinstance(value, float) and not math.isfinite(value):
                value = None
            assert seen[name] == value, f"{row.case.label}: {name}"
        absent = set(table["columns"]) - set(expected) - {"workload", "impl", "implementation", "key", "seed", "phase"}
        others = {"status", "reason", "verdict", "device", "fastest", "replicas", "err_ratio"}
        others |= {"speedup_low", "speedup_high", "vs_baseline", "paired"}
        assert {n for n in absent if seen[n] is not None} <= others


def test_a_column_has_one_type(offline):
    _, _, recorded = offline
    table = recorded.table(recorded.history[0]["rows"])
    for name, *cells in zip(table["columns"], *table["data"], strict=True):
        kinds = {bool if isinstance(c, bool) else str if isinstance(c, str) else float for c in cells if c is not None}
        assert len(kinds) <= 1, name


def test_charts_have_one_line_per_implementation_against_the_swept_size(offline):
    folder, _, recorded = offline
    charts = {key.removesuffix("_table"): value for key, value in recorded.history[0].items() if "charts/" in key}
    figures = ("time_us", "speedup", "tflops", "gbps")
    assert set(charts) == {f"charts/{w}/{f}" for w in ("gelu", "matmul") for f in figures}  # no roofline of a CPU
    expected = {  # the wrong result is a line of its own; what was not timed is no problem
        "naive": [(256, 768.0), (4096, 12288.0)],
        "naive (wrong)": [(1000, 3000.0)],
        "torch": [(256, 256.0), (1000, 1000.0), (4096, 4096.0)],
        "compiled": [(256, 128.0), (1000, 500.0), (4096, 2048.0)],
    }
    assert series(recorded.table(charts["charts/gelu/time_us"])) == expected
    assert series(recorded.table(charts["charts/matmul/time_us"]))["compiled"] == [(64, 128.0)]
    faster = series(recorded.table(charts["charts/gelu/speedup"]))
    assert {label: [x for x, _ in points] for label, points in faster.items()} == {
        "naive": [256, 4096],
        "compiled": [256, 1000, 4096],
    }
    assert [y for _, y in faster["compiled"]] == pytest.approx([2.0, 2.0, 2.0])
    for line in derive_lines(journal.read_rows(folder), None):
        if line.row.case.workload.name == "gelu" and line.row.status == "ok":
            x, label = line.row.case.workload.fields["cols"], line.row.case.impl.name
            assert (x, line.gbps) in series(recorded.table(charts["charts/gelu/gbps"]))[label]
            assert (x, line.tflops) in series(recorded.table(charts["charts/gelu/tflops"]))[label]
    panel = recorded.config["_wandb"]["visualize"]["charts/gelu/time_us"]["panel_config"]
    assert panel["panelDefId"] == "wandb/lineseries/v0"
    assert panel["stringSettings"] == {
        "title": "gelu: time (us) (rows=8, dtype=float32, tf32=false)",
        "xname": "cols",
    }


def series(table):
    assert table["columns"] == ["step", "lineKey", "lineVal"]
    lines = {}
    for x, label, y in table["data"]:
        lines.setdefault(label, []).append((x, y))
    return lines


def test_history_has_one_step_per_size_for_overlays_across_runs(offline):
    _, _, recorded = offline
    steps = [step for step in recorded.history if "gelu/cols" in step]
    assert [step["gelu/cols"] for step in steps] == [256, 1000, 4096]
    assert [step.get("gelu/time_us/naive") for step in steps] == [768.0, None, 12288.0]
    assert [step["gelu/time_us/compiled"] for step in steps] == [128.0, 500.0, 2048.0]


def test_summary_says_who_is_fastest_where_and_by_how_much(offline):
    _, _, recorded = offline
    said = recorded.summary
    assert (said["gelu/cols=1000/fastest"], said["gelu/cols=1000/fastest_us"]) == ("compiled", 500.0)
    assert said["gelu/cols=1000/speedup/compiled"] == pytest.approx(2.0)
    assert "gelu/cols=1000/speedup/naive" not in said  # it is wrong there
    assert (said["matmul/size=128/fastest"], said["matmul/size=128/speedup/naive"]) == ("torch", pytest.approx(0.25))
    cases = {key: value for key, value in said.items() if key.startswith("cases/")}
    assert cases == {
        "cases/total": 18,
        "cases/ok": 15,
        "cases/wrong": 1,
        "cases/error": 1,
        "cases/unsupported": 1,
        "cases/failed": 2,
    }


def test_config_is_a_plain_mapping_of_run_machine_and_grid(offline):
    _, _, recorded = offline
    config = recorded.config
    assert config["run"]["name"] == "both"
    assert config["environment"] == {"command": "python -m runner", "gpu": None}
    assert (config["device"], config["commit"]) == ("cpu", None)
    assert config["workloads"]["matmul"]["axes"] == {"size": [64, 1024, 128]}
    assert config["workloads"]["gelu"]["constants"] == {"rows": 8, "dtype": "float32", "tf32": False}
    assert config["cases"] == {"total": 18, "ok": 15, "wrong": 1, "error": 1, "unsupported": 1}


def test_the_run_is_named_as_its_folder_and_found_by_what_it_compares(offline):
    _, _, recorded = offline
    run = recorded.run
    assert (run.project, run.run_group, run.job_type) == ("kernel-runner", "nightly", "sweep")
    assert run.display_name == "2025-01-31/10-11-12-both"
    assert sorted(run.tags) == ["compiled", "gelu", "h100", "matmul", "naive", "of <redacted>", "torch"]
    assert SECRET not in repr(recorded)
    assert recorded.exit_code == 1  # two cases failed


def test_the_notes_are_the_conclusion(offline):
    _, _, recorded = offline
    assert recorded.run.notes.startswith("gelu: compiled is the fastest at 3 of 3 problems.")
    assert "ValueError: no" in recorded.run.notes


def test_the_results_are_an_artifact(offline, records):
    _, _, recorded = offline
    (path,) = recorded.folder.glob("*.wandb")
    found = [one.artifact for one in records(path) if one.WhichOneof("record_type") == "artifact"]
    (results,) = [one for one in found if one.type == "results"]
    names = {"rows.jsonl", "plan.jsonl", "configs.yaml", "environment.json"}  # rows.csv and table.md: not made here
    assert {entry.path for entry in results.manifest.contents} == names


def test_the_certificate_is_the_one_that_the_run_names(tmp_path, monkeypatch):
    from runner.report.wandb.record import (
        certificate_file,  # imports W&B: 0.6 s of each process that collects tests
    )

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = tmp_path / "kernel-runner" / "certificate"
    place.mkdir(parents=True)
    for name, taken in (("a", "2025-01-01"), ("b", "2025-01-02")):
        (place / f"{name}.json").write_text(json.dumps({"taken": taken}))
    assert certificate_file({"worker": {"certificate": {"taken": "2025-01-02"}}}) == place / "b.json"
    assert certificate_file({"worker": {"certificate": {"taken": "2025-01-03"}}}) is None
    assert certificate_file({"worker": {"certificate": None}}) is None
    assert certificate_file({}) is None


def test_each_case_can_be_a_run_of_its_own(made, home, read_wandb, tmp_path):
    rows = [made.timed(made.case("gelu", name, {"cols": 8}), us) for name, us in (("naive", 6.0), ("torch", 3.0))]
    folder = made.finished(tmp_path / "2025-01-31" / "10-11-12-gelu", rows)
    settings = replace(OFFLINE, per="case", group=None, notes="mine", job_type="nightly")
    (line,) = settings.publish(folder)
    assert line.startswith("W&B: kept offline (log.wandb.mode=offline); to upload: wandb sync ")
    found = [read_wandb(Path(path)) for path in shlex.split(line.partition("wandb sync ")[2])]
    assert [one.run.display_name for one in found] == ["gelu naive", "gelu torch"]
    assert {one.run.run_group for one in found} == {"2025-01-31/10-11-12-gelu"}
    assert {(one.run.job_type, one.run.notes) for one in found} == {("nightly", "mine")}
    assert [one.run.run_id.partition("-")[2] for one in found] == [row.case.key for row in rows]
    assert [one.summary["speedup"] for one in found] == pytest.approx([0.5, 1.0])
    assert [one.summary["time_us"] for one in found] == [6.0, 3.0]
    assert [one.config["impl"]["name"] for one in found] == ["naive", "torch"]
    assert {one.config["problem"] for one in found} == {"gelu"}


def test_nothing_is_left_outside_the_folder_and_nothing_said_of_the_machine(offline):
    folder, _, recorded = offline
    top = folder.parents[2]
    assert list((top / "home").iterdir()) == []
    assert {path.name for path in top.iterdir()} == {"home", "outputs"}
    files = {path.relative_to(recorded.folder / "files").parts[0] for path in (recorded.folder / "files").rglob("*")}
    assert files == {"media"}  # no requirements.txt, no metadata, no console log


def test_a_copy_of_the_folder_can_be_resumed(offline, tmp_path):
    folder, *_ = offline
    copy = shutil.copytree(folder, tmp_path / "copy", symlinks=True)
    assert run_folder.find(str(copy), "", None) == copy


@pytest.mark.long
def test_more_rows_than_wandb_tables_hold_are_all_there(made, home, read_wandb, tmp_path):
    rows = [made.timed(made.case("gelu", "torch", {"cols": 1}, seed=seed), 1.0 + seed) for seed in range(10_050)]
    folder = made.finished(tmp_path / "long", rows[:1])
    with open(folder / "rows.jsonl", "w") as file:  # quicker than one fsync each
        file.writelines(json.dumps({"record": "row", **row.to_record()}) + "\n" for row in rows)
    _, path = kept(OFFLINE.publish(folder), folder)
    recorded = read_wandb(path)
    table = recorded.table(recorded.history[0]["rows"])
    at = table["columns"].index("time_us")
    assert [cells[at] for cells in table["data"]] == [row.time_us for row in rows]


def test_a_run_without_a_single_timed_row_is_recorded_without_charts(made, home, read_wandb, tmp_path):
    lost = Row(case=made.case("gelu", "torch", {"cols": 1}), status="lost", reason="the runner was killed")
    folder = made.finished(tmp_path / "lost", [lost])
    _, path = kept(OFFLINE.publish(folder), folder)
    (only,) = read_wandb(path).history
    assert {key for key in only if not key.startswith("_")} == {"rows"}


# Uploading


def test_a_run_is_uploaded_and_goes_on_when_it_is_resumed(folder, home, loopback, monkeypatch, made):
    with loopback() as server:
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        (line,) = LOG.publish(folder)
    assert line.startswith(f"W&B: {server.url}/me/kernel-runner/runs/")
    (table,) = [body for path, body in server.uploads.items() if path.startswith("/put/media/table/rows")]
    assert len(json.loads(table)["data"]) == 18
    assert {"/put/config.yaml", "/put/wandb-summary.json"} <= set(server.uploads)
    assert server.streamed[-1]["exitcode"] == 1
    assert_no_secret(folder)
    kept = read_state(folder)
    assert f"W&B: {kept.url}" == line
    assert kept.uploaded(folder)
    # A resumed sweep goes on in the same run, with what is new.
    with journal.Journal(folder) as results:
        results.row(made.timed(made.case("gelu", "torch", {**SIZES, "cols": 8192}), 8192.0))
    began, streamed = len(server.runs), len(server.streamed)
    with loopback() as later:
        monkeypatch.setenv("WANDB_BASE_URL", later.url)
        (again,) = LOG.publish(folder)
    assert again.rpartition("/")[2] == line.rpartition("/")[2]
    assert {one["name"] for one in (*server.runs[:began], *later.runs)} == {line.rpartition("/")[2]}
    assert {one["jobType"] for one in later.runs} - {None} == {"sweep"}
    before, after = steps(server.streamed[:streamed]), steps(later.streamed)
    assert min(after) > max(before)
    assert [step["gelu/cols"] for step in after.values() if "gelu/cols" in step] == [8192]
    (table,) = [body for path, body in later.uploads.items() if path.startswith("/put/media/table/rows")]
    assert len(json.loads(table)["data"]) == 19


SIZES = {"rows": 8, "dtype": "float32", "tf32": False}


def steps(streamed):
    """The history that a server was sent, by its steps."""
    found = {}
    for body in streamed:
        for line in body.get("files", {}).get("wandb-history.jsonl", {}).get("content", ()):
            found[json.loads(line)["_step"]] = json.loads(line)
    return found


def test_the_printed_command_uploads_a_run_that_was_kept_offline(folder, home, loopback, monkeypatch):
    _, path = kept(OFFLINE.publish(folder), folder)
    with loopback() as server:
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        subprocess.run([sys.executable, "-m", "wandb", "sync", path], check=True, timeout=120, cwd=home)
    assert any(path.glob("*.wandb.synced"))
    assert any(name.startswith("/put/media/table/rows") for name in server.uploads)
    assert any(name.startswith("/put/art/rows") for name in server.uploads)  # the staged copy was still there


@pytest.mark.parametrize(
    ("manner", "timeout_s", "said"),
    [
        LONG("401", 30.0, "not today"),
        ("hang", 4.0, "not uploaded within log.wandb.timeout_s=4"),
        LONG("breaks", 30.0, "HTTP 500: not today"),
        LONG("no_files", 30.0, "unexpected HTTP status 500 Internal Server Error"),
    ],
)
def test_a_server_that_fails_costs_a_bounded_time_and_no_result(
    folder, home, loopback, read_wandb, monkeypatch, manner, timeout_s, said
):
    results = (folder / "rows.jsonl").read_bytes()
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    with loopback(manner) as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        start = time.monotonic()
        why, path = kept(replace(LOG, timeout_s=timeout_s).publish(folder), folder)
        assert time.monotonic() - start < timeout_s + 120
    assert why == said
    assert not any(path.glob("*.wandb.synced"))  # else the printed command would skip it
    assert len(read_wandb(path).table(read_wandb(path).history[0]["rows"])["data"]) == 18
    assert (folder / "rows.jsonl").read_bytes() == results
    assert_no_secret(folder)


def test_no_server_at_all_costs_a_bounded_time_and_no_result(folder, home, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    start = time.monotonic()
    why, _ = kept(LOG.publish(folder), folder)
    assert time.monotonic() - start < 120
    assert why.endswith("connection refused")


def test_a_key_in_netrc_counts_as_a_key(folder, home, loopback, monkeypatch):
    with loopback("401") as server:
        host = server.url.removeprefix("http://")
        (home / ".netrc").write_text(f"machine {host}\n  login user\n  password {KEY}\n")
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        why, _ = kept(LOG.publish(folder), folder)
    assert why == "not today"  # the server's own words: it was asked
    assert_no_secret(folder)


def test_a_key_of_the_wrong_form_is_said_so_and_not_shown(folder, home, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "too-short-4711")
    why, _ = kept(LOG.publish(folder), folder)
    assert "WANDB_API_KEY invalid" in why
    assert "4711" not in why


@pytest.mark.parametrize(
    ("mode", "variable", "said"),
    [
        LONG("offline", None, "log.wandb.mode=offline"),
        ("auto", "offline", "WANDB_MODE=offline"),
    ],
)
@pytest.mark.parametrize("key", [KEY, ""])
def test_who_asked_for_offline_is_said(folder, home, monkeypatch, mode, variable, said, key):
    monkeypatch.setenv("WANDB_API_KEY", key)
    if variable:
        monkeypatch.setenv("WANDB_MODE", variable)
    why, _ = kept(replace(LOG, mode=mode).publish(folder), folder)
    assert why == said


def test_mode_online_beats_the_variable(folder, home, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    (line,) = replace(LOG, mode="online").publish(folder)
    assert line.startswith("W&B: not logged (no API key)")


def test_wandb_mode_disabled_is_respected(folder, home, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert LOG.publish(folder) == ["W&B: off (WANDB_MODE=disabled)"]
    assert not (folder / "wandb").exists()


def assert_no_secret(folder):
    for path in folder.rglob("*"):
        if path.is_file():
            assert KEY.encode() not in path.read_bytes(), path


# A client that fails


def test_without_wandb_one_line_says_so(folder, home, monkeypatch):
    client(folder, monkeypatch, "raise ImportError('no such luck')")
    (line,) = OFFLINE.publish(folder)
    said = "the W&B client exited with code 1: ImportError: no such luck"
    assert line == f"W&B: not logged ({said}); the results are in {folder}"


def test_a_client_that_crashes_costs_one_line(folder, home, monkeypatch):
    client(folder, monkeypatch, "import os\nos.abort()")
    assert OFFLINE.publish(folder) == [
        f"W&B: not logged (the W&B client was killed by SIGABRT); the results are in {folder}"
    ]


def test_a_client_that_hangs_is_killed_with_all_it_started(folder, home, monkeypatch, gone):
    note = folder.parent / "pid"
    start = f"import subprocess, pathlib\nchild = subprocess.Popen(['sleep', '1000'])\npathlib.Path({str(note)!r})"
    client(folder, monkeypatch, f"{start}.write_text(str(child.pid))\nchild.wait()")
    monkeypatch.setattr(wandb, "MARGIN_S", 4.5)  # in which the child has started on a busy machine too
    assert replace(OFFLINE, timeout_s=0.5).publish(folder) == [
        f"W&B: not logged (not done within 5 s); the results are in {folder}"
    ]
    assert gone(int(note.read_text()))


def test_an_upload_that_ends_without_a_reason_says_its_last_line(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    folder.mkdir()
    client(folder, monkeypatch, "print('panic: no such luck')")
    _, reason = sync(folder, [folder / "wandb" / "offline-run-1"], dict(os.environ), 60.0, "late")
    assert reason == "the W&B client exited with code 0: panic: no such luck"


def client(folder, monkeypatch, source):
    """Another ``wandb`` than the installed one."""
    place = folder.parent / "client"
    place.mkdir()
    (place / "wandb.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")]))


def test_a_folder_that_is_gone_raises_nothing(home, tmp_path):
    (line,) = OFFLINE.publish(tmp_path / "gone")
    assert line.startswith("W&B: not logged (FileNotFoundError: ")


def test_the_settings_are_validated_without_importing_wandb():
    code = "import sys, runner.report.wandb; sys.exit(bool({'wandb', 'torch', 'hydra', 'yaml'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=processes.ROOT, check=False).returncode == 0


@pytest.mark.parametrize("name", ["a/b", "a\\b", "a#b", "a?b", "a%b", "a:b", "", "x" * 129])
def test_a_project_name_that_wandb_refuses_is_refused_before_the_run(name):
    with pytest.raises(ValueError, match=r"^project: .* is not allowed; give 1 to 128 characters without any of"):
        replace(LOG, project=name)


def test_a_tag_that_wandb_refuses_is_refused_before_the_run():
    with pytest.raises(ValueError, match=r"^tags: .* is not allowed; give 1 to 64 characters each"):
        replace(LOG, tags=("x" * 65,))


def test_wandbs_own_variables_hold_where_the_config_says_nothing(monkeypatch):
    variables = {
        "PROJECT": "lab",
        "ENTITY": "team",
        "RUN_GROUP": "week 3",
        "JOB_TYPE": "night",
        "NOTES": "why",
        "TAGS": "a, b",
    }
    for name, value in variables.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    silent = replace(LOG, project=None, group=None, tags=())
    fields = ("project", "entity", "group", "job_type", "notes", "tags")
    assert [getattr(silent, name) for name in fields] == ["lab", "team", "week 3", "night", "why", ("a", "b")]
    assert (LOG.project, LOG.group, LOG.tags) == ("kernel-runner", "nightly", ("h100", "h100"))
    monkeypatch.setenv("WANDB_PROJECT", "a/b")
    with pytest.raises(ValueError, match=r"^project: WANDB_PROJECT: 'a/b' is not allowed; give 1 to 128 characters"):
        replace(LOG, project=None)
