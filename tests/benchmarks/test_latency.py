"""The bar and the table behind benchmarks/timer/latency.py, on figures made up here; and on a GPU the bar itself."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="benchmarks/timer/latency.py needs the GPU's instruments to be importable")

from benchmarks.timer.latency import CALLS, COLUMNS, Beside, beside, report


def made(ours_us, plain_us, name="gelu", after_us=None):
    all_us = (ours_us, plain_us, after_us or plain_us)
    return Beside(
        name, 4.0, "launch_bound", 33.8, *({column: [*[us] * 6, 9 * us] for column in COLUMNS} for us in all_us)
    )


@pytest.mark.parametrize(
    ("ours_us", "plain_us", "near"),
    [(15.9, 15.0, True), (16.6, 15.0, False), (3.9, 3.0, True), (4.1, 3.0, False), (109.0, 100.0, True)],
)
def test_medians_agree_within_a_tenth_or_a_microsecond(ours_us, plain_us, near):
    assert [made(ours_us, plain_us).near(column) for column in COLUMNS] == [near] * 3


@pytest.mark.parametrize(("ours_us", "near"), [(28.0, True), (45.0, False), (15.0, False)])
def test_a_host_that_changed_between_the_plain_loops_allows_what_lies_between(ours_us, near):
    beside_them = made(ours_us, 20.0, after_us=40.0)
    assert beside_them.near("host_us") == near
    assert beside_them.medians("host_us") == f"{ours_us:.1f} (20.0, 40.0)"


def test_a_line_has_both_and_the_page_names_what_is_far():
    text = report([made(15.0, 15.2), made(30.0, 20.0, "softmax")], rounds=3)
    assert "| gelu | 4.00 | 33.8 | 15.0 (15.2, 15.2) | 15.0 (15.2, 15.2) | 15.0 (15.2, 15.2) | launch_bound |" in text
    assert "MISS: latency_us of softmax, host_us of softmax, pipelined_us of softmax\n" in text
    assert "rounds: PASS\n" in report([made(15.0, 15.2)], rounds=3)


def test_there_are_ten_calls():
    assert len(CALLS) == 10


@pytest.mark.gpu
@pytest.mark.parametrize("name", CALLS)
def test_on_a_gpu_a_caller_waits_as_long_as_in_a_plain_loop(name):
    found = beside(name, CALLS[name]())
    far = [f"{column}: {found.medians(column)} us" for column in COLUMNS if not found.near(column)]
    assert not far, f"{far}, plain loops in parentheses: {found}"
