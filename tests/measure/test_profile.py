"""``measure=profile`` on the CPU, with the real torch.profiler, and its messages when it sees nothing."""

from __future__ import annotations

import csv
import gzip
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
import torch
import yaml

from runner.kernels.mlp import torch as mlp
from runner.kernels.spans import span
from runner.measure import SUMMARY, CannotMeasure, MeasureContext
from runner.measure.profile import COLUMNS, Profile, profiled, read_trace, recorded_calls
from runner.measure.timeline import calls
from runner.records.options import CONF
from runner.timing.call import Call

SVG = "{http://www.w3.org/2000/svg}"


def profile(**changes):
    fields = yaml.safe_load((CONF / "measure" / "profile.yaml").read_text()) | {"active": 3, "warmup": 1} | changes
    del fields["name"]
    return Profile(**fields)


@pytest.fixture
def context(tmp_path):
    return MeasureContext("cpu", None, tmp_path / "files")


@pytest.fixture
def call():
    x, w, b = torch.randn(8, 16), torch.randn(16, 16), torch.randn(16)

    def run():
        with span("forward"):
            return (mlp.mlp(x, w, b, w, b, activation="gelu"),)

    return Call(run)


def table(context, name):
    with open(context.folder / f"{name}.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_operations_parts_and_files_of_a_real_call(call, context):
    figures = profile().measure(call, context)
    assert set(figures) == {"profile_slowdown", "profile_note", "profile_steps", "profile_forward_us"}
    assert figures["profile_note"] == ""
    ops = {line["op"]: line for line in table(context, "ops")}
    assert float(ops["aten::addmm"]["count"]) == float(ops["aten::gelu"]["count"]) == 2
    for line in ops.values():
        assert 0 <= float(line["self_host_us"]) <= float(line["host_us"])
    assert sum(float(line["self_host_pct"]) for line in ops.values()) == pytest.approx(100)
    assert [line["part"] for line in table(context, "parts")] == [
        "call",
        "call/forward",
        "call/forward/layer_0",
        "call/forward/layer_1",
    ]
    names = {path.name for path in context.folder.iterdir()}
    assert names == {SUMMARY, "ops.csv", "parts.csv", "trace.json.gz", "stacks.txt", "flame.svg"}
    with gzip.open(context.folder / "trace.json.gz", "rt") as file:
        events = json.load(file)["traceEvents"]
    assert sum(event["name"] == "call" for event in events) == 3
    summary = (context.folder / SUMMARY).read_text()
    assert "means of 3 calls; under the profiler a call takes" in summary
    assert "aten::addmm" in summary
    assert "kernel" not in summary


def test_the_stacks_add_up_to_a_call_and_the_flame_graph_draws_them(call, context):
    profile().measure(call, context)
    lines = [line.rpartition(" ") for line in (context.folder / "stacks.txt").read_text().splitlines()]
    found = {tuple(frames.split(";")): int(count) / 1000 for frames, _, count in lines}
    seen, _ = calls(read_trace(context.folder / "trace.json.gz"))
    assert sum(found.values()) == pytest.approx(sum(call.span.us for call in seen) / 3, rel=0.01)
    assert any(frames[:3] == ("call", "forward", "layer_1") for frames in found)
    drawing = ET.parse(context.folder / "flame.svg").getroot()
    titles = [title.text for title in drawing.iter(f"{SVG}title")]
    assert titles[0].startswith("call\n")
    assert titles[0].endswith("100 % of a call")
    assert any(title.startswith("layer_0\n") for title in titles)
    assert not list(drawing.iter(f"{SVG}script"))
    widths = [float(box.get("width")) for box in drawing.iter(f"{SVG}rect")]
    assert all(0 < width <= 1200 for width in widths)


def test_a_second_pass_has_python_memory_and_operations(call, context):
    profile(stacks=True, memory=True, flops=True, shapes=True).measure(call, context)
    text = (context.folder / "stacks.txt").read_text()
    assert "kernels/mlp/torch.py(" in text
    assert "torch/autograd/profiler.py(" not in text
    assert " at 0x" not in text
    costs = {(line["op"], line["shapes"]): line for line in table(context, "costs")}
    addmm = costs["aten::addmm", "16 8x16 16x16"]
    assert float(addmm["flops"]) == 2 * 2 * 8 * 16 * 16
    assert float(addmm["memory_bytes"]) == 2 * 8 * 16 * 4
    assert not list(context.folder.glob("slow-*"))
    with gzip.open(context.folder / "trace.json.gz", "rt") as file:
        assert "python_function" not in file.read()


def test_shapes_part_what_is_one_operation_without_them(context):
    small, large = torch.randn(4, 4), torch.randn(8, 8)
    call = Call(lambda: (small @ small, large @ large))
    profile().measure(call, context)
    assert [line["op"] for line in table(context, "ops")].count("aten::mm") == 1
    profile(shapes=True).measure(call, context)
    assert {line["shapes"] for line in table(context, "ops") if line["op"] == "aten::mm"} == {"4x4 4x4", "8x8 8x8"}


def test_inputs_are_put_back_before_every_call(context):
    x, seen = torch.zeros(4), []

    def run():
        seen.append(float(x[0]))
        return (x.add_(1),)

    profile(stacks=True).measure(Call(run, reset=lambda: x.zero_()), context)
    assert set(seen) == {0.0}
    assert len(seen) == 2 + 3 * (3 + 1 + 3) + (1 + 3)  # two to see how long it is, three rounds, and the second pass


def test_only_the_first_lines_are_in_the_summary(call, context):
    profile(rows=1).measure(call, context)
    assert " more\n" in (context.folder / SUMMARY).read_text()
    assert len(table(context, "ops")) > 1


def test_a_schedule_is_waited_for_and_recorded_as_often_as_asked(context):
    made = []
    figures = profile(wait=2, warmup=1, active=3, repeat=2).measure(Call(lambda: made.append(torch.ones(2))), context)
    assert figures["profile_steps"] == 6
    assert len(made) == 1 + 3 * 3 + 2 * (2 + 1 + 3) + 2 * (2 + 1 + 3)  # three rounds, of which the last records twice
    assert [len(calls(read_trace(context.folder / name))[0]) for name in ("trace.json.gz", "trace-2.json.gz")] == [3, 3]
    assert "means of 6 calls" in (context.folder / "summary.txt").read_text()


def test_calls_that_take_long_are_fewer_and_the_row_says_so(call, context, monkeypatch):
    monkeypatch.setattr(profiled, "LONGEST_S", 1e-9)
    assert profile().measure(call, context)["profile_note"] == "2 calls instead of 3, since they are long"


@pytest.mark.parametrize(
    ("call_s", "plan"),
    [(1e-5, (3, 10)), (0.43, (3, 10)), (0.44, (1, 10)), (2.0, (1, 6)), (600.0, (1, 2))],
)
def test_how_many_calls_fit(call_s, plan):
    assert profiled.recording_plan(call_s, replace(profile(), active=10, warmup=3)) == plan


def test_where_no_file_can_be_kept_there_is_no_profile(call):
    with pytest.raises(CannotMeasure, match="this measurement keeps files"):
        profile().measure(call, MeasureContext("cpu", None))


def test_a_trace_without_kernels_is_not_taken_for_a_gpus(call, context):
    """Read a real trace of a CPU as if it came from a GPU whose CUPTI another program uses."""
    profile().measure(call, context)
    with pytest.raises(CannotMeasure, match="saw no kernel, copy or fill in a call: run it without nsys"):
        recorded_calls([context.folder / "trace.json.gz"], gpu=True)


def test_a_trace_without_calls_is_told(context):
    path = context.folder / "trace.json.gz"
    with gzip.open(path, "wt") as file:
        file.write('{"traceEvents": []}')
    with pytest.raises(CannotMeasure, match="recorded no call"):
        recorded_calls([path], gpu=False)


@pytest.fixture
def recorded(monkeypatch):
    """Replace the recording by a trace made by hand: one kernel, 20 to 50.5 us after the start of the call."""

    def event(cat, name, start, dur, **args):
        return {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": dur, "pid": 1, "tid": 1, "args": args}

    events = [event("user_annotation", "call", 0, 100), event("user_annotation", "forward", 1, 60)]
    events += [event("cpu_op", "aten::gelu", 5, 20), event("cuda_runtime", "cudaLaunchKernel", 8, 4, correlation=1)]
    events += [event("kernel", "void gelu_kernel<4>(int)", 20, 30.5, correlation=1)]

    def record(call, device, settings, path):
        with gzip.open(path, "wt") as file:
            json.dump({"traceEvents": events}, file)
        return 1.123, "", [path]

    monkeypatch.setattr(profiled, "record_profile", record)


def test_a_gpus_figures_and_tables(recorded, context):
    context = replace(context, device="cuda", figures={"n_kernels": 9})
    figures = profile().measure(Call(lambda: ()), context)
    assert figures == {
        "profile_forward_us": 30.5,
        "profile_gpu_us": 30.5,
        "profile_kernels": 1,
        "profile_busy_pct": 100,
        "profile_idle_us": 0,
        "profile_longest_gap_us": 0,
        "profile_launch_us": 4,
        "profile_launch_to_start_us": 8,
        "profile_top_kernel": "gelu_kernel<4>",
        "profile_top_kernel_pct": 100,
        "profile_slowdown": pytest.approx(1.123),
        "profile_note": "kernels, copies and fills of a call: 1 here, 9 by the benchmark",
        "profile_steps": 1,
    }
    assert figures.keys() <= COLUMNS.keys()
    (line,) = table(context, "kernels")
    assert (line["op"], line["kernel"], line["gpu_us"]) == ("aten::gelu", "void gelu_kernel<4>(int)", "30.5")
    text = (context.folder / "stacks.txt").read_text()
    assert text == "call;forward;aten::gelu;void gelu_kernel<4>(int) 30500\n"
    summary = (context.folder / SUMMARY).read_text()
    assert summary.startswith(
        "kernels, copies and fills of a call: 1, busy for 30.5 us (100.0 % of their span), "
        "idle for 0 us, longest gap 0 us\n"
        "a launch takes 4 us on the host; its kernel starts 8 us later\n"
        "means of 1 calls (kernels, copies and fills of a call: 1 here, 9 by the benchmark); "
        "under the profiler a call takes 1.12x the time\n"
    )
    assert re.search(r"aten::gelu +gelu_kernel<4> +1 +30.5 us +100 % +4 us +8 us\n", summary)
    assert re.search(r"call/forward +1 +60 us +30.5 us +30.5 us\n", summary)
