"""``measure=memory``: figures of calls whose memory is known, and how records become figures."""

from __future__ import annotations

import csv
import pickle

import pytest
import torch

from runner.kernels.spans import span
from runner.measure import CannotMeasure, MeasureContext
from runner.measure.memory import COLUMNS, Memory
from runner.measure.memory.allocations import (
    Mark,
    Observed,
    allocation_sites,
    held_at_peak,
    most_saved,
    part_memory,
    where,
)
from runner.timing.call import Call

KIB = 1024
BLOCK = 512 * KIB  # a multiple of what the allocator of a GPU rounds to
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def measured(call, device, tmp_path, **changes):
    fields = {"top": 5, "snapshot": True, "max_events": 10_000} | changes
    return Memory(**fields).measure(call, MeasureContext(device, None, tmp_path / "memory"))


def lines(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def block(device, count=1):
    return torch.empty(count * BLOCK, dtype=torch.uint8, device=device)


@pytest.mark.parametrize("device", DEVICES)
def test_each_part_has_the_peak_that_was_reached_in_it(device, tmp_path):
    """Of up to 1 MiB torch's allocator gives exactly what is asked for, whatever its cache holds."""

    def run():
        with span("forward"):
            kept = block(device)
            passing = block(device, 2)
            del passing
        with span("backward"):
            last = block(device)
        return kept, last

    figures = measured(Call(run), device, tmp_path)
    assert figures.keys() <= {*COLUMNS, "peak_mem_bytes"}
    assert figures["peak_forward_bytes"] == 3 * BLOCK
    assert figures["peak_backward_bytes"] == 2 * BLOCK
    assert "peak_optimizer_bytes" not in figures
    assert figures["peak_mem_bytes"] == 3 * BLOCK
    assert figures["allocations"] == 3
    assert figures["allocated_bytes"] == 4 * BLOCK
    assert figures["largest_alloc_bytes"] == 2 * BLOCK
    assert figures["saved_bytes"] == 0
    forward, backward = lines(tmp_path / "memory" / "parts.csv")
    assert (forward["part"], forward["begin_bytes"], forward["end_bytes"]) == ("forward", "0", str(BLOCK))
    assert (backward["part"], backward["allocations"]) == ("backward", "1")


@pytest.mark.parametrize("device", DEVICES)
def test_an_allocation_is_told_by_the_line_that_made_it(device, tmp_path):
    def run():
        with span("forward"):
            return torch.zeros(BLOCK, dtype=torch.uint8, device=device)

    measured(Call(run), device, tmp_path)
    (line,) = lines(tmp_path / "memory" / "allocations.csv")
    file, _, function = line["where"].partition(" ")
    assert file.rpartition(":")[0].endswith("test_memory.py")
    assert int(file.rpartition(":")[2]) == run.__code__.co_firstlineno + 2
    assert function == "run"
    assert (line["part"], line["count"], line["at_peak_bytes"]) == ("forward", "1", str(BLOCK))
    summary = (tmp_path / "memory" / "summary.txt").read_text()
    assert "1 allocation, 512 KiB in all" in summary
    assert f"test_memory.py:{run.__code__.co_firstlineno + 2} run" in summary


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("steps", [1, 2])
def test_saved_for_backward_are_the_calls_own_tensors_each_once(device, steps, tmp_path):
    """``h`` and ``e`` count once, inputs, weights and ``h * e`` never. ``e`` is saved twice; steps do not add up."""
    x = torch.ones(256, 256, device=device)
    w = torch.ones(256, 256, device=device, requires_grad=True)

    def run():
        for _ in range(steps):
            w.grad = None
            h = x @ w  # saves x
            e = h.exp()  # saves e
            loss = (h * e).sum()  # saves both
            loss.backward()
        return (loss.detach(),)

    run()
    figures = measured(Call(run, inputs=(x,)), device, tmp_path)
    assert figures["saved_bytes"] == 2 * 4 * 256 * 256
    assert figures["input_bytes"] == 4 * 256 * 256


@pytest.mark.parametrize("device", DEVICES)
def test_a_call_that_allocates_nothing_says_so(device, tmp_path):
    x = torch.ones(1000, device=device)
    figures = measured(Call(lambda: (x.neg_(),)), device, tmp_path)
    assert (figures["allocations"], figures["peak_mem_bytes"], figures["largest_alloc_bytes"]) == (0, 0, 0)
    assert "allocates nothing" in (tmp_path / "memory" / "summary.txt").read_text()


def test_what_a_call_frees_of_the_one_before_is_no_memory_of_its_own(tmp_path):
    """As a training step without a reset frees the gradients of the last one. Each part and the whole start at 0."""
    kept = [block("cpu", 8)]

    def run():
        kept.clear()
        with span("forward"):
            h = block("cpu", 2)
        with span("backward"):
            kept.append(block("cpu", 8))
        return (h,)

    for again in ("first", "second"):
        figures = measured(Call(run), "cpu", tmp_path / again)
        assert figures["peak_forward_bytes"] == 2 * BLOCK
        assert figures["peak_backward_bytes"] == figures["peak_mem_bytes"] == 10 * BLOCK
        assert lines(tmp_path / again / "memory" / "parts.csv")[0]["begin_bytes"] == "0"


def test_a_cpu_has_no_snapshot_and_the_summary_says_so(tmp_path):
    measured(Call(lambda: (torch.ones(1000),)), "cpu", tmp_path)
    assert not (tmp_path / "memory" / "snapshot.pickle").exists()
    assert "no snapshot.pickle" in (tmp_path / "memory" / "summary.txt").read_text()


@pytest.mark.gpu
def test_the_snapshot_of_a_gpu_is_what_the_viewer_reads(tmp_path):
    from torch.cuda import _memory_viz

    measured(Call(lambda: (block("cuda"),)), "cuda", tmp_path)
    with open(tmp_path / "memory" / "snapshot.pickle", "rb") as file:
        seen = pickle.load(file)  # our own
    made = [entry for entry in seen["device_traces"][0] if entry["action"] == "alloc"]
    assert [entry["size"] for entry in made] == [BLOCK]
    assert any(frame["filename"] == __file__ for frame in made[0]["frames"])
    assert "<html" in _memory_viz.trace_plot(seen)


@pytest.mark.gpu
def test_a_gpu_without_a_snapshot_if_none_is_wanted(tmp_path):
    measured(Call(lambda: (block("cuda"),)), "cuda", tmp_path, snapshot=False)
    assert not (tmp_path / "memory" / "snapshot.pickle").exists()


@pytest.mark.gpu
def test_a_call_of_more_events_than_are_recorded_is_not_told_of(tmp_path):
    with pytest.raises(CannotMeasure, match=r"more than 10 .* raise measure\.memory\.max_events"):
        measured(Call(lambda: [block("cuda") for _ in range(20)]), "cuda", tmp_path, max_events=10)


def test_a_history_as_a_gpu_writes_it_is_read():
    """The entries are made by hand, as torch documents them."""
    from runner.measure.memory.observe import read_history

    frames = [{"filename": "x.py", "line": 3, "name": "run"}]
    entries = [
        {"action": "free_requested", "addr": 1, "size": 7, "frames": []},  # held before the call
        {"action": "alloc", "addr": 2, "size": 10, "frames": frames},
        {"action": "alloc", "addr": 3, "size": 5, "frames": []},
        {"action": "free_requested", "addr": 2, "size": 10, "frames": []},
        {"action": "alloc", "addr": 2, "size": 4, "frames": []},
    ]
    seen = read_history(entries, [])
    assert seen.changes == [(1, -7), (2, 10), (3, 5), (2, -10), (2, 4)]
    assert seen.sizes == [10, 5, 4]
    assert held_at_peak(seen.changes) == {1, 2}
    assert seen.sources[1] == (("x.py:3 run",), "")


def test_parts_nest_and_a_peak_counts_for_all_that_are_open():
    marks = [
        Mark("step_0", 0, 0, 0),
        Mark("forward", 5, 20, 1),  # 20 before forward begins: step_0's alone
        Mark("layer_0", 6, 6, 2),
        Mark("", 8, 50, 3),
        Mark("", 7, 9, 4),
        Mark("", 0, 7, 5),
    ]
    found = {part.part: part for part in part_memory(marks)}
    assert list(found) == ["step_0", "step_0/forward", "step_0/forward/layer_0"]
    assert [part.peak_bytes for part in found.values()] == [50, 50, 50]
    assert (found["step_0/forward"].begin_bytes, found["step_0/forward"].end_bytes) == (5, 7)
    assert [part.allocations for part in found.values()] == [5, 3, 1]
    assert (
        part_memory([Mark("a", 0, 0, 0), Mark("", 0, 3, 1), Mark("b", 0, 9, 1), Mark("", 0, 4, 2)])[1].peak_bytes == 4
    )


def test_allocations_are_put_together_by_part_and_place():
    marks = [Mark("forward", 0, 0, 1), Mark("", 0, 0, 3)]
    one = (("a.py:1 f",), "aten::mm")
    changes = [(1, 4), (1, -4), (2, 8), (3, 8), (3, -8), (4, 7), (4, -7)]
    sources = {0: ((), ""), 2: one, 3: one, 5: (("b.py:2 g",), "")}
    seen = Observed(changes, sources, marks)
    found = allocation_sites(seen)
    assert [(place.part, place.where, place.count, place.total_bytes, place.at_peak_bytes) for place in found] == [
        ("forward", "a.py:1 f", 2, 16, 16),
        ("", "b.py:2 g", 1, 7, 0),
        ("", "(no Python: autograd's own thread)", 1, 4, 0),
    ]


def test_where_passes_over_torch_and_the_runner():
    assert where(["torch/nn/functional.py:1 f", "runner/worker/job.py:2 run", "mine.py:3 g"]) == "mine.py:3 g"
    assert where(["torch/nn/functional.py:1 f"]) == "torch/nn/functional.py:1 f"


def test_what_is_held_at_the_peak_is_neither_freed_before_nor_made_after():
    assert held_at_peak([(1, 4), (2, 5), (1, -4), (3, 6), (2, -5), (1, 2)]) == {1, 3}
    assert held_at_peak([(1, -4)]) == set()


def test_saved_counts_a_storage_once_and_two_steps_not_together():
    step = [(1, 10), (1, 10), (2, 5), (9, 100), (1, -10), (2, -5), (1, -10), (9, -100)]
    assert most_saved(step * 2, {1, 2}) == 15
    assert most_saved(step, set()) == 0
