"""What is said below the table."""

from __future__ import annotations

import sys
import sysconfig
from dataclasses import replace

import pytest
from rich.console import Console

from runner.device.processes import ROOT
from runner.findings.names import Names
from runner.findings.notes import reason_of, row_notes, source_line
from runner.records.case import CaseRecord, Choice
from runner.records.plan import Plan
from runner.records.row import Row
from runner.records.settings import Settings
from runner.report.case_table import row_text
from runner.report.live import LiveReport
from runner.timing.verdict import verdict

WHY = "ncu: ncu is not there: install it"


def row(impl, status="ok", reason="", **metrics):
    case = CaseRecord(Choice("gelu", {"cols": 4}), Choice(impl, {}), (), Settings("cpu", 0))
    return Row(case=case, status=status, reason=reason, metrics=metrics)


def test_what_a_missing_tool_leaves_out_is_said_once_for_all_cases():
    rows = [row("torch", not_measured=WHY, verdict="ok"), row("naive", not_measured=WHY, verdict="ok")]
    assert row_notes(rows, Names([one.case for one in rows])) == [f"gelu torch and naive: not measured: {WHY}"]


def test_where_nothing_was_observed_the_reason_says_so_already():
    rows = [row("torch", "unsupported", WHY, not_measured=WHY)]
    assert row_notes(rows, Names([one.case for one in rows])) == [f"gelu torch: unsupported: {WHY}"]


TRACEBACK = f"""Traceback (most recent call last):
  File "{ROOT}/runner/worker/job.py", line 156, in ready
    call = self._first_calls(call, inputs, device)
  File "/home/me/k.py", line 6, in f
    return inner(x)
  File "/home/me/.venv/lib/python3.11/site-packages/torch/_tensor.py", line 9, in wrapped
    raise ValueError("my own")
ValueError: my own
"""


def failed(impl, detail):
    one = replace(row(impl, "error", "ValueError: my own"), detail=detail)
    return replace(one, files=(f"files/{one.case.key}/other.txt", f"files/{one.case.key}/error.txt"))


def test_a_failure_is_told_with_its_place_and_where_its_traceback_is():
    rows = [failed("mine", TRACEBACK), failed("yours", TRACEBACK)]
    names = Names([one.case for one in rows])
    key = rows[0].case.key
    assert row_notes(rows, names) == [
        f"gelu mine and yours: error: ValueError: my own (k.py:6); its traceback: files/{key}/error.txt"
    ]
    assert row_text(rows[0], names, reason_of(rows[0])) == "gelu mine: error: ValueError: my own (k.py:6)"


DUMP = f"""printed
Fatal Python error: Segmentation fault

Current thread 0x00007f303fc14b80 (most recent call first):
  File "{sysconfig.get_path("purelib")}/triton/runtime/interpreter.py", line 459 in create_masked_store
  File "/home/me/k.py", line 6 in kernel
  File "/home/me/k.py", line 9 in add
  File "{ROOT}/runner/worker/job.py", line 135 in ready
"""


@pytest.mark.parametrize(
    ("detail", "where"),
    [
        (TRACEBACK.replace("/home/me/k.py", f"{ROOT}/kernels/gelu/triton.py"), "kernels/gelu/triton.py:6"),
        (TRACEBACK.replace("/home/me/k.py", f"{ROOT}/runner/implementations/file.py"), ""),
        (TRACEBACK.replace("/home/me/k.py", sysconfig.get_path("stdlib") + "/json/decoder.py"), ""),
        (TRACEBACK.replace("/home/me/k.py", "<string>"), ""),
        (TRACEBACK.replace("/home/me/k.py", "cuda/core/_utils/cuda_utils.pyx"), ""),
        (TRACEBACK.replace("/home/me/k.py", f"{ROOT}/kernels/cuda_nvrtc.py"), ""),
        ("Last words\n" + TRACEBACK, ""),
        (DUMP, "k.py:6"),
        ("", ""),
    ],
)
def test_a_place_is_neither_the_runners_nor_a_librarys(detail, where):
    assert source_line(detail) == where


CAUSE = f"""{TRACEBACK}
The above exception was the direct cause of the following exception:

"""


@pytest.mark.parametrize(
    ("wrapper", "where"),
    [
        (
            TRACEBACK.replace("line 6, in f", "line 40, in launch"),
            "k.py:6",
        ),  # by a library
        (TRACEBACK.replace("/home/me/.venv/lib/python3.11/site-packages/torch/_tensor.py", "/home/me/k.py"), "k.py:9"),
        (TRACEBACK.replace("/home/me/k.py", f"{ROOT}/runner/worker/job.py"), "k.py:6"),
    ],
)
def test_the_place_of_an_error_that_a_library_wraps_is_where_it_arose(wrapper, where):
    assert source_line(CAUSE + wrapper) == where


def test_a_library_without_a_line_of_the_implementation_leaves_the_line_of_the_call():
    library = TRACEBACK.replace("/home/me/k.py", "<string>")
    assert source_line(CAUSE.replace(TRACEBACK, library) + TRACEBACK) == "k.py:6"


