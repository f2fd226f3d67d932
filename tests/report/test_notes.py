"""What is said below the table."""

from __future__ import annotations

from dataclasses import replace

from runner.case import Case, Choice
from runner.report.derive import Names
from runner.report.terminal import notes
from runner.row import Row

WHY = "ncu: ncu is not there: install it"


def row(impl, status="ok", reason="", **metrics):
    case = Case(Choice("gelu", {"cols": 4}), Choice(impl, {}), (), "cpu", 0)
    return Row(case=case, status=status, reason=reason, metrics=metrics)


def test_what_a_missing_tool_leaves_out_is_said_once_for_all_cases():
    rows = [row("torch", unobserved=WHY, verdict="ok"), row("naive", unobserved=WHY, verdict="ok")]
    assert notes(rows, Names([one.case for one in rows])) == [f"gelu torch and 1 more: not observed: {WHY}"]


def test_where_nothing_was_observed_the_reason_says_so_already():
    rows = [row("torch", "unsupported", WHY, unobserved=WHY)]
    assert notes(rows, Names([one.case for one in rows])) == [f"gelu torch: unsupported: {WHY}"]


def test_what_to_relax_for_an_unsure_time_is_the_field_of_its_device():
    rows = [row("torch", verdict="not_converged"), row("naive", verdict="ok"), row("triton", verdict="not_converged")]
    rows = [replace(one, device=name) for one, name in zip(rows, ("cpu", "cpu", "NVIDIA H200"), strict=True)]
    said = "times are less sure than asked (measure.benchmark.target_cpu_pct"
    assert notes(rows[:2], Names([one.case for one in rows])) == [f"not_converged: 1 of 2 {said})"]
    both = f"not_converged: 2 of 3 {said} and measure.benchmark.target_pct)"
    assert notes(rows, Names([one.case for one in rows])) == [both]
