"""Pages that Nsight Compute printed on an H200, read as kernels, advice and columns."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from runner.measure.ncu import COLUMNS, report
from runner.measure.ncu.report import NcuProfile

RECORDED = Path(__file__).with_name("ncu")
RAW, DETAILS = ((RECORDED / f"{page}.csv").read_text() for page in ("raw", "details"))
BASE = {"Mbyte": ("byte", 1e6), "Kbyte/block": ("byte/block", 1e3), "ms": ("ns", 1e6), "Ghz": ("hz", 1e9)}
LEAST = 2 * 16384 * 4096 * 4  # bytes: each element of a softmax read once and written once


def in_base_units(page: str) -> str:
    """Return ``page`` in the units of ``--print-units base``: computed here, not recorded."""
    names, units, *lines = csv.reader(io.StringIO(page))
    scales = [BASE.get(unit, (unit, None)) for unit in units]
    told = io.StringIO()
    writer = csv.writer(told, quoting=csv.QUOTE_ALL)
    writer.writerows([names, [unit for unit, _ in scales]])
    for line in lines:
        writer.writerow(
            word if scale is None else f"{float(word) * scale:.6f}"
            for word, (_, scale) in zip(line, scales, strict=True)
        )
    return told.getvalue()


@pytest.fixture
def softmax() -> report.Kernel:
    return report.kernels(RAW)[0]


@pytest.fixture
def rules() -> list[report.Rule]:
    return report.rules(DETAILS)


@pytest.mark.parametrize("page", [RAW, in_base_units(RAW)], ids=["scaled", "base"])
def test_figures_are_in_base_units_however_they_were_printed(page):
    softmax, of_torch, product, gemm = report.kernels(page)
    assert [kernel["gpu_us"] for kernel in (softmax, of_torch, product, gemm)] == pytest.approx(
        [129.056, 269.376, 126.08, 3493.952]
    )
    assert softmax["dram_bytes"] == pytest.approx(268_456_704 + 242_479_616)
    assert gemm["shared_bytes"] == 50_176
    assert softmax["clock_mhz"] == pytest.approx(1455.628)
    assert (softmax["kernel"], softmax["grid"], softmax["block"]) == ("_softmax_rows", "(16384, 1, 1)", "(128, 1, 1)")
    assert softmax["within"] == "measured"


def test_ranges_within_each_other_are_a_path():
    domain = '""<default domain>:{}:none:none:none:none:none:none""'
    nested = f'"1296  {domain.format("call")} {domain.format("step_0")} {domain.format("forward")} "'
    first = RAW.index('"1296  ')
    page = RAW[:first] + nested + RAW[RAW.index('"', RAW.index(':none"" ', first) + 7) + 1 :]
    assert report.kernels(page)[0]["within"] == "call/step_0/forward"


def test_what_ncu_says_above_the_page_is_no_kernel():
    assert len(report.kernels(f"==WARNING== something\n{RAW}")) == 4
    assert report.kernels("==ERROR== Failed to load report\n") == []
    assert report.kernels("".join(RAW.splitlines(keepends=True)[:2])) == []


@pytest.mark.parametrize("word", ["n/a", "nan", ""])
def test_a_figure_that_a_gpu_does_not_have_is_left_out(softmax, word):
    page = RAW.replace('"268.456704"', f'"{word}"')
    kernel = report.kernels(page)[0]
    assert kernel == softmax | {"dram_bytes": None}
    columns = NcuProfile([kernel], [], "", {"bytes_min": LEAST}).columns()
    assert not columns.keys() & {"dram_bytes", "bytes_ratio"}
    assert columns["ncu_gpu_us"] == pytest.approx(129.056)


def test_what_limits_occupancy():
    assert [kernel["occupancy_limiter"] for kernel in report.kernels(RAW)] == [
        "registers",
        "warps",  # as few as registers allow, and all that there is room for
        "warps",
        "registers and shared memory",
    ]


def test_waves_are_not_taken_from_two_decimals(softmax):
    assert softmax["waves"] == pytest.approx(16384 / (132 * 9))
    assert softmax["tail_pct"] == pytest.approx(100 * (1 - 16384 / (132 * 9) / 14))
    figures = {report.BLOCKS: 132 * 9 + 1.0, report.SMS: 132.0, report.LIMITS["registers"]: 9.0}
    two = report.launch_figures({**figures, report.WAVES: 1.0})  # one block more: rounded, its second wave is gone
    assert two["tail_pct"] == pytest.approx(50, abs=0.1)
    other = report.launch_figures({**figures, report.WAVES: 3.0})  # ncu counts otherwise: believe it
    assert (other["waves"], other["tail_pct"]) == (3.0, 0.0)


def test_advice_is_told_from_remarks(rules):
    assert len(rules) == 22
    assert {rule.kernel for rule in rules} == {"0", "1", "2", "3"}
    occupancy = next(rule for rule in rules if rule.name == "TheoreticalOccupancy")
    assert (occupancy.speedup_pct, occupancy.of_kernel) == (17.71, True)
    assert occupancy.text.endswith("is limited by the number of required registers.")


def test_shares_are_of_the_time_and_what_is_of_a_launch_is_the_dominant_ones(rules):
    figures = {"bytes_min": LEAST, "n_kernels": 4, "gpu_us": 4000.0}
    columns = NcuProfile(report.kernels(RAW), rules, "", figures).columns()
    times, dram = [129.056, 269.376, 126.08, 3493.952], [82.290783, 39.871801, 84.492770, 2.704549]
    assert columns["ncu_gpu_us"] == pytest.approx(sum(times))
    assert columns["dram_pct"] == pytest.approx(
        sum(us * share for us, share in zip(times, dram, strict=True)) / sum(times)
    )
    assert columns["ncu_kernel"].startswith("void cutlass::Kernel2")
    assert (columns["registers"], columns["occupancy_limiter"]) == (202, "registers and shared memory")
    assert columns["bytes_ratio"] == pytest.approx(columns["dram_bytes"] / LEAST)
    assert "ncu_note" not in columns
    assert columns.keys() <= COLUMNS.keys()


def test_the_kernel_that_takes_most_of_the_time_in_all_its_launches_is_the_dominant_one(softmax):
    kernels = report.kernels(RAW)[:2]
    assert NcuProfile(kernels, [], "", {}).dominant == kernels[1]
    again = [softmax | {"launch": str(launch)} for launch in (4, 5)]
    assert NcuProfile([*kernels, *again], [], "", {}).dominant["kernel"] == "_softmax_rows"


def test_the_gravest_advice_is_that_of_most_of_the_calls_time(rules, softmax):
    hint = NcuProfile([softmax], rules, "", {}).hint
    assert hint.startswith("_softmax_rows: CPIStall (17.7 % of the kernel): On average")  # and not the L2's compression
    assert len(hint) <= 300
    only_local = [rule for rule in rules if rule.kernel == "0" and not rule.of_kernel]
    assert "HighPipeUtilization (86.1 % locally)" in NcuProfile([softmax], only_local, "", {}).hint
    assert NcuProfile([softmax], [], "", {}).hint == ""


def test_a_part_of_a_call_has_no_figures_of_the_whole(softmax):
    columns = NcuProfile([softmax], [], "only the first 1", {"bytes_min": LEAST}).columns()
    assert not columns.keys() & {"ncu_gpu_us", "dram_bytes", "bytes_ratio"}
    assert columns["ncu_note"] == "only the first 1"
    assert columns["dram_pct"] == pytest.approx(82.290783)


@pytest.mark.parametrize(("counted", "why"), [(3, "ncu counts no copies and fills"), (1, "under ncu the call differs")])
def test_another_number_of_kernels_than_the_benchmarks_is_told(counted, why):
    kernels = report.kernels(RAW)[:2]
    assert why in NcuProfile(kernels, [], "", {"n_kernels": counted}).columns()["ncu_note"]


def test_a_line_per_kernel(rules):
    profile = NcuProfile(report.kernels(RAW), rules, "", {})
    lines = profile.lines()
    assert [line["launch"] for line in lines] == ["0", "1", "2", "3"]
    assert lines[3]["gpu_us"] == pytest.approx(3493.952, rel=1e-4)
    assert sum(line["share_pct"] for line in lines) == pytest.approx(100, abs=0.01)
    assert lines[0]["occupancy_allowed_pct"] == 56.25
    assert (lines[3]["registers"], lines[3]["shared_bytes"]) == (202, 50_176)
    assert "TheoreticalOccupancy" in lines[0]["advice"]


def test_the_page_to_read_begins_with_the_slowest_and_stays_narrow(rules):
    text = NcuProfile(report.kernels(RAW), rules, "", {"gpu_us": 4000.0}).summary()
    assert text.startswith("4 kernels, 4.018 ms on the GPU (+0.5 % compared with the benchmark's 4 ms")
    assert text.index("cutlass::Kernel2") < text.index("cunn_SoftMaxForwardReg") < text.index("_softmax_rows")
    assert "limited by the number of required registers" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 120


def test_sectors_per_request_are_those_of_the_longest_kernel():
    kernels = report.kernels(RAW)
    kernels[3]["load_sectors"] = 31.5  # recorded before ncu was asked for them
    columns = NcuProfile(kernels, (), "", {}).columns()
    assert columns["load_sectors"] == 31.5
    assert "store_sectors" not in columns
    assert report.launch_figures({report.RATIOS["store_sectors"]: 4.0})["store_sectors"] == 4.0
