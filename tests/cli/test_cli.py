"""The front door, in this process: what is said when nothing has begun."""

from __future__ import annotations

import subprocess
import sys

import pytest

from runner import cli
from runner.device.processes import environment


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan", "workload=gelu"], "runner: stopped\n"),
        (["doctor"], "runner: stopped\n"),
        (["workload=gelu"], "runner: stopped; every case that was done is in the journal\n"),
        ([], "runner: stopped; every case that was done is in the journal\n"),
    ],
)
def test_an_interrupt_while_it_is_still_importing_is_one_line(words, said, monkeypatch, capsys):
    def interrupted(name):
        raise KeyboardInterrupt

    def covered(name):  # as classes that are just being made do, and contexts that are left
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise RuntimeError("cannot be made")  # noqa: B904

    for import_module in (interrupted, covered):
        monkeypatch.setattr(cli, "import_module", import_module)
        assert cli.main(words) == 130
        assert capsys.readouterr().err == said


def test_what_is_no_interrupt_is_raised(monkeypatch):
    monkeypatch.setattr(cli, "import_module", lambda name: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        cli.main([])


def test_nothing_that_takes_time_is_imported_before_an_interrupt_is_told():
    probe = "import sys, runner.cli; print([name for name in sys.modules if name.startswith('runner')])"
    done = subprocess.run([sys.executable, "-c", probe], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "['runner', 'runner.cli']\n"
