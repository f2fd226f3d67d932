"""A series is repeated if the time of an empty kernel has changed meanwhile."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from runner.timing import calibration, ranks
from runner.timing.instrument import Instrument
from runner.timing.ranks import Ranks
from runner.timing.timestamps import GraphTimestamps

GRAPHS = [object.__new__(GraphTimestamps)]
GRAPHS[0].ranks = Ranks()


@pytest.fixture
def shifts(monkeypatch):
    """What is found after each series, in turn; the times that it was settled, and the clock that is measured."""
    found, settled, graphs = [], [], SimpleNamespace(clocks_mhz=[1980.0])

    def reference(**_):
        return graphs

    def settle(**_):
        settled.append(len(found))
        return True

    reference.cache_clear = lambda: None
    monkeypatch.setattr(calibration, "shift_us", lambda **_: found.pop(0))
    monkeypatch.setattr(calibration, "settle", settle)
    monkeypatch.setattr(calibration, "_reference_graphs", reference)
    monkeypatch.setattr(calibration, "unloaded_mhz", lambda: 1980.0)
    monkeypatch.setattr(calibration, "known", {"graphs_20_cold_us": 1.7, "stream_cold_us": 3.0})
    return found, settled, graphs


@pytest.mark.parametrize(
    ("after_each", "taken", "settled"),
    [
        ([0.01], 1, 0),
        ([-0.37, 0.02], 2, 1),
        ([-0.37, -0.37, -0.01], 3, 2),
        ([-0.37, -0.34, -0.37], 3, 2),  # it does not pass: the last series is given, and by how much
    ],
)
def test_a_series_is_taken_anew_as_long_as_the_timer_offset_has_dropped(shifts, after_each, taken, settled):
    found, times_settled, _ = shifts
    found += after_each
    series = iter(["first", "second", "third"])
    assert calibration.undisturbed(lambda: next(series), GRAPHS) == (
        ["first", "second", "third"][taken - 1],
        after_each[-1],
    )
    assert len(times_settled) == settled


def test_an_offset_that_stays_shorter_is_measured_anew(shifts, monkeypatch):
    found, *_ = shifts
    found += [-0.37, 0.01]
    monkeypatch.setattr(calibration, "settle", lambda **_: False)
    series = iter(["first", "second"])
    assert calibration.undisturbed(lambda: next(series), GRAPHS) == ("second", 0.01)
    assert list(calibration.known) == ["stream_cold_us"]


@pytest.mark.parametrize(("clock_mhz", "taken", "kept"), [(1980.0, 2, ["stream_cold_us"]), (1500.0, 1, None)])
def test_an_offset_that_was_too_short_is_measured_anew_unless_the_clock_is_lower_now(shifts, clock_mhz, taken, kept):
    found, settled, graphs = shifts
    found += [0.7, 0.01]
    graphs.clocks_mhz = [clock_mhz]
    series = iter(["first", "second"])
    result, _ = calibration.undisturbed(lambda: next(series), GRAPHS)
    assert result == ["first", "second"][taken - 1]
    assert list(calibration.known) == (kept or ["graphs_20_cold_us", "stream_cold_us"])
    assert not settled


def test_what_a_rank_measures_alone_asks_no_other_rank(shifts, monkeypatch):
    monkeypatch.setattr(ranks, "current", None)
    shifts[0].append(0.01)
    with ranks.alone():
        assert calibration.undisturbed(lambda: "a peak", GRAPHS) == ("a peak", 0.01)
    assert ranks.current is None


def test_a_series_of_other_instruments_is_taken_once(shifts):
    assert calibration.undisturbed(lambda: "first", [object.__new__(Instrument)]) == ("first", 0.0)


@pytest.fixture
def captured(monkeypatch):
    """Graphs that were captured to settle it."""
    made = []
    graphs = SimpleNamespace(samples=lambda count: None)
    monkeypatch.setattr(calibration, "empty_graphs", lambda: made.append(graphs) or graphs)
    return made


def test_it_is_settled_once_a_kernel_that_does_nothing_reads_what_it_read(monkeypatch, captured):
    found = [-0.37, -0.36, 0.01]
    monkeypatch.setattr(calibration, "shift_us", lambda **_: found.pop(0))
    assert calibration.settle()
    assert (len(captured), found) == (2, [])


def test_settling_ends(monkeypatch, captured):
    monkeypatch.setattr(calibration, "shift_us", lambda **_: -0.37)
    assert not calibration.settle()
    assert len(captured) == calibration.MOST


@pytest.mark.gpu
def test_a_context_that_comes_is_noticed_if_it_moves_the_timer_offset_and_settling_undoes_that(other_context):
    assert calibration.undisturbed(lambda: None, GRAPHS)[1] > -0.1  # a clock that is held down moves it up
    with other_context():
        moved_us = calibration.shift_us()  # -0.37 on H200s
        calibration.settle()
        assert calibration.shift_us() > -0.1, f"it had moved by {moved_us:.2f} us"


@pytest.mark.gpu
def test_an_offset_that_was_measured_beside_another_process_is_measured_anew():
    """The offset is set 0.7 us too short here, as a process that starts beside others has measured it."""
    calibration.graph_constant_us(cold_l2=True, captures=calibration.CAPTURES)
    name = calibration._on_gpu(f"graphs_{calibration.CAPTURES}_cold_us")
    calibration.known[name] = too_short_us = calibration.known[name] + calibration.shift_us() - 0.7
    taken = []
    _, drift_us = calibration.undisturbed(lambda: taken.append(1), GRAPHS)
    assert abs(drift_us) < calibration.MOST_DRIFT_US
    assert calibration.known[name] > too_short_us + 0.2
    assert len(taken) > 1
