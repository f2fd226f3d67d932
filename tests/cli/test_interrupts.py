"""Ctrl-C while an event is handled."""

from __future__ import annotations

import os
import signal

import pytest

from runner.cli.run import Interrupts


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

    interrupts, handled = Interrupts(), []
    with interrupts.raised(), pytest.raises(KeyboardInterrupt) as stopped:
        interrupts.deliver(events(), handle)
    assert handled == ["first", "written", "last"]
    assert stopped.value.args == (signal.SIGINT,)


def test_without_an_interrupt_all_events_are_delivered():
    handled = []
    Interrupts().deliver((event for event in "abc"), handled.append)
    assert handled == ["a", "b", "c"]
