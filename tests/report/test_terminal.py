"""The table on the terminal: what it shows in how much room."""

from __future__ import annotations

from itertools import pairwise

import pytest

from runner.case import Case, Choice
from runner.report import derive, terminal
from runner.row import Row


def lecture(impl, us, roof):
    """A row with all that the README's table shows, in as many digits."""
    case = Case(Choice("softmax", {"cols": 16384}), Choice(impl, {}), (), "cuda", 0)
    figures = {"gpu_us": us, "interval_pct": 0.2, "pct_roof": roof, "err_over_tol": 0.0758, "correct": True}
    amounts = {"peak_mem_bytes": 3 * 2**30, "compile_s": 0.9, "flops": 1_342_160_896, "bytes_min": 2**31}
    return Row(case=case, status="ok", device="NVIDIA H200", metrics={**figures, **amounts, "verdict": "ok"})


ROWS = [lecture("naive", 2606.0, 19.0), lecture("torch", 645.3, 78.0), lecture("compiled", 589.6, 85.0)]
STAYS = ["implementation", "time", "speed-up", "vs base", "verdict"]
WHOLE = ["time", "±95 %", "speed-up", "vs base", "TFLOP/s", "GB/s", "of roof", "err/tol", "peak mem", "compile"]


def drawn(width, chosen=()):
    names = derive.Names([one.case for one in ROWS])
    return terminal.table(derive.lines(ROWS, None), names, width, chosen).plain.splitlines()


def heads(lines):
    return [word for word in ["implementation", *WHOLE, "gpu_us", "verdict"] if word in lines[0]]


@pytest.mark.parametrize("width", [60, 70, 80, 90, 100, 110, 120])
def test_the_table_fits_a_narrow_terminal(width):
    lines = drawn(width)
    assert max(map(len, lines)) <= width
    assert set(STAYS) <= set(heads(lines))


def test_where_there_is_room_all_columns_are_shown():
    assert heads(drawn(130)) == ["implementation", *WHOLE, "verdict"]
    assert drawn(130) == drawn(400)


def test_rates_go_first_and_the_interval_last():
    gone = [set(WHOLE) - set(heads(drawn(width))) for width in range(130, 56, -1)]
    order = [one for less, more in pairwise(gone) for one in more - less]
    assert order == ["TFLOP/s", "GB/s", "peak mem", "err/tol", "of roof", "compile", "±95 %"]


def test_columns_that_were_asked_for_are_shown_however_wide():
    assert heads(drawn(20, ["gpu_us"])) == ["implementation", "gpu_us", "verdict"]
