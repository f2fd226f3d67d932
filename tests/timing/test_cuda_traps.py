"""Calls that a careless timer is fooled by: work outside of the capture, on other streams, or not in every graph."""

from __future__ import annotations

import ctypes

import pytest
import yaml

pytestmark = pytest.mark.gpu

COUNT = 2**22


@pytest.fixture
def made():
    """x, its GELU, and a judge of outputs that should be it."""
    import torch
    import torch.nn.functional as F

    x = torch.randn(COUNT, device="cuda")
    right = F.gelu(x)

    def judge(outputs):
        return "" if torch.equal(outputs[0], right) else "not the GELU"

    return x, F.gelu, judge


@pytest.fixture
def unseen_by_captures(made):
    """A call whose launch is left out of every capture."""
    import torch

    x, gelu, _ = made
    kept = {}

    def call():
        if not torch.cuda.is_current_stream_capturing():
            kept["y"] = gelu(x)
        return (kept["y"],)

    return call


def measure(run, judge=None, **settings):
    from runner.measure.benchmark import Benchmark
    from runner.records.options import CONF
    from runner.timing.call import Call

    fields = yaml.safe_load((CONF / "measure" / "benchmark.yaml").read_text()) | {"measured_peak": False} | settings
    del fields["name"], fields["quick"]
    run()  # as the worker does before it checks
    return Benchmark(**fields).time(Call(run, judge=judge), "cuda")


def test_work_on_a_stream_that_is_joined_is_in_the_graph(made):
    import torch

    x, gelu, judge = made
    side = torch.cuda.Stream()

    def call():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = gelu(x)
        torch.cuda.current_stream().wait_stream(side)
        return (y,)

    row = measure(call, judge)
    assert row["instrument"] == "graph_timestamps"
    assert abs(row["gpu_us"] - row["cupti_us"]) < 1
    assert row["verdict"] != "wrong"


@pytest.mark.parametrize("waits", [True, False], ids=["forked", "loose"])
def test_work_on_a_stream_that_nobody_waits_for_is_timed_to_its_end_by_the_host(made, waits):
    import torch

    x, gelu, judge = made
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        out = gelu(x)

    def call():
        if waits:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch._C._nn.gelu(x, out=out)
        return (out,)

    row = measure(call, judge)
    assert row["instrument"] == "host_clock"
    assert "nobody waits for" in row["instrument_note"]
    assert row["gpu_us"] > row["cupti_us"]


@pytest.mark.parametrize("fault", ["at its end", "before"])
def test_a_capture_that_fails_leaves_the_stream_current_that_was(made, fault):
    import torch

    from runner.timing.capture import CaptureError, capture_stream, capturing

    x, gelu, _ = made
    before, side = torch.cuda.current_stream(), torch.cuda.Stream()

    def leaves_work_on_another():
        if fault == "before":
            float(x[0])
        side.wait_stream(capture_stream())
        with torch.cuda.stream(side):
            gelu(x)

    with pytest.raises(CaptureError), capturing(torch.cuda.CUDAGraph()):
        leaves_work_on_another()
    assert torch.cuda.current_stream() == before


def test_a_launch_that_only_the_first_capture_sees_is_found(made):
    import torch

    x, gelu, judge = made
    kept, captures = {}, []

    def call():
        if torch.cuda.is_current_stream_capturing():
            captures.append(1)
            if len(captures) > 1:
                return (kept["y"],)
        kept["y"] = gelu(x)
        return (kept["y"],)

    row = measure(call, judge)
    assert row["instrument"] == "stream_timestamps"
    assert "one capture of it holds 1 kernels, another 0" in row["instrument_note"]
    assert abs(row["gpu_us"] - row["cupti_us"]) < 1


def test_a_launch_that_no_capture_sees_is_found(made, unseen_by_captures):
    row = measure(unseen_by_captures, made[2])
    assert row["instrument"] == "stream_timestamps"
    assert "holds 0 of the 1 kernels" in row["instrument_note"]


