"""The spreads and tables behind benchmarks/power.py, on figures that are known; and its processes. No GPU."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="benchmarks/power.py needs its peers to be importable")

from benchmarks.timer.power import OURS, SUSTAINED, Process, Spread, figures, report, run_all, runs_table, spread_table

ROW = {
    "gpu_us": 1600.0,
    "sustained_us": 1800.0,
    "sm_clock_mhz": 1755.4,
    "unloaded_clock_mhz": 1980.0,
    "power_w": 512.3,
    "temperature_c": 44,
    "throttle": "power limit",
    "verdict": "power_capped",
    "sustained_clock_mhz": 1500.0,
    "sustained_power_w": 690.0,
    "energy_mj": 1242.0,
}


def process(us=1600.0, peer_us=1700.0, **changes):
    row = ROW | {"gpu_us": us} | changes
    peers = {"do_bench, mean": peer_us, "do_bench_cudagraph": peer_us + 50, "Timer": peer_us + 60}
    return Process({"gpu": None}, peers, row, 14.0)


def cells(text, name):
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_spread_is_the_farthest_from_the_mean_and_the_range():
    spread = Spread.of([99.0, 100.0, 104.0])
    assert spread.mean == 101.0
    assert spread.deviation == pytest.approx(3 / 101)
    assert spread.range == pytest.approx(5 / 101)


def test_the_bar_is_for_the_farthest_run_not_for_the_range():
    near = [process(us) for us in (1593.0, 1600.0, 1600.0, 1600.0, 1607.0)]  # 0.44 % from the mean, 0.88 % apart
    line = cells(spread_table(near), "ours, rested, us")
    assert line[1:6] == ["1600.0", "0.438", "0.875", "687", "PASS"]
    far = [process(us) for us in (1590.0, 1600.0, 1600.0, 1600.0, 1610.0)]
    assert cells(spread_table(far), "ours, rested, us")[5] == "MISS"


def test_peers_are_shown_without_a_bar():
    line = cells(spread_table([process(peer_us=1700.0), process(peer_us=1900.0)]), "do_bench, mean, us")
    assert line[1:] == ["1800.0", "5.56", "11.1", "611", "", "1700.0", "1900.0"]


def test_every_run_shows_what_state_the_gpu_was_in():
    line = cells(runs_table([process(), process(throttle="", verdict="ok")]), "2")
    assert line == [
        *("2", "1600.0", "1800.0", "1755", "1980", "512", "44", "", "ok"),
        *("1500", "690.0", "1242.0"),
    ]


def test_what_a_gpu_does_not_say_is_left_out():
    silent = {name: value for name, value in ROW.items() if name not in ("energy_mj", "sustained_power_w", "power_w")}
    some = [Process({}, {"Timer": 1.0}, silent, 1.0)] * 2
    assert "energy" not in spread_table(some)
    assert cells(runs_table(some), "1")[-1] == ""
    assert "PASS" in report(some, some[0], 5.0, 1.0)


def test_without_load_there_is_no_sustained_figure():
    rested = {name: value for name, value in ROW.items() if not name.startswith("sustained")}
    assert SUSTAINED not in figures([Process({}, {}, rested, 1.0)])


def test_the_report_has_all_figures_and_names_what_missed():
    some = [process(us) for us in (1600.0, 1601.0, 1602.0, 1603.0, 1604.0)]
    zeros = process(1360.0, peer_us=1360.0, verdict="ok", sustained_us=1440.0)
    text = report(some, zeros, 5.0, 90.0)
    for name in [*OURS, *some[0].peers_us]:
        assert f"| {name}, us |" in text
    assert "of their mean: PASS" in text
    assert "| ours, sustained, us | 1440.0 | 1800.0 | 0.800 |" in text
    assert "| verdict | ok | power_capped |" in text
    swinging = [process(sustained_us=us) for us in (1700.0, 1800.0)]
    assert "of their mean: MISS: ours, sustained" in report(swinging, zeros, 5.0, 90.0)


def started(code):
    """A process that runs ``code``."""
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_process_measures_when_it_is_told_to_and_the_last_line_counts():
    record = json.dumps(vars(process()))
    code = f"assert input() == 'go'; print('a warning'); print({record!r})"
    assert run_all(["random", "zeros"], lambda _: started(code)) == [process(), process()]


def test_a_process_that_fails_ends_all():
    launched = []

    def launch(data):
        launched.append(started("input(); raise SystemExit(3)"))
        return launched[-1]

    with pytest.raises(RuntimeError, match="process 1 of 3 ended with code 3"):
        run_all(["random", "random", "zeros"], launch)
    assert len(launched) == 2
    assert launched[1].wait(10) != 0
