"""Which rows of an earlier run still count, and why the others do not."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

from runner.records.bad_input import BadInput
from runner.records.case import Choice
from runner.records.plan import Plan, Resume
from runner.records.row import Row
from runner.store import journal, resume, run_folder
from runner.store.fingerprint import Fingerprints
from runner.store.journal import Journal
from runner.store.run_folder import run_folders

FINGERPRINTS = Fingerprints()  # of files that no test changes; reading them takes a third of a second

DEFAULT = Resume(retry=("build_failed", "error", "oom", "cuda_error", "timeout", "crashed"))


def plan(cases, name="gelu"):
    launcher = Choice("local", {})
    return Plan(cases=tuple(cases), name=name, baseline=None, output_dir="", launcher=launcher, log=())


def row(case, status="ok", **parts):
    reason = "" if status == "ok" else "why"
    metrics = {"correct": False} if status == "wrong" else {}
    parts = {"fingerprint": FINGERPRINTS.of(case), "device": "cpu", **parts}
    return Row(case=case, status=status, reason=reason, metrics=metrics, **parts)


def work(folder, cases, *rows, settings=DEFAULT, devices=None, deaths=None):
    with Journal(folder) as file:
        for one in rows:
            file.row(one)
    contents = journal.load(folder)
    contents.deaths.update(deaths or {})
    return resume.remaining(cases, contents, settings, FINGERPRINTS, devices)


def test_only_missing_and_failed_cases_run_and_the_summary_says_why(case, tmp_path):
    cases = [case(rows=n) for n in range(6)]
    done = [row(cases[0]), row(cases[1], "timeout"), row(cases[2], "wrong"), row(cases[3], "unsupported")]
    found = work(tmp_path, cases, *done, deaths={cases[5].key: 1})
    assert list(found.kept) == [cases[0].key, cases[2].key, cases[3].key]
    assert found.again == {
        cases[1].key: "its status was timeout",
        cases[4].key: "never done",
        cases[5].key: "in flight when the runner died",
    }
    assert resume.resume_messages(tmp_path, found, unreadable=1) == [
        f"resume: {tmp_path}: 3 of 6 cases kept, 3 to run",
        "  1 to run: its status was timeout",
        "  1 to run: never done",
        "  1 to run: in flight when the runner died",
        "  1 unreadable in the journal, damaged or cut off: skipped",
    ]


def test_retry_says_which_statuses_do_not_count(case, tmp_path):
    cases = [case(rows=n) for n in range(3)]
    rows = [row(cases[0]), row(cases[1], "timeout"), row(cases[2], "wrong")]
    assert list(work(tmp_path, cases, *rows, settings=Resume(retry=("wrong",))).again) == [cases[2].key]
    assert not work(tmp_path, cases, settings=Resume()).again


def test_a_skipped_case_was_never_done(case, tmp_path):
    assert work(tmp_path, [case()], row(case(), "skipped"), settings=Resume()).again == {case().key: "never done"}


def test_an_unknown_column_is_kept_and_a_broken_row_is_run_again(case, tmp_path):
    cases = [case(rows=n) for n in range(3)]
    rows = [replace(row(one), metrics={"flops": 1}) for one in cases]
    assert len(work(tmp_path, cases, *rows).kept) == 3
    path = tmp_path / journal.NAME
    lines = path.read_text().replace('"flops":1', '"flips":1').splitlines()
    lines = [line.replace('"reason":""', '"reason":"odd"') if cases[2].key in line else line for line in lines]
    path.write_text("\n".join(lines) + "\n")
    found = work(tmp_path, cases)
    assert [found.kept[one.key].metrics for one in cases[:2]] == [{"flips": 1}] * 2
    assert found.again == {cases[2].key: "never done"}
    assert journal.load(tmp_path).unreadable == 1


def test_another_format_is_refused(case, tmp_path):
    work(tmp_path, [case()], row(case()))
    path = tmp_path / journal.NAME
    path.write_text(path.read_text().replace('"format":1', '"format":2'))
    with pytest.raises(BadInput, match=r"this run has format 2, and .* reads format 1; update the runner"):
        journal.load(tmp_path)


def test_a_folder_that_another_user_can_write_to_is_not_resumed(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(BadInput, match=r"another user owns it; .* add resume\.trust=true"):
        run_folder.check_owner(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid or 7)
    if tmp_path.stat().st_uid:
        tmp_path.chmod(0o777)
        with pytest.raises(BadInput, match="everybody can write to it"):
            run_folder.check_owner(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    run_folder.check_owner(tmp_path)


@pytest.mark.parametrize("path", ["k.py:f", "files/../k.py:f", "link/k.py"])
@pytest.mark.parametrize("field", ["path", "of"])
def test_code_that_came_with_the_folder_is_run_only_if_it_is_typed(case, tmp_path, field, path):
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    named = f"{tmp_path if 'link' in path else folder}/{path}"
    mine = replace(case(), impl=Choice("file", {field: named}))
    with pytest.raises(
        BadInput, match=r"its plan runs .*k\.py, which came with the folder; .* or add resume\.trust=true"
    ):
        run_folder.check_code(folder, [case(), mine])
    run_folder.check_code(tmp_path / "another", [case(), mine])


def test_a_program_that_came_with_the_folder_is_run_only_if_it_is_typed(case, tmp_path):
    mine = replace(case(), measures=(Choice("nsys", {"path": str(tmp_path / "run" / "nsys")}),))
    with pytest.raises(BadInput, match=r"its plan runs .*/run/nsys, which came with the folder"):
        run_folder.check_code(tmp_path / "run", [case(), mine])
    run_folder.check_code(tmp_path / "another", [case(), mine])


def test_a_module_that_came_with_the_folder_is_run_only_if_it_is_typed(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mine = replace(case(), impl=Choice("file", {"path": "run.k:f"}))
    with pytest.raises(BadInput, match=r"its plan runs run\.k, which came with the folder"):
        run_folder.check_code(tmp_path / "run", [mine])
    run_folder.check_code(tmp_path / "another", [mine])


def test_a_case_runs_again_if_its_sources_have_changed(case, tmp_path):
    old = row(case(), fingerprint={**FINGERPRINTS.of(case()), "kernels/gelu/torch.py": "0"})
    found = work(tmp_path, [case()], old)
    assert found.again == {case().key: "kernels/gelu/torch.py has changed"}
    assert work(tmp_path, [case()], settings=Resume(ignore=("sources",))).kept


@pytest.mark.parametrize(
    ("device", "devices", "why"),
    [
        ("NVIDIA A100", {"NVIDIA H100"}, "it ran on NVIDIA A100, and this is NVIDIA H100"),
        ("cpu", {"NVIDIA H100"}, "it ran on cpu, and this is NVIDIA H100"),
        ("NVIDIA H100", {"cpu"}, "it ran on NVIDIA H100, and this is cpu"),
        ("NVIDIA H100", {"NVIDIA H100", "NVIDIA A100"}, ""),
        ("NVIDIA H100", None, ""),
        ("", {"NVIDIA H100"}, ""),
    ],
)
def test_a_case_runs_again_on_another_gpu(case, tmp_path, device, devices, why):
    moved, same = (case(rows=n).with_settings(device="auto") for n in (1, 2))
    rows = row(moved, device=device), row(same, device=next(iter(devices or [""])))
    again = work(tmp_path, [moved, same], *rows, devices=devices).again
    assert again == ({moved.key: why} if why else {})
    ignoring = replace(DEFAULT, ignore=("device",))
    assert not work(tmp_path, [moved, same], settings=ignoring, devices=devices).again


def test_a_run_of_another_gpu_or_torch_is_not_measured_over(case, tmp_path):
    cases = [case(rows=n).with_settings(device="auto") for n in range(4)]
    other = {**FINGERPRINTS.of(cases[0]), "torch": "1.0"}
    rows = [row(cases[0], device="H200"), row(cases[1], device="H100"), row(cases[2], device="H200", fingerprint=other)]
    line = (
        r"^resume=last: 2 rows would be measured again, and 1 kept: "
        r"(it ran on H100, and this is H200|torch 1\.0 is now .*)"
        r"; to keep these rows: resume\.ignore=device,sources,versions; to measure here: a new run, without resume$"
    )
    asked = replace(DEFAULT, of="last", ignore=("sources",))
    with pytest.raises(BadInput, match=line):
        work(tmp_path, cases, *rows, settings=asked, devices={"H200"})
    kept = replace(asked, ignore=("device", "versions"))
    assert list(work(tmp_path, cases, settings=kept, devices={"H200"}).again) == [cases[3].key]
    assert len(work(tmp_path, cases[:2], settings=asked, devices={"H200"}).again) == 1  # no more than are kept


def test_the_message_names_the_measuring_code_too_if_it_has_changed(case, tmp_path):
    changed = {"torch": "1.0", "runner/measure": "0", "kernels/gelu/torch.py": "0"}
    old = row(case(), fingerprint={**FINGERPRINTS.of(case()), **changed})
    with pytest.raises(BadInput, match=r"resume\.ignore=device,measure,versions;"):
        work(tmp_path, [case()], old)
    ignore = ("device", "measure", "versions")
    again = work(tmp_path, [case()], settings=Resume(ignore=ignore)).again  # a user knows of a change of sources
    assert again == {case().key: "kernels/gelu/torch.py has changed"}


def test_a_case_that_asks_for_the_cpu_is_not_compared_with_gpus(case, tmp_path):
    assert not work(tmp_path, [case()], row(case()), devices={"NVIDIA H100"}).again


def test_a_case_in_flight_at_two_deaths_is_lost_and_not_tried_again(case, tmp_path):
    deaths = {case().key: 2}
    found = work(tmp_path, [case()], deaths=deaths)
    (lost,) = found.lost
    assert not found.again
    assert lost.status == "lost"
    assert lost.reason == "in flight twice when the runner itself died; to try again: resume.retry=[lost]"
    assert "  1 lost: in flight twice" in "\n".join(resume.resume_messages(tmp_path, found, 0))
    recorded = replace(lost, fingerprint=FINGERPRINTS.of_row(lost))
    assert not work(tmp_path, [case()], recorded).again  # nor in a later session
    asked = replace(DEFAULT, retry=("lost",))
    assert work(tmp_path, [case()], settings=asked).again == {case().key: "its status was lost"}


def test_rows_outside_the_grid_are_counted(case, tmp_path):
    found = work(tmp_path, [case(rows=1)], row(case(rows=1)), row(case(rows=2)))
    assert found.outside == 1
    assert "1 more in the folder" in resume.resume_messages(tmp_path, found, 0)[-1]


def test_resume_finds_a_folder_by_path_or_the_newest_of_a_name(case, tmp_path):
    folders = []
    for day, name in (("2025-01-02", "a"), ("2025-01-01", "a"), ("2025-01-02", "b")):
        folder = tmp_path / day / f"12-00-00-{name}"
        folder.mkdir(parents=True)
        run_folder.write_plan(folder, plan([case()], name), [case()])
        (folder / journal.NAME).write_text("")
        folders.append(folder)
    for place, folder in enumerate(folders):
        os.utime(folder / run_folder.PLAN, (place, place))
    assert run_folder.find("last", str(tmp_path), "a") == folders[0]
    assert run_folder.find("last", str(tmp_path), None) == folders[2]
    assert run_folder.find(str(folders[1]), "anywhere", None) == folders[1]
    with pytest.raises(
        BadInput, match=r"no run called c under .*; give the folder of one, .*, or leave resume out to start one"
    ):
        run_folder.find("last", str(tmp_path), "c")
    with pytest.raises(BadInput, match="there is no such folder"):
        run_folder.find(str(tmp_path / "nope"), "", None)
    with pytest.raises(BadInput, match=r"it holds no rows.jsonl"):
        run_folder.find(str(tmp_path), "", None)


def test_the_newest_is_the_one_that_began_last_whatever_the_clock_on_the_wall_was(case, tmp_path):
    """Folders have local times: 09:00 in New York is later than 12:00 in Berlin."""
    started = {
        "2025-01-01/12-00-00-berlin": "2025-01-01T12:00:00+0100",
        "2025-01-01/09-00-00-york": "2025-01-01T09:00:00-0500",
        "2025-01-02/01-00-00-tokyo": "2025-01-02T01:00:00+0900",
    }
    for name, start in started.items():
        (folder := tmp_path / name).mkdir(parents=True)
        run_folder.write_plan(folder, plan([case()], name[-4:]), [case()])
        (folder / journal.NAME).write_text("")
        resumed = {"started": "2030-01-01T00:00:00+0000", "earlier_sessions": [{"started": start}]}
        run_folder.write_environment(folder, resumed)
    names = [folder.name[9:] for folder in run_folders(str(tmp_path))]
    assert names == ["berlin", "york", "tokyo"]
    berlin = tmp_path / "2025-01-01/12-00-00-berlin"
    run_folder.write_environment(berlin, {"started": "2025-01-01T12:00:00"})  # of no zone: the time of the file counts
    assert run_folder.locate("last", str(tmp_path)) == berlin


@pytest.mark.parametrize(
    "name", ["rows.csv", "environment.json.new", "files", "files/x", "parts", "slurm", "wandb/logs"]
)
def test_a_folder_with_a_link_out_of_it_is_not_resumed(case, tmp_path, name):
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    (folder / name).parent.mkdir(parents=True)
    (folder / journal.NAME).write_text("")
    (folder / "latest").symlink_to(folder / journal.NAME)  # as W&B's; it stays within
    assert run_folder.find(str(folder), "", None) == folder
    (folder / name).symlink_to(elsewhere)
    line = rf"^resume={folder}: {folder / name} is a link out of the folder; put a copy in its place, or remove it$"
    with pytest.raises(BadInput, match=line):
        run_folder.find(str(folder), "", None)
    assert not elsewhere.exists()


def test_a_folder_with_a_pipe_that_would_be_written_to_is_not_resumed(tmp_path):
    (tmp_path / journal.NAME).write_text("")
    os.mkfifo(tmp_path / "worker.log")
    with pytest.raises(BadInput, match=r"worker\.log is not a regular file; remove it$"):
        run_folder.find(str(tmp_path), "", None)


def test_a_folder_that_is_reached_through_a_link_is_resumed(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / journal.NAME).write_text("")
    (tmp_path / "link").symlink_to("run")
    assert run_folder.find(str(tmp_path / "link"), "", None) == tmp_path / "link"


def test_a_plan_is_read_as_it_was_written(case, tmp_path):
    cases = [case(impl=impl, rows=n) for n in range(2) for impl in ("torch", "naive")]
    cases.append(replace(cases[0].with_settings(seed=7, time_wrong=True), replica=1))
    run_folder.write_plan(tmp_path, plan(cases), cases)
    assert run_folder.read_plan(tmp_path).cases == tuple(cases)
    assert run_folder.read_plan(tmp_path, with_cases=False).name == "gelu"
    settings = run_folder.plan_settings(run_folder.read_plan(tmp_path))
    assert settings == run_folder.plan_settings(plan(cases))
    assert settings != run_folder.plan_settings(replace(plan(cases), baseline="naive"))


def test_the_environment_keeps_that_of_earlier_sessions(tmp_path):
    assert run_folder.earlier_sessions(tmp_path) == []
    run_folder.write_environment(tmp_path, {"command": "first"})
    run_folder.write_environment(
        tmp_path, {"command": "second", "earlier_sessions": run_folder.earlier_sessions(tmp_path)}
    )
    assert run_folder.earlier_sessions(tmp_path) == [{"command": "first"}, {"command": "second"}]
    assert json.loads((tmp_path / run_folder.ENVIRONMENT).read_text())["command"] == "second"
