"""Traces made by hand with known answers: calls, kernels, their launches, and gaps."""

from __future__ import annotations

import gzip
import json
import random

import pytest

from runner.measure.profile import events, flame, read_trace
from runner.measure.timeline import Event, calls, tables
from runner.timing.timeline import covered, gaps, whole

CALLER, AUTOGRAD, GPU = 11, 12, 7


def parse(records):
    """Return the calls of a trace."""
    return calls(events(records))[0]


def record(cat, name, start, end, tid=CALLER, **args):
    return {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": end - start, "pid": 1, "tid": tid, "args": args}


def op(name, start, end, **more):
    return record("cpu_op", name, start, end, **more)


def span(name, start, end):
    return record("user_annotation", name, start, end)


def launch(correlation, start, end, *, cat="cuda_runtime", name="cudaLaunchKernel", tid=CALLER):
    return record(cat, name, start, end, tid=tid, correlation=correlation)


def kernel(name, correlation, start, end, cat="kernel", **args):
    return record(cat, name, start, end, tid=GPU, correlation=correlation, stream=GPU, **args)


def call_of_two(at=0.0, correlation=1):
    """aten::mul launches 10 us and 20 us of work, 5 us apart; autograd's thread launches 30 us, 15 us later."""
    first, second, third = correlation, correlation + 1, correlation + 2
    return [
        record("user_annotation", "ProfilerStep#3", at - 50, at + 210),
        kernel("flush", 900 + correlation, at - 30, at - 5),
        launch(900 + correlation, at - 40, at - 35),
        span("call", at, at + 200),
        span("forward", at + 5, at + 50),
        op("aten::mul", at + 10, at + 40, **{"Input Dims": [[64, 128], [128], []]}),
        launch(first, at + 12, at + 16),
        launch(second, at + 20, at + 26),
        span("backward", at + 55, at + 120),
        op("autograd::engine::evaluate_function: MulBackward0", at + 60, at + 90, tid=AUTOGRAD),
        op("aten::mm", at + 62, at + 82, tid=AUTOGRAD),
        launch(third, at + 65, at + 70, cat="cuda_driver", name="cuLaunchKernelEx", tid=AUTOGRAD),
        launch(third, at + 66, at + 69, cat="cuda_driver", name="cuLaunchKernel", tid=AUTOGRAD),
        kernel("void at::native::mul_kernel<4, at::native::F>(int, float*)", first, at + 20, at + 30),
        kernel("void at::native::mul_kernel<4, at::native::F>(int, float*)", second, at + 35, at + 55, grid=[8, 1, 1]),
        kernel("gemm", third, at + 70, at + 100),
        {"ph": "s", "id": third, "cat": "ac2g", "name": "ac2g", "ts": at, "pid": 1, "tid": CALLER},
    ]


@pytest.fixture
def two():
    records = [*call_of_two(0.0, 1), *call_of_two(1000.0, 11)]
    random.Random(0).shuffle(records)
    return parse(records)


def test_kernels_are_of_the_call_that_launched_them_and_the_flush_is_of_none(two):
    assert [call.span.start for call in two] == [0.0, 1000.0]
    for call in two:
        assert [work.us for work in call.work] == [10.0, 20.0, 30.0]


def test_a_kernel_that_runs_after_its_call_by_the_gpus_clock_is_of_the_call_that_launched_it():
    records = [span("call", 0, 10), launch(1, 2, 3), kernel("late", 1, 11, 12), span("call", 20, 30)]
    first, second = parse(records)
    assert [work.name for work in first.work] == ["late"]
    assert second.work == []


def test_a_kernel_without_a_launch_is_of_the_call_in_which_it_runs():
    (call,) = parse([span("call", 0, 10), kernel("alone", 5, 2, 3), kernel("before", 6, -2, -1)])
    assert [(work.name, work.launch, work.op) for work in call.work] == [("alone", None, None)]


def test_a_part_of_a_call_that_is_called_so_is_no_call():
    (call,) = parse([span("call", 0, 10), span("call", 2, 5), kernel("a", 1, 3, 4)])
    assert (call.span.us, len(call.work)) == (10, 1)


def test_other_outermost_spans_are_those_outside_of_calls():
    """A span on autograd's thread during a call is a part of that call only."""
    records = [span("define_model", 0, 10), span("call", 20, 40), span("forward", 22, 30)]
    on_autograd = record("user_annotation", "layer_0", 25, 28, tid=AUTOGRAD)
    (call,), others = calls(events([*records, on_autograd, kernel("init", 9, 3, 4)]))
    assert [(other.span.name, [work.name for work in other.work]) for other in others] == [("define_model", ["init"])]
    assert [line["part"] for line in tables.parts([call], others)] == [
        "call",
        "call/forward",
        "call/forward/layer_0",
        "define_model",
    ]


def test_who_launched_a_kernel_is_the_innermost_operation_on_whatever_thread(two):
    names = [[event.name for event in work.stack] for work in two[0].work]
    assert names[0] == names[1] == ["forward", "aten::mul"]
    assert names[2] == ["backward", "autograd::engine::evaluate_function: MulBackward0", "aten::mm"]
    assert [work.op.name for work in two[0].work] == ["aten::mul", "aten::mul", "aten::mm"]
    assert two[0].work[2].launch.us == 5  # the outer one of two calls with one number


def test_the_figures_of_a_timeline_made_by_hand(two):
    found = tables.figures(two, "profile")
    assert found["profile_gpu_us"] == 60
    assert found["profile_kernels"] == 3
    assert found["profile_busy_pct"] == pytest.approx(100 * 60 / 80)
    assert found["profile_idle_us"] == 20
    assert found["profile_longest_gap_us"] == 15
    assert found["profile_launch_us"] == pytest.approx((4 + 6 + 5) / 3)
    assert found["profile_launch_to_start_us"] == pytest.approx(((20 - 16) + (35 - 26) + 0) / 3)
    assert found["profile_top_kernel_pct"] == 50
    assert found["profile_top_kernel"] in ("gemm", "mul_kernel<4, F>")  # 30 us each


def test_kernels_at_once_count_once():
    records = [span("call", 0, 100), launch(1, 1, 2), launch(2, 3, 4)]
    records += [kernel("a", 1, 10, 30), kernel("b", 2, 20, 50)]
    found = tables.figures(parse(records), "profile")
    assert found["profile_gpu_us"] == 40
    assert found["profile_busy_pct"] == 100
    assert found["profile_longest_gap_us"] == 0


def test_a_cuda_graph_is_launched_once_and_has_all_its_kernels():
    records = [span("call", 0, 100), launch(1, 1, 9, name="cudaGraphLaunch")]
    records += [kernel(f"k{i}", 1, 20 + 10 * i, 28 + 10 * i) for i in range(3)]
    found = tables.figures(parse(records), "profile")
    assert found["profile_kernels"] == 3
    assert found["profile_launch_us"] == 8
    assert found["profile_gpu_us"] == 24


def test_copies_and_fills_count_and_no_launch_is_no_launch_time():
    records = [span("call", 0, 100), kernel("Memcpy DtoD (Device -> Device)", 3, 10, 14, cat="gpu_memcpy", bytes=64)]
    records += [kernel("Memset (Device)", 4, 20, 21, cat="gpu_memset")]
    found = tables.figures(parse(records), "profile")
    assert found["profile_kernels"] == 2
    assert found["profile_top_kernel"] == "Memcpy DtoD (Device -> Device)"
    assert not {"profile_launch_us", "profile_launch_to_start_us"} & found.keys()


@pytest.mark.parametrize("seed", range(20))
def test_what_is_covered_and_the_gaps_make_the_whole(seed):
    draw = random.Random(seed)
    starts = sorted(draw.uniform(0, 100) for _ in range(30))
    some = [Event("k", "kernel", start, start + draw.uniform(0, 8)) for start in starts]
    assert covered(some) + sum(us for *_, us in gaps(some)) == pytest.approx(whole(some))
    assert covered(some) <= sum(event.us for event in some)


def test_nothing_covers_nothing():
    assert covered([]) == 0
    assert list(gaps([])) == []


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        (3, ""),
        (None, ""),
        (9, "kernels, copies and fills of a call: 3 here, 9 by the benchmark"),
    ],
)
def test_fewer_kernels_than_the_benchmark_saw_are_told(two, expected, said):
    assert tables.note(two, {"n_kernels": expected} if expected else {}) == said


