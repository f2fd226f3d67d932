"""Ctrl-C while an event is handled."""

from __future__ import annotations

import os
import signal

import pytest

from runner import cli
from runner.cli._interrupts import Interrupts
from runner.report import terminal
from runner.store.session import Session


def test_an_interrupt_while_an_event_is_handled_is_thrown_into_the_source_of_events():
    def events():
        try:
            yield "first"
            yield "never"
        except KeyboardInterrupt:
            yield "last"
            raise

    def handle(event):
        handled.append(event)
        if event == "first":
            os.kill(os.getpid(), signal.SIGINT)
            handled.append("written")

    handled = []
    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt) as stopped:
        interrupts.deliver(events(), handle)
    assert handled == ["first", "written", "last"]
    assert stopped.value.args == (signal.SIGINT,)


def test_without_an_interrupt_all_events_are_delivered():
    handled = []
    Interrupts().deliver((event for event in "abc"), handled.append)
    assert handled == ["a", "b", "c"]


def test_the_first_interrupt_while_no_event_is_awaited_is_noted_and_the_second_raises():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            interrupts.deliver(iter(["never"]), pytest.fail)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert interrupts.first == signal.SIGTERM
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_an_interrupt_while_the_run_is_reported_costs_no_report(monkeypatch, capsys, tmp_path, number):
    report = terminal.terminal_report
    monkeypatch.setattr(terminal, "terminal_report", lambda *given: os.kill(os.getpid(), number) or report(*given))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    words = ["workload=gelu", "workload.rows=8", "workload.cols=8", "impl=torch", "log=none", f"output_dir={tmp_path}"]
    with pytest.raises(SystemExit) as end:
        cli.main([*words, "measure.benchmark.samples=20", "measure.benchmark.max_s=0.02"])
    assert end.value.code == 128 + number
    assert "1 case: 1 ok" in capsys.readouterr().out
    assert list(tmp_path.glob("*/*/rows.csv"))


def test_a_command_that_decides_says_after_an_interrupt_that_it_has_not(monkeypatch, capsys, tmp_path):
    done = Session.done
    monkeypatch.setattr(Session, "done", lambda *given: os.kill(os.getpid(), signal.SIGINT) or done(*given))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "k.py").write_text("import torch\ndef f(a, b, *, n=1):\n    return a + b\n")
    words = ["workload=add", "workload.rows=8", "workload.cols=8", "log=none", f"output_dir={tmp_path}/outputs"]
    with pytest.raises(SystemExit) as end:
        cli.main(["tune", *words, "impl=file", f"impl.path={tmp_path}/k.py:f", "impl.args.n=1,2", "quick=true"])
    assert end.value.code == 130
    assert capsys.readouterr().err.endswith("runner: interrupted; nothing is decided: run it again\n")