@pytest.mark.parametrize("instrument", ["graph_timestamps", "stream_timestamps", "cuda_events"])
def test_a_result_that_is_only_kept_is_impossible(made, instrument):
    x, gelu, judge = made
    kept = gelu(x)
    row = measure(lambda: (kept,), judge, instrument=instrument)
    assert (row["instrument"], row["n_kernels"], row["verdict"]) == (instrument, 0, "impossible")


def test_a_sustained_time_is_of_what_was_timed_whatever_a_capture_sees(made, unseen_by_captures, monkeypatch):
    from runner.timing import gpu_state

    monkeypatch.setattr(gpu_state, "LEAD_S", 0.05)
    row = measure(unseen_by_captures, made[2], sustained_s=0.1)
    assert row["instrument"] == "stream_timestamps"
    assert row["sustained_us"] > 0.5 * row["gpu_us"]


def test_what_nobody_waits_for_has_no_sustained_time(made):
    import torch

    x, gelu, judge = made
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        out = gelu(x)

    def call():
        with torch.cuda.stream(side):
            torch._C._nn.gelu(x, out=out)
        return (out,)

    row = measure(call, judge, sustained_s=0.1)
    assert row["instrument"] == "host_clock"
    assert "sustained_us" not in row


def test_calls_that_were_timed_leave_no_memory_behind():
    """cuBLAS keeps tens of MiB for each stream that it has been on."""
    import torch

    from runner.worker import tidy

    a = torch.randn(256, 256, device="cuda")
    measure(lambda: (a @ a,), samples=20)
    tidy()
    before = torch.cuda.memory_allocated()
    for _ in range(10):
        measure(lambda: (a @ a,), samples=20)
    tidy()
    assert torch.cuda.memory_allocated() - before < 2**24


def test_a_host_function_is_no_part_of_a_timed_graph(made):
    import torch

    x, gelu, judge = made
    nothing = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)
    driver = ctypes.CDLL("libcuda.so.1")

    def call():
        y = gelu(x)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        assert driver.cuLaunchHostFunc(stream, nothing, None) == 0
        return (y,)

    row = measure(call, judge)
    assert row["instrument"] == "stream_timestamps"
    assert "holds 1 host functions" in row["instrument_note"]


def test_what_is_wrong_in_the_replays_alone_makes_the_row_wrong(made):
    import torch

    x, gelu, judge = made
    row = measure(lambda: (gelu(x * (2.0 if torch.cuda.is_current_stream_capturing() else 1.0)),), judge)
    assert row["verdict"] == "wrong"
    assert row["verdict_reason"] == "in the timed calls: not the GELU"


def test_replays_write_their_outputs_anew_wherever_these_lie(made):
    """Nine intermediate tensors: a later capture's lie where the output of an earlier one was."""
    x, _, _ = made

    def naive():
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        return (0.5 * x * (1 + (inner.exp() - (-inner).exp()) / (inner.exp() + (-inner).exp())),)

    (right,) = naive()

    def judge(outputs):
        import torch

        return "" if torch.equal(outputs[0], right) else "other bits"

    assert measure(naive, judge)["verdict"] != "wrong"


def test_instruments_to_be_compared_have_their_outputs_at_one_address(made):

    from runner.timing.preparation import BufferSets, preparation
    from runner.timing.timestamps import GraphTimestamps

    x, gelu, _ = made
    buffer_sets, nothing = BufferSets([x], 4), preparation(None, cold_l2=False)
    instruments = [  # all at once, as in a comparison: with the last of its graphs a place's memory goes too
        GraphTimestamps(lambda: (gelu(x),), nothing, captures=8, constant_us=0.0, buffer_sets=buffer_sets)
        for _ in range(3)
    ]
    written = [[[y.data_ptr() for y in graph] for graph in instrument.written] for instrument in instruments]
    assert written[0] == written[1] == written[2]
    assert len({pointer for graph in written[0] for pointer in graph}) == len(buffer_sets) == 4


