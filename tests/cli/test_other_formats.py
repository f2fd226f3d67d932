"""A run of another format, or with a plan that lacks fields, is one sentence in every command, never a traceback."""

from __future__ import annotations

import json
import re

import pytest

from runner.cli import main
from runner.store import journal, run_folder

NEWER = 99
ONE_RUN = {
    "show": ["show", "{folder}"],
    "report": ["report", "md", "{folder}"],
    "compare": ["compare", "{fine}", "{folder}"],
    "gate": ["gate", "--baseline", "{fine}", "{folder}"],
    "plan": ["plan", "resume={folder}"],
    "plan of a part": ["plan", "workload=gelu", "resume={folder}"],
    "resume": ["resume={folder}", "log=none"],
    "resume of a part": ["workload=gelu", "resume={folder}", "log=none"],
}


@pytest.fixture
def folders(made, tmp_path, monkeypatch):
    """A run that can be read, and another one."""
    monkeypatch.chdir(tmp_path)
    return [made.finished(tmp_path / "outputs" / f"2025-01-{day}" / "10-11-12-both", made.sweep()) for day in (30, 31)]


def with_format(folder, number):
    path = folder / journal.NAME
    path.write_text(re.sub(r'"format":\d+', f'"format":{number}', path.read_text()))


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("words", ONE_RUN.values(), ids=ONE_RUN)
def test_a_run_of_another_format_is_one_sentence(folders, capsys, words):
    fine, folder = folders
    with_format(folder, NEWER)
    before = content(folder)
    assert main([word.format(fine=fine, folder=folder) for word in words]) == 2
    shown = capsys.readouterr()
    reads = f"this run has format {NEWER}, and this version of the runner reads format {journal.FORMAT}"
    assert (shown.out, shown.err) == ("", f"runner: {folder}: {reads}; update the runner\n")
    assert content(folder) == before


@pytest.mark.parametrize("words", [["list"], ["history", "workload=gelu"]], ids=lambda words: words[0])
def test_list_and_history_skip_it_with_one_message(folders, capsys, words):
    with_format(folders[1], NEWER)
    assert main(words) == 0
    shown = capsys.readouterr()
    (line,) = shown.err.splitlines()
    assert f"2025-01-31/10-11-12-both: this run has format {NEWER}, " in line
    assert line.endswith("; update the runner")
    assert "2025-01-30" in shown.out
    assert "2025-01-31" not in shown.out


def test_history_says_why_it_can_show_none(folders, capsys):
    for folder in folders:
        with_format(folder, NEWER)
    assert main(["history"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("runner: outputs: no run there has a case to show; left out: outputs/2025-01-30/")
    assert shown.endswith("; update the runner\n")


def without(line, name):
    return json.dumps({key: value for key, value in json.loads(line).items() if key != name})


@pytest.mark.parametrize(("place", "name"), [(0, "question"), (0, "choices"), (1, "seed"), (1, "measures")])
@pytest.mark.parametrize("words", [words for name, words in ONE_RUN.items() if "part" not in name], ids=str)
def test_a_plan_that_lacks_fields_is_one_sentence(folders, capsys, words, place, name):
    fine, folder = folders
    path = folder / run_folder.PLAN
    lines = path.read_text().splitlines()
    lines[place] = without(lines[place], name)
    path.write_text("\n".join(lines) + "\n")
    assert main([word.format(fine=fine, folder=folder) for word in words]) == 2
    shown = capsys.readouterr()
    (line,) = shown.err.splitlines()
    assert f"{run_folder.PLAN} cannot be read (" in line
    assert name in line
    assert shown.out == ""


def test_list_and_history_need_no_plan(folders, capsys):
    path = folders[1] / run_folder.PLAN
    path.write_text(without(path.read_text().splitlines()[0], "question") + "\n")
    for words in (["list"], ["history"]):
        assert main(words) == 0
        shown = capsys.readouterr()
        assert "2025-01-31" in shown.out
        assert shown.err == ""