def test_calls_that_are_not_alike_are_told():
    records = [span("call", 0, 10), kernel("a", 1, 2, 3), span("call", 20, 30), kernel("a", 2, 22, 23)]
    seen = parse([*records, kernel("b", 3, 24, 25)])
    assert tables.note(seen, {}) == "kernels, copies and fills of a call: 1 to 2, not the same in each call"
    assert tables.note(seen, {"n_kernels": 2}).endswith("1 to 2 here, 2 by the benchmark")


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void at::native::k<4, at::native::F<float> >(int, at::native::F<float>)", "k<4, F<float> >"),
        ("void at::native::(anonymous namespace)::softmax<float>(float*)", "softmax<float>"),
        ("triton_poi_fused_gelu_0", "triton_poi_fused_gelu_0"),
        ("Memset (Device)", "Memset (Device)"),
        ("x" * 61, "x" * 59 + "…"),
    ],
)
def test_a_kernels_name_is_shortened_to_what_tells_it_apart(name, short):
    assert tables.short(name) == short


def test_the_table_of_kernels_names_operations_and_is_of_one_call(two):
    lines = {line["op"]: line for line in tables.kernels(two)}
    mul, mm = lines["aten::mul"], lines["aten::mm"]
    assert (mul["count"], mul["gpu_us"], mul["mean_us"], mul["min_us"], mul["max_us"]) == (2, 30, 15, 10, 20)
    assert (mul["shapes"], mul["grid"], mul["stream"]) == ("64x128 128", "various", GPU)
    assert (mm["count"], mm["gpu_us"], mm["share_pct"], mm["launch_us"], mm["launch_to_start_us"]) == (1, 30, 50, 5, 0)
    assert mm["shapes"] == ""