def test_inputs_lie_elsewhere_while_a_place_is_taken_and_then_where_they_were(made):
    import torch

    from runner.timing.preparation import BufferSets

    x, _, _ = made
    there, values = x.data_ptr(), x.clone()
    buffer_sets, found = BufferSets([x], 3), []
    for index in range(6):
        with buffer_sets.at(index):
            found.append(x.data_ptr())
            assert torch.equal(x, values)
            assert x.untyped_storage().data_ptr() in buffer_sets.pointers()
    assert found == found[:3] * 2
    assert len(set(found)) == 3
    assert found[0] == there == x.data_ptr()


def test_what_is_not_contiguous_stays_where_it_is():
    import torch

    from runner.timing.preparation import BufferSets

    x = torch.randn(64, 32, device="cuda").t()
    there = x.data_ptr()
    with BufferSets([x], 3).at(1):
        assert x.data_ptr() == there


def test_a_copy_is_aligned_as_its_input_is():
    import torch

    from runner.timing.preparation import BufferSets

    x = torch.empty(65, device="cuda")[1:]
    with BufferSets([x], 3).at(1):
        assert x.data_ptr() % 512 == 4


def test_memory_that_torch_only_keeps_is_there_for_buffer_sets(monkeypatch):
    import torch

    from runner.timing.preparation import BufferSets

    x, kept = torch.empty(2**20, device="cuda"), torch.empty(2**30, dtype=torch.uint8, device="cuda")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (0, 2**37))
    del kept
    assert len(BufferSets([x], 10)) == 10


def test_buffer_sets_are_fewer_where_copies_would_take_too_much_memory():
    import torch

    from runner.timing.preparation import BufferSets

    many = torch.empty(torch.cuda.get_device_properties(0).total_memory // 16, dtype=torch.uint8, device="cuda")
    assert len(BufferSets([many], 10)) == 1
    assert len(BufferSets([], 10)) == 1


def test_the_unloaded_clock_is_right_even_after_work_at_the_power_limit():
    import torch

    from runner.timing import calibration

    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for _ in range(300):
        a @ a
    hot = calibration.measure_unloaded_mhz()
    torch.cuda.synchronize()
    assert hot > 0.98 * calibration.measure_unloaded_mhz()


@pytest.fixture
def filling():
    """Functions that fill a buffer: on torch's stream, and on the legacy default stream as unchecked C++ code does."""
    import torch

    buffer = torch.zeros(2**24, device="cuda")
    fill = ctypes.CDLL("libcuda.so.1").cuMemsetD32Async

    def on(stream):
        fill(*map(ctypes.c_void_p, (buffer.data_ptr(), 0x3F800000, buffer.numel(), stream)))  # 1.0
        return buffer

    return (lambda: on(torch.cuda.current_stream().cuda_stream)), (lambda: on(0))


def test_work_on_the_legacy_default_stream_is_timed_there(filling):
    here, there = map(measure, filling)
    assert (here["instrument"], there["instrument"]) == ("graph_timestamps", "stream_timestamps")
    assert "legacy default stream" in there["instrument_note"]
    assert there["gpu_us"] == pytest.approx(here["gpu_us"], abs=0.5, rel=0.01)


@pytest.mark.parametrize("threads", [0, 1])
def test_in_a_program_too_also_one_with_threads(filling, threads):
    import threading

    import torch

    from runner import bench

    ended = threading.Event()
    others = [threading.Thread(target=ended.wait) for _ in range(threads)]
    for thread in others:
        thread.start()
    try:
        timing = bench(filling[1], check=lambda: torch.ones(2**24, device="cuda"))
    finally:
        ended.set()
    assert (timing.verdict, timing.instrument) == ("timer_limited", "stream_timestamps")
    assert 10 < timing.us < 60  # 64 MiB
    kept = torch.ones(8, device="cuda")
    assert bench(lambda: kept[:4], device="cuda").verdict == "impossible"
