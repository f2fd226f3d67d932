"""The end of a tool is always reported, and none of its processes stays behind."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from runner.device import tools


def test_what_it_says_and_how_it_ends(tmp_path):
    words = [sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)"]
    ended = tools.run_tool(words, tmp_path / "log", 30)
    assert (ended.code, ended.timed_out) == (7, False)
    assert set(ended.output.split()) == {"out", "err"}


def test_no_key_is_shown_to_it(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "of mine")
    monkeypatch.setenv("HF_TOKEN", "of mine")
    monkeypatch.setenv("SOME_FLAG", "shown")
    said = tools.run_tool(
        [sys.executable, "-c", "import os; print(dict(os.environ))"], tmp_path / "log", 30, {"A": "b"}
    ).output
    assert "of mine" not in said
    assert "shown" in said
    assert "'A': 'b'" in said


def test_late_it_may_write_its_report_and_leaves_nobody_behind(tmp_path):
    report, pid = tmp_path / "report", tmp_path / "pid"
    code = f"""
import signal, subprocess, sys, time
def end(*_):
    open({str(report)!r}, "w").write("whole"); sys.exit(0)
signal.signal(signal.SIGTERM, end)
one = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
open({str(pid)!r}, "w").write(str(one.pid))
time.sleep(1000)
"""
    ended = tools.run_tool([sys.executable, "-c", code], tmp_path / "log", 4.0, grace_s=30)
    assert ended.timed_out
    assert report.read_text() == "whole"
    deaf = [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"]
    started = time.monotonic()
    assert tools.run_tool(deaf, tmp_path / "log", 3.0, grace_s=0.5).code == -9
    assert time.monotonic() - started < 50  # it sleeps for 60


def test_what_has_left_its_parent_and_its_group_is_ended_too(tmp_path, survivors):
    code = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(0)
os.wait()
time.sleep(1000)
"""
    tools.run_tool([sys.executable, "-c", code], tmp_path / "log", 2.0, {"LEFT_BY": str(tmp_path)}, grace_s=1.0)
    assert survivors(f"LEFT_BY={tmp_path}") == []


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_what_it_has_started_says_who_runs_it(tmp_path):
    ask = "from runner.device import tools; import os; print(tools.owner(os.getpid()))"
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ask!r}], start_new_session=True)"
    assert tools.run_tool([sys.executable, "-c", start], tmp_path / "log", 30).output.strip() == str(os.getpid())
    assert tools.owner(os.getpid()) is None


@pytest.mark.parametrize("where", ["path", "place", "given"])
def test_it_is_found(tmp_path, monkeypatch, where):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(tools, "PLACES", (f"{tmp_path}/opt/*/{{name}}",))
    assert tools.find_tool("nsys") is None
    file = {"path": tmp_path / "bin" / "nsys", "place": tmp_path / "opt" / "1" / "nsys", "given": tmp_path / "mine"}
    made: Path = file[where]
    made.parent.mkdir(parents=True, exist_ok=True)
    made.touch(mode=0o755)
    assert tools.find_tool("nsys", str(made) if where == "given" else None) == str(made)
    assert tools.find_tool("nsys", str(tmp_path / "nothing")) is None
    assert os.access(made, os.X_OK)


def test_of_several_versions_the_newest_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(tools, "PLACES", (f"{tmp_path}/opt/*/{{name}}",))
    for version in ("2024.10.1", "2025.3.2", "2024.9.1"):
        (tmp_path / "opt" / version).mkdir(parents=True)
        (tmp_path / "opt" / version / "nsys").touch(mode=0o755)
    assert tools.find_tool("nsys") == str(tmp_path / "opt" / "2025.3.2" / "nsys")