def test_a_kernel_that_no_operation_launches_is_under_its_part():
    records = [span("call", 0, 100), span("layer_0", 5, 50), launch(1, 10, 12, cat="cuda_driver"), launch(2, 60, 61)]
    seen = parse([*records, kernel("in_triton", 1, 20, 30), kernel("bare", 2, 70, 71)])
    assert [line["op"] for line in tables.kernels(seen)] == ["(layer_0)", ""]


def test_the_table_of_operations_has_the_hosts_time_with_and_without_what_they_call(two):
    lines = {line["op"]: line for line in tables.ops(two)}
    assert lines["aten::mul"]["host_us"] == 30
    assert lines["aten::mul"]["self_host_us"] == 30 - 4 - 6
    assert (lines["aten::mul"]["kernels"], lines["aten::mul"]["gpu_us"]) == (2, 30)
    backward = lines["autograd::engine::evaluate_function: MulBackward0"]
    assert (backward["host_us"], backward["self_host_us"], backward["kernels"]) == (30, 10, 0)
    assert sum(line["self_host_pct"] for line in lines.values()) == pytest.approx(100)


def test_an_operation_that_calls_itself_is_not_counted_twice_in_its_whole_time():
    seen = parse([span("call", 0, 100), op("aten::to", 10, 50), op("aten::to", 20, 40)])
    (line,) = tables.ops(seen)
    assert (line["count"], line["host_us"], line["self_host_us"]) == (2, 40, 40)


def test_parts_have_the_kernels_of_other_threads_too(two):
    lines = {line["part"]: line for line in tables.parts(two)}
    assert list(lines) == ["call", "call/forward", "call/backward"]
    assert (lines["call/forward"]["host_us"], lines["call/forward"]["kernels"], lines["call/forward"]["gpu_us"]) == (
        45,
        2,
        30,
    )
    assert (lines["call/backward"]["kernels"], lines["call/backward"]["gpu_us"]) == (1, 30)


