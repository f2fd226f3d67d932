"""What a repository has for its users agrees with the project: CI, hooks, the template of an issue, the citation."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import yaml

import runner
from runner import cli

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def read(path: str):
    return yaml.safe_load((ROOT / path).read_text())


def test_ci_runs_the_tests_of_the_readme_on_every_python_that_the_project_names():
    jobs = read(".github/workflows/tests.yml")["jobs"]
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line]
    assert jobs["tests"]["strategy"]["matrix"]["python"] == named
    commands = {step.get("run") for job in jobs.values() for step in job["steps"]} - {None}
    assert commands == {"make test", "make long", "make docs"}
    assert "make test " in (ROOT / "README.md").read_text()


def test_hooks_are_the_steps_of_make_test():
    (repository,) = read(".pre-commit-config.yaml")["repos"]
    entries = {hook["entry"].removesuffix(" --fix").removeprefix(".venv/bin/") for hook in repository["hooks"]}
    makefile = (ROOT / "Makefile").read_text()
    assert entries == {"ruff check", "ruff format", "mypy"}
    assert all(f"$(BIN)/{entry}" in makefile for entry in entries)


def test_a_report_of_a_bug_has_what_doctor_and_version_print():
    asked = [field["attributes"]["label"] for field in read(".github/ISSUE_TEMPLATE/bug_report.yml")["body"]]
    assert {"python -m runner doctor", "python -m runner version"} <= {*asked}


def test_the_citation_is_of_this_version():
    citation = read("CITATION.cff")
    assert (citation["version"], citation["license"]) == (runner.__version__, PROJECT["license"])


def test_on_windows_the_command_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr(sys, "platform", "win32")
    assert cli.main(["workload=gelu"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
