"""The spreads and tables behind benchmarks/power.py, on figures that are known; and its processes. No GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="benchmarks/power.py needs its peers to be importable")

from benchmarks.timer.power import OURS, Process, report, spread_table

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


def test_the_bar_is_for_the_farthest_run_not_for_the_range():
    near = [process(us) for us in (1593.0, 1600.0, 1600.0, 1600.0, 1607.0)]  # 0.44 % from the mean, 0.88 % apart
    line = cells(spread_table(near), "ours, rested, us")
    assert line[1:6] == ["1600.0", "0.438", "0.875", "687", "PASS"]
    far = [process(us) for us in (1590.0, 1600.0, 1600.0, 1600.0, 1610.0)]
    assert cells(spread_table(far), "ours, rested, us")[5] == "MISS"


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
