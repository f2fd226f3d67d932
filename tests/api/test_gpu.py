"""The timer in a caller's process on a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from runner import bench, do_bench

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def x():
    return torch.randn(512, 512, device="cuda")


def spinning(us):
    from runner.timing.gpu_kernels import spin

    cycles = round(us * 1980)
    return lambda: spin[(1,)](cycles, num_warps=1)


def test_a_spin_has_its_length_and_everything_else_its_figure():
    timing = bench(spinning(50.0))
    assert timing.instrument == "graph_timestamps"
    assert timing.us == pytest.approx(51, abs=8)  # at a lower clock it is longer
    assert timing.warm_us == pytest.approx(timing.us, abs=1)
    assert timing.latency_us > timing.us
    assert 0 < timing.host_us < timing.latency_us
    assert timing.pipelined_us > 0
    assert timing.clock_mhz > 500
    assert "warm" in repr(timing)


def test_a_longer_call_is_slower_and_an_equal_one_is_not():
    short, long = spinning(20.0), spinning(22.0)
    result = bench({"long": long, "short": short, "again": short}, baseline="short")
    assert result["long"].word == "slower"
    assert result["again"].word in ("same", "unclear")


def test_the_share_of_the_peak_is_there_where_the_peak_is_known(x):
    timing = bench(torch.neg, x, bytes=2 * x.nbytes, measure_peak=True)
    assert 0 < timing.pct_of_measured_peak < 120
    assert bench(torch.neg, x, bytes=2 * x.nbytes).pct_of_measured_peak > 0
    assert ", peak " in repr(timing)


def test_the_callers_stream_device_generator_and_settings_stay(x):
    stream = torch.cuda.Stream()
    before, on_cpu = torch.cuda.get_rng_state(), torch.get_rng_state()
    with torch.cuda.stream(stream):
        bench(torch.nn.functional.dropout, x)
        bench(lambda x: x.relu().sum().item(), x)  # a capture that fails
        assert torch.cuda.current_stream() == stream
    assert torch.equal(torch.cuda.get_rng_state(), before)
    assert torch.equal(torch.get_rng_state(), on_cpu)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_what_no_graph_can_hold_is_timed_on_the_stream_and_says_so(x):
    timing = bench(lambda x: x.sum().item(), x)
    assert timing.instrument == "stream_timestamps"
    assert "no CUDA graph can hold this call" in repr(timing)


def test_work_that_nobody_waits_for_is_timed_to_its_end(x):
    side, long = torch.cuda.Stream(), spinning(500.0)

    def detached(x):
        with torch.cuda.stream(side):
            long()
        return x + 1

    timing = bench(detached, x)
    torch.cuda.synchronize()
    assert timing.instrument == "host_clock"
    assert timing.us > 450
    assert "nobody waits for" in repr(timing)


def test_many_kernels_are_not_taken_for_work_that_is_left(x):
    assert bench(lambda x: [x + 1 for _ in range(300)], x).instrument == "graph_timestamps"


def test_a_graph_of_the_callers_stays_whole_and_nothing_is_timed_while_one_is_captured(x):
    graph, y = torch.cuda.CUDAGraph(), torch.zeros_like(x)
    with torch.cuda.graph(graph):
        y.add_(x)
        with pytest.raises(RuntimeError, match="a CUDA graph is being captured"):
            bench(torch.relu, x)
    bench(torch.relu, x)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, x)


def test_any_mode_may_come_first(x):
    with torch.inference_mode():
        assert bench(torch.relu, x).verdict != "wrong"
        made = torch.ones(100, device="cuda")
        assert bench(torch.Tensor.mul_, made, 2.0).columns["mutates_inputs"]
        assert made.eq(1).all()
    assert bench(torch.relu, x).us > 0
    with torch.autocast("cuda", torch.bfloat16):
        result = bench({"mm": torch.mm}, x, x, check=torch.mm)
    assert result["mm"].correct


def test_the_check_finds_a_wrong_kernel_and_one_that_keeps_its_result(x):
    kept = torch.relu(x)
    functions = {"right": torch.relu, "wrong": lambda x: torch.relu(x) * 1.01, "kept": lambda x: kept.clone()}
    result = bench(functions, x, check=torch.relu)
    assert [one.correct for one in result] == [True, False, False]


def test_backward_is_captured(x):
    layer = torch.nn.Linear(512, 512, device="cuda")
    both, forward = bench(layer, x, grad=True), bench(layer, x)
    assert both.instrument == "graph_timestamps"
    assert both.us > forward.us
    assert layer.weight.grad is None


def test_an_exception_is_the_callers_own_wherever_it_is_raised(x):
    error = KeyError("mine")
    for at in (1, 2, 4, 6, 40):
        calls = []

        def fails(x, calls=calls, at=at):
            calls.append(1)
            if len(calls) >= at:
                raise error
            return x + 1

        with pytest.raises(KeyError) as caught:
            bench(fails, x)
        assert caught.value is error
    assert bench(torch.relu, x).us > 0


def test_two_gpus_each_measure_their_own(x):
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    other = x.to("cuda:1")
    assert bench(torch.relu, other).us > 0
    assert bench(torch.relu, x).us > 0
    assert torch.cuda.current_device() == 0


def test_do_bench_agrees_with_bench(x):
    call = spinning(30.0)
    ms = do_bench(call)
    assert 1000 * ms == pytest.approx(bench(call).us, rel=0.02)
    w = x.clone().requires_grad_()
    assert do_bench(lambda: (w @ w).sum().backward(), grad_to_none=[w]) > 0


PROFILED = """
import os, torch, runner
from torch.profiler import ProfilerActivity, profile as profiler
x = torch.randn(1000, device="cuda")
torch.cuda.synchronize()
with profiler(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profile:
    torch.exp(x)
    timing = runner.bench(torch.relu, x)
    torch.sin(x)
    torch.cuda.synchronize()
names = {event.name for event in profile.events()}
assert {"aten::exp", "aten::sin"} <= names, names
print(timing)
assert "a profiler is attached" in timing.note, timing
assert timing.high_us - timing.us >= 0.5, timing
later = runner.bench(torch.relu, x)
assert "profiler" not in later.note, later
assert abs(later.us - timing.us) < 1.0, (timing, later)
"""


def test_a_profiler_of_the_callers_stays_whole_and_the_interval_is_wider(tmp_path):
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROFILED]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
