"""The table on the terminal: what it shows in how much room."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from runner.experiment.case import CaseRecord, Choice
from runner.experiment.results import Comparison, Row
from runner.report import derive, terminal


def lecture(impl, us, measured_peak):
    """A row with all that the README's table shows, in as many digits."""
    case = CaseRecord(Choice("softmax", {"cols": 16384}), Choice(impl, {}), (), "cuda", 0)
    figures = {
        "gpu_us": us,
        "interval_pct": 0.2,
        "pct_of_measured_peak": measured_peak,
        "err_over_tol": 0.0758,
        "correct": True,
    }
    amounts = {"peak_mem_bytes": 3 * 2**30, "compile_s": 0.9, "flops": 1_342_160_896, "bytes_min": 2**31}
    return Row(case=case, status="ok", device="NVIDIA H200", metrics={**figures, **amounts, "verdict": "ok"})


ROWS = [lecture("naive", 2606.0, 19.0), lecture("torch", 645.3, 78.0), lecture("compiled", 589.6, 85.0)]
STAYS = ["implementation", "time", "speed-up", "vs base", "verdict"]
WHOLE = [
    "time",
    "±95 %",
    "speed-up",
    "vs base",
    "FLOP/s",
    "B/s",
    "% peak",
    "err/tol",
    "peak mem",
    "compile",
]


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
    assert order == ["FLOP/s", "B/s", "peak mem", "err/tol", "% peak", "compile", "±95 %"]


def slow(us):
    rows = [lecture("torch", 1.0, 78.0), lecture("mine", us, 1.0)]
    names = derive.Names([one.case for one in rows])
    return terminal.table(derive.lines(rows, None), names, 130).plain.splitlines()[-1]


def test_what_is_a_million_times_slower_is_not_0_times_as_fast():
    assert " 1.9e-06x " in slow(540_000.0)
    assert " 0.0045x " in slow(222.0)
    assert " 0.02x " in slow(50.0)


def rounds(torch_us, naive_us):
    torch, naive = ROWS[1].case.key, ROWS[0].case.key
    return Comparison(
        batches_us={torch: [torch_us * (1 + 1e-4 * (i % 2)) for i in range(10)], naive: [naive_us] * 10},
        instruments={torch: "graph_timestamps", naive: "graph_timestamps"},
    )


def test_rounds_that_contradict_the_two_times_are_told():
    names = derive.Names([one.case for one in ROWS])

    def notes(torch_us, naive_us, chosen=()):
        lines = derive.lines(ROWS[:2], None, [rounds(torch_us, naive_us)])
        return terminal.table(lines, names, 130, chosen).plain.partition("\n\n")[2]

    assert notes(645.3, 2606.0) == ""
    assert notes(645.3, 1290.6) == (
        "softmax naive: speed-up 0.50x was measured by alternating the two; the separate times above would give 0.25x\n"
    )
    assert notes(645.3, 1290.6, ["gpu_us"]) == ""


def test_columns_that_were_asked_for_are_shown_however_wide():
    assert heads(drawn(20, ["gpu_us"])) == ["implementation", "gpu_us", "verdict"]


def test_rates_have_si_prefixes():
    def cells(us, flops, bytes_min):
        row = lecture("torch", us, 78.0)
        row = replace(row, metrics={**row.metrics, "flops": flops, "bytes_min": bytes_min, "err_over_tol": 104_832.0})
        table = terminal.table(derive.lines([row], None), derive.Names([row.case]), 400).plain.splitlines()
        return dict(zip(*(re.split(r" {3,}", line.strip()) for line in (table[0], table[-1])), strict=False))

    fast = cells(501.9, 2_415_919_104, 2_147_483_648)
    assert (fast["FLOP/s"], fast["B/s"], fast["err/tol"]) == ("4.81 T", "4.28 T", "105 k")
    slow = cells(1e6, 999_700, 999.7)
    assert (slow["time"], slow["FLOP/s"], slow["B/s"]) == ("1 s", "1 M", "1 k")


def test_a_chosen_column_is_printed_without_an_exponent():
    row = replace(ROWS[0], metrics={**ROWS[0].metrics, "gpu_us": 123_456.7})
    table = terminal.table(derive.lines([row], None), derive.Names([row.case]), 80, ["gpu_us", "flops"]).plain
    assert table.splitlines()[-1].split()[-3:] == ["123457", "1342160896", "ok"]