def test_phases_add_up_to_a_call_and_so_do_parts_with_their_backward():
    """The norm takes 10 us, and 30 in its backward; the MLP 20, and 35 with an addition after it; the loss 5."""
    forward, backward = {"Sequence number": 4, "Fwd thread id": 0}, {"Sequence number": 4, "Fwd thread id": 1}
    calls = parse(
        [
            span("call", 0, 200),
            span("forward", 1, 50),
            span("norms", 2, 10),
            op("aten::norm", 3, 9, **forward),
            launch(1, 4, 5),
            span("mlp", 11, 20),
            op("aten::mm", 12, 19, **{"Sequence number": 5}),
            launch(2, 13, 14),
            span("loss", 21, 30),
            launch(3, 22, 23),
            span("backward", 55, 120),
            op("MmBackward0", 60, 70, tid=AUTOGRAD, **{"Sequence number": 5, "Fwd thread id": 1}),
            launch(4, 62, 63, tid=AUTOGRAD),
            launch(5, 71, 72, tid=AUTOGRAD),  # adds a gradient to another one, outside of any node
            op("NormBackward0", 80, 90, tid=AUTOGRAD, **backward),
            launch(6, 82, 83, tid=AUTOGRAD),
            *(kernel("k", i + 1, 1000 * i, 1000 * i + us) for i, us in enumerate((10, 20, 5, 20, 15, 30))),
        ]
    )
    times = tables.part_times(calls)
    assert times == {
        "profile_forward_us": 35,
        "profile_backward_us": 65,
        "profile_norms_us": 40,
        "profile_mlp_us": 55,
        "profile_loss_us": 5,
    }


def test_stacks_end_in_kernels_on_a_gpu(two):
    assert flame.of_gpu(two) == {
        ("call", "forward", "aten::mul", "void at::native::mul_kernel<4, at::native::F>(int, float*)"): 30,
        ("call", "backward", "autograd::engine::evaluate_function: MulBackward0", "aten::mm", "gemm"): 30,
    }


def test_stacks_of_the_host_add_up_to_the_call():
    records = [span("call", 0, 100), span("forward", 10, 60), op("aten::gelu", 20, 50), op("aten::empty", 25, 30)]
    found = flame.of_host(parse(records))
    assert found[("call",)] == 50
    assert found[("call", "forward")] == 20
    assert found[("call", "forward", "aten::gelu")] == 25
    assert sum(found.values()) == 100


def test_an_annotation_is_not_within_the_python_function_that_begins_it():
    python = [record("python_function", name, *times) for name, times in {"f.py(1): run": (5, 95)}.items()]
    python += [record("python_function", "torch/autograd/profiler.py(9): __enter__", 10, 20)]
    python += [record("python_function", "torch/autograd/profiler.py(9): __exit__", 58, 70)]
    (call,) = parse([span("call", 0, 100), *python, span("forward", 15, 60), op("aten::gelu", 30, 40)])
    assert [event.name for event in call.host if [a.name for a in event.stack] == ["f.py(1): run", "forward"]] == [
        "aten::gelu"
    ]
    found = flame.of_host([call])
    assert not any("profiler.py" in frame for frames in found for frame in frames)


def test_folded_stacks_are_in_nanoseconds_without_those_that_round_to_none():
    found = {("call", "a b", "k<1> *"): 12.345, ("call",): 0.001, ("call", "short"): 0.0001}
    assert flame.folded(found) == "call;a b;k<1> * 12345\ncall 1\n"


def test_names_that_would_break_a_line_do_not():
    records = [span("call", 0, 10), op("a;b\n<method of X object at 0x7f00a1>", 2, 4)]
    assert "call;a:b <method of X object> 2000\n" in flame.folded(flame.of_host(parse(records)))


def test_a_gzipped_trace_is_read(tmp_path):
    path = tmp_path / "trace.json.gz"
    with gzip.open(path, "wt") as file:
        json.dump({"schemaVersion": 1, "traceEvents": call_of_two()}, file)
    ((call,), _) = calls(read_trace(path))
    assert len(call.work) == 3
