"""Ctrl-C while an event is being written down."""

from __future__ import annotations

import os
import signal

import pytest

from runner.cli.run import Interrupts


def test_one_that_comes_meanwhile_goes_to_whoever_makes_the_events():
    def events():
        try:
            yield "first"
            yield "never"
        except KeyboardInterrupt:
            yield "last words"
            raise

    def hear():
        for event in interrupts.told(events()):
            with interrupts.held():
                heard.append(event)
                if event == "first":
                    os.kill(os.getpid(), signal.SIGINT)
                    heard.append("written down")

    interrupts, heard = Interrupts(), []
    with interrupts.raised(), pytest.raises(KeyboardInterrupt) as stopped:
        hear()
    assert heard == ["first", "written down", "last words"]
    assert stopped.value.args == (signal.SIGINT,)


def test_without_one_all_events_come():
    assert list(Interrupts().told(event for event in "abc")) == ["a", "b", "c"]
