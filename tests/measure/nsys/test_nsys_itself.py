"""The real nsys, where it is installed, on programs without GPU work: its reports, refusals and ends."""

from __future__ import annotations

import sys

import pytest

from runner.device import tools
from runner.measure import CannotMeasure
from runner.measure.nsys import Nsys

PROGRAM = tools.find_tool("nsys")
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="Nsight Systems (nsys) is not on PATH, nor where it is installed"
)


@pytest.fixture
def record(tmp_path):
    """Return the message about a program that writes the result of one call that did nothing."""
    result = tmp_path / "again.json"

    def go(preset="full", *args, before="", limit_s=120.0):
        code = f"{before}\nopen({str(result)!r}, 'w').write('{{\"calls_us\": [1.0], \"n\": 1}}')"
        nsys = Nsys(path=None, preset=preset, calls=1, limit_s=limit_s, args=args)
        with pytest.raises(CannotMeasure) as caught:
            nsys.record(PROGRAM, [sys.executable, "-c", code], tmp_path)
        return str(caught.value)

    return go


def test_a_report_of_a_program_without_gpu_work_is_exported_read_and_kept(record, tmp_path):
    said = record()
    assert said.startswith("no GPU work was seen in the calls"), said
    assert (tmp_path / "report.nsys-rep").stat().st_size > 1000


def test_a_range_that_is_never_opened_is_told(record, tmp_path):
    assert "the range to capture was never opened" in record("light")
    assert not (tmp_path / "report.nsys-rep").exists()


def test_its_usage_error_is_told_in_its_own_words(record):
    said = record("light", "--there-is-no-such-option=1")
    assert said.startswith("nsys refuses its options: ")
    assert "--there-is-no-such-option" in said


@pytest.mark.parametrize("args", [(), ("--trace=cuda",), ("--capture-range=none",)])
@pytest.mark.parametrize("preset", ["light", "full"])
def test_it_takes_every_option_of_the_presets(record, preset, args):
    assert "refuses" not in record(preset, *args)


def test_a_program_that_aborts_is_told_by_its_last_words(record):
    said = record(before="import os; print('its last words', flush=True); os.abort()")
    assert "exited with code 134 before its calls were done: its last words" in said


@pytest.mark.parametrize("deaf", [False, True])
def test_late_it_is_ended_and_no_agent_stays_behind(record, monkeypatch, survivors, tmp_path, deaf):
    mark = f"STARTED_BY={tmp_path}"
    monkeypatch.setenv(*mark.split("="))
    monkeypatch.setattr("runner.measure.nsys.GRACE_S", 10.0)
    ignores = "signal.signal(signal.SIGTERM, signal.SIG_IGN)" if deaf else ""
    said = record(before=f"import signal, time; {ignores}\ntime.sleep(1000)", limit_s=3.0)
    assert said.startswith("it was not done after 3 s and was ended")
    assert deaf or (tmp_path / "report.nsys-rep").is_file()
    assert survivors(mark) == []