def test_what_to_relax_for_an_unsure_time_is_the_field_of_its_device():
    rows = [row("torch", verdict="not_converged"), row("naive", verdict="ok"), row("triton", verdict="not_converged")]
    rows = [replace(one, device=name) for one, name in zip(rows, ("cpu", "cpu", "NVIDIA H200"), strict=True)]
    wide, names = "times have a wider interval than asked for", Names([one.case for one in rows])
    assert row_notes(rows[:2], names) == [f"not_converged: 1 of 2 {wide} (measure.benchmark.target_cpu_pct)"]
    assert row_notes(rows, names) == [
        f"not_converged: 1 of 3 {wide} (measure.benchmark.target_cpu_pct)",
        f"not_converged: 1 of 3 {wide} (measure.benchmark.target_pct)",
    ]
    figures = {"converged": False, "stat_pct": 0.3, "interval_pct": 0.3, "samples": 90, "drift_pct": -4.0}
    judged = verdict({"instrument": "perf_counter", **figures}, 0.5)
    rows[0] = replace(rows[0], metrics={**rows[0].metrics, **judged})
    assert row_notes(rows[:2], names) == [
        "not_converged: 1 of 2 times drift by more than asked for (measure.benchmark.target_cpu_pct); see drift_pct"
    ]


def test_who_shares_a_gpu_is_no_matter_of_cpu_time():
    rows = [replace(row("torch", verdict="contended"), device="NVIDIA H200"), row("naive", verdict="ok")]
    said = row_notes(rows, Names([one.case for one in rows]))
    assert said == [
        "contended: 1 of 2 cases ran while another process started or stopped using the GPU; see timer_drift_us"
    ]
    said = row_notes([replace(one, device="cpu") for one in rows], Names([one.case for one in rows]))
    assert said == ["contended: 1 of 2 cases shared their CPUs with other processes; see cpu_wait_pct"]


def test_reasons_that_differ_in_their_numbers_alone_are_told_once():
    def bound(impl, us):
        told = f"back to back, there is a call every {us} us, and the GPU works 3.1 us on it: launching takes the rest"
        return row(impl, verdict="launch_bound", verdict_reason=told)

    rows = [bound("torch", 39.8), bound("naive", 81.2), bound("triton", 39.8)]
    (said,) = row_notes(rows, Names([one.case for one in rows]))
    assert said.startswith(
        "gelu torch, naive and triton like it: launch_bound: back to back, there is a call every 39.8 us, "
    )


@pytest.mark.parametrize("status", ["wrong", "error", "oom", "unsupported"])
def test_failures_of_several_implementations_are_told_apart_unless_their_reasons_are_equal(status, capsys):
    counts = {"a": (5, 7), "b": (5, 7), "c": (6, 7), "d": (5, 8), "e": (9, 9)}
    rows = [
        replace(one, case=replace(one.case, workload=Choice("gelu", {"cols": cols})))
        for impl, values in counts.items()
        for cols, count in enumerate(values)
        for one in [row(impl, status, f"{count} of 9 are bad", **({"correct": False} if status == "wrong" else {}))]
    ]
    names = Names([one.case for one in rows])
    assert [note.partition(" are")[0] for note in row_notes(rows, names)] == [
        f"gelu cols=0 a, b and 2 more like it: {status}: 5 of 9",
        f"gelu cols=0 c and 1 more like it: {status}: 6 of 9",
        f"gelu cols=0 d and 1 more like it: {status}: 5 of 9",
        f"gelu cols=0 e and 1 more: {status}: 9 of 9",
    ]
    said = row_notes(rows[::2], Names([one.case for one in rows[::2]]))
    assert [note.partition(" are")[0] for note in said] == [
        f"gelu a, b and d: {status}: 5 of 9",
        f"gelu c: {status}: 6 of 9",
        f"gelu e: {status}: 9 of 9",
    ]


def test_a_log_tells_such_a_reason_once(capsys):
    rows = [
        row("torch", "wrong", f"y: {count} of 65536 elements wrong: got {got}, want 3", correct=False)
        for count, got in ((57480, 0.000119753), (114704, 7.45227e-05))
    ]
    plan = Plan(cases=(rows[0].case,), name="gelu")
    with LiveReport(plan, Console(file=sys.stdout), 2) as live:
        for one in rows:
            live.done(one)
    assert capsys.readouterr().out.splitlines() == [
        "[1/2] gelu torch: wrong: y: 57480 of 65536 elements wrong: got 0.000119753, want 3",
        "[2/2] gelu torch: wrong",
    ]
    assert len(row_notes(rows, Names([one.case for one in rows]))) == 1


def test_failures_at_two_lines_of_a_file_are_two():
    rows = [failed("mine", TRACEBACK), failed("yours", TRACEBACK.replace("line 6", "line 7"))]
    assert len(row_notes(rows, Names([one.case for one in rows]))) == 2
