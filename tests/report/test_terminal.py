"""The table on the terminal: what it shows in how much room."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from runner.findings.lines import derive_lines
from runner.findings.names import Names
from runner.findings.run import Run
from runner.records.case import CaseRecord, Choice
from runner.records.paired_rounds import PairedRounds
from runner.records.plan import Plan
from runner.records.row import Row
from runner.records.settings import Settings
from runner.report.case_table import styled_table
from runner.report.console import console, say
from runner.report.terminal import terminal_report


def lecture(impl, us, measured_peak):
    """A row with all that the README's table shows, in as many digits."""
    case = CaseRecord(Choice("softmax", {"cols": 16384}), Choice(impl, {}), (), Settings("cuda", 0))
    figures = {
        "gpu_us": us,
        "interval_pct": 0.2,
        "pct_of_measured_peak": measured_peak,
        "err_over_tol": 0.0758,
        "correct": True,
        "converged": True,
        "samples": 20,
        "separate_pct": 0.1,
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
    names = Names([one.case for one in ROWS])
    return styled_table(derive_lines(ROWS, None), names, width, chosen, with_footnotes=False).plain.splitlines()


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
    names = Names([one.case for one in rows])
    return styled_table(derive_lines(rows, None), names, 130, with_footnotes=False).plain.splitlines()[-1]


def test_what_is_a_million_times_slower_is_not_0_times_as_fast():
    assert " 0.0000019x " in slow(540_000.0)
    assert " 0.0045x " in slow(222.0)
    assert " 0.02x " in slow(50.0)


def rounds(torch_us, naive_us):
    torch, naive = ROWS[1].case.key, ROWS[0].case.key
    return PairedRounds(
        batches_us={torch: [torch_us * (1 + 1e-4 * (i % 2)) for i in range(10)], naive: [naive_us] * 10},
        instruments={torch: "graph_timestamps", naive: "graph_timestamps"},
    )


def test_the_table_has_the_times_of_the_rounds_and_marks_those_measured_alone():
    names = Names([one.case for one in ROWS])

    def shown(rows, chosen=()):
        lines = derive_lines(rows, None, [rounds(660.0, 2640.0)])
        text = styled_table(lines, names, 400, chosen).plain
        cells = [re.split(r" {3,}", line.strip()) for line in text.splitlines()]
        return {line[0].removeprefix("★ "): line[1] for line in cells if len(line) > 2}, text

    times, text = shown(ROWS[:2])
    assert times == {"implementation": "time", "naive": "2.64 ms", "torch": "660 us"}
    assert "#" not in text
    times, text = shown(ROWS)
    assert times == {"implementation": "time", "naive": "2.64 ms", "torch": "660 us", "compiled": "# 589.6 us"}
    assert "\n# measured alone, not in paired rounds as the others\n" in text
    times, text = shown(ROWS, ["time_us", "paired_time_us"])
    assert times["torch"] == "645.3 us"
    assert "# " not in text.splitlines()[4]


def test_rates_are_those_of_the_time_beside_them():
    line = derive_lines(ROWS[:2], None, [rounds(2 * 645.3, 2640.0)])[1]
    table = styled_table([line], Names([ROWS[1].case]), 400).plain.splitlines()
    cells = dict(zip(*(re.split(r" {3,}", each.strip()) for each in (table[0], table[-1])), strict=False))
    assert (cells["time"], cells["FLOP/s"], cells["B/s"], cells["% peak"]) == ("1.291 ms", "1.04 T", "1.66 T", "39 %")


def test_columns_that_were_asked_for_are_shown_however_wide():
    assert heads(drawn(20, ["gpu_us"])) == ["implementation", "gpu_us", "verdict"]


def test_rates_have_si_prefixes():
    def cells(us, flops, bytes_min):
        row = lecture("torch", us, 78.0)
        row = replace(row, metrics={**row.metrics, "flops": flops, "bytes_min": bytes_min, "err_over_tol": 104_832.0})
        table = styled_table(derive_lines([row], None), Names([row.case]), 400).plain.splitlines()
        return dict(zip(*(re.split(r" {3,}", line.strip()) for line in (table[0], table[-1])), strict=False))

    fast = cells(501.9, 2_415_919_104, 2_147_483_648)
    assert (fast["FLOP/s"], fast["B/s"], fast["err/tol"]) == ("4.81 T", "4.28 T", "105 k")
    slow = cells(1e6, 999_700, 999.7)
    assert (slow["time"], slow["FLOP/s"], slow["B/s"]) == ("1 s", "1 M", "1 k")


def test_a_chosen_column_is_printed_without_an_exponent():
    row = replace(ROWS[0], metrics={**ROWS[0].metrics, "gpu_us": 123_456.7})
    table = styled_table(derive_lines([row], None), Names([row.case]), 80, ["gpu_us", "flops"]).plain
    assert re.split(r" {3,}", table.splitlines()[-1].strip())[-3:] == ["123.5 ms", "1.342 Gflop", "ok"]


def test_what_a_narrow_terminal_leaves_out_is_named_with_how_to_see_it():
    names = Names([one.case for one in ROWS])
    assert styled_table(derive_lines(ROWS, None), names, 80).plain.endswith(
        "\nno room for FLOP/s, B/s, % peak, err/tol, peak mem; to see them: a wider terminal, or python -m runner "
        "show columns=tflops,gbps,pct_of_measured_peak,err_over_tol,peak_mem_bytes\n"
    )
    assert "no room" not in styled_table(derive_lines(ROWS, None), names, 130).plain
    of_a_run = styled_table(derive_lines(ROWS, None), names, 80, folder=Path("my runs/a")).plain
    assert "python -m runner show 'my runs/a' columns=tflops," in of_a_run


def chosen(**figures):
    row = replace(ROWS[1], metrics={**ROWS[1].metrics, **figures})
    table = styled_table(derive_lines([row], None), Names([row.case]), 400, list(figures)).plain
    return re.split(r" {3,}", table.splitlines()[-1].strip())[1:-1]


def test_chosen_columns_have_si_prefixes_and_no_exponents():
    assert chosen(gpu_us=31_500.0, gpu_warm_us=0.37, energy_mj=4280.0, sm_clock_mhz=1980.0) == [
        "31.5 ms",
        "0.37 us",
        "4.28 J",
        "1.98 GHz",
    ]
    assert chosen(interval_pct=10_536.0, stat_pct=4.25, pct_of_measured_peak=101.2) == [">100 %", "4.2 %", "101.2 %"]
    assert chosen(bytes_min=2**31, samples=4096, max_abs_err=2.4e-7, warmup_s=5e5) == [
        "2 GiB",
        "4096",
        "2.4e-07",
        "500000 s",
    ]
    row = replace(ROWS[1], metrics={**ROWS[1].metrics, "flops": 6170, "gpu_us": 1e6, "bytes_min": 4.28e9})
    table = styled_table(derive_lines([row], None), Names([row.case]), 400, ["tflops", "gbps"]).plain
    assert "6.17 kFLOP/s   4.28 GB/s" in table


def test_an_interval_wider_than_its_time_is_said_to_be_so():
    row = replace(ROWS[1], metrics={**ROWS[1].metrics, "interval_pct": 10_536.2, "err_over_tol": 1.3e-7})
    table = styled_table(derive_lines([row], None), Names([row.case]), 400).plain
    assert " >100 % " in table
    assert " <0.001 " in table


def test_marks_tell_the_fastest_from_those_that_are_tied():
    rows = [lecture("naive", 2606.0, 19.0), lecture("torch", 502.0, 78.0), lecture("compiled", 501.9, 85.0)]
    names = Names([one.case for one in rows])
    text = styled_table(derive_lines(rows, None), names, 130).plain
    assert [word for word in ("★", "≈ torch", "≈ compiled", "≈ naive") if word in text] == ["≈ torch", "≈ compiled"]
    assert "\n\n≈ tied for the fastest: cannot be told apart\n" in text
    assert "≈" not in styled_table(derive_lines(ROWS, None), Names([one.case for one in ROWS]), 130).plain


def launched(impl, us, pipelined_us, verdict, layers=6):
    case = CaseRecord(Choice("mlp", {"layers": layers}), Choice(impl, {}), (), Settings("cuda", 0))
    metrics = {"gpu_us": us, "interval_pct": 0.2, "pipelined_us": pipelined_us, "pipelined_pct": 1.0, "correct": True}
    certain = {"converged": True, "samples": 20, "separate_pct": 0.1, "verdict": verdict}
    return Row(case=case, status="ok", device="NVIDIA H200", metrics=metrics | certain)


def test_where_launching_takes_longer_the_table_says_what_a_caller_gets_and_who_is_fastest_by_which():
    rows = [
        launched(impl, us, pipelined, verdict, layers)
        for layers in (4, 6)
        for impl, us, pipelined, verdict in (
            ("compiled", 851.0, 5285.0, "not_converged"),  # a graver doubt hides the verdict launch_bound
            ("cudagraph", 1689.0, 1700.0, "ok"),
            ("triton", 1950.0, 1710.0, "ok"),
        )
    ]
    names = Names([one.case for one in rows])
    text = styled_table(derive_lines(rows, None), names, 130).plain
    assert text.splitlines()[0].split()[:3] == ["implementation", "time", "pipelined"]
    assert " ★ compiled         851 us    5.285 ms " in text
    assert (
        "\nmlp layers=4 and 1 more: fastest by GPU time: compiled; "
        "by pipelined time (calls back to back): cudagraph, triton\n"
    ) in text
    lone = [one for one in rows if one.case.impl.name == "compiled"]
    assert "fastest by" not in styled_table(derive_lines(lone, None), names, 130).plain
    alike = [*lone, *(launched("triton", 60_000.0, 60_000.0, "ok", layers) for layers in (4, 6))]
    text = styled_table(derive_lines(alike, None), names, 130).plain
    assert ": fastest by GPU time and by pipelined time (calls back to back): compiled\n" in text
    wide = [replace(row, metrics={**row.metrics, "pipelined_pct": 120.0}) for row in rows]  # of few calls
    text = styled_table(derive_lines(wide, None), names, 130).plain
    assert "calls back to back): cudagraph, triton\n" in text  # and not one that takes three times as long
    alone = [replace(one, metrics={**one.metrics, "pipelined_us": one.time_us}) for one in rows]
    assert "pipelined" not in styled_table(derive_lines(alone, None), names, 130).plain


def test_the_line_of_constants_wraps_at_the_width_of_the_terminal(tmp_path):
    fields = {f"field{i}": i for i in range(20)}
    case = CaseRecord(Choice("gelu", fields), Choice("torch", {}), (), Settings("cpu", 0))
    row = Row(case=case, status="ok", device="cpu", metrics={"wall_us": 1.0})
    run = Run(tmp_path, Plan(cases=(case,), name="gelu"), [row])
    drawn = terminal_report(run, 60)[0].plain.splitlines()
    assert drawn[0] == "gelu on cpu"
    assert max(map(len, drawn)) <= 60
    assert " ".join(line.strip() for line in drawn[1:5]) == "gelu: " + " ".join(f"field{i}={i}" for i in range(20))


def test_a_function_between_colons_is_no_emoji():
    printed = io.StringIO()
    say(console(printed), "k.py:fire: not measured")
    assert printed.getvalue() == "k.py:fire: not measured\n"
