"""Run one race: build its arms, check them against float64, and sample them in paired rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch

from benchmarks.common import fields_of
from benchmarks.kernels.races import COPY, Arm, Race, Result
from runner import implementations
from runner.experiment import schema
from runner.experiment.case import Choice
from runner.measure.benchmark import Benchmark
from runner.models.workload import Workload, draw_on
from runner.timing import Call, instruments
from runner.timing.correctness import compare
from runner.worker import forget_compiled, tidy

CALLS_BEFORE_CHECK = 3  # a compiled function with CUDA graphs warms up, records, and only then replays
LONGEST_S = 0.6  # sampling time of an arm: the largest products take 11 ms, and pauses of the same length


def held(race: Race) -> Result:
    """Run all arms. Arms that raise or are wrong are left out, with the reason."""
    workload: Workload = schema.build(
        schema.find("runner.models", race.op), fields_of("workload", race.op) | dict(race.fields), race.op
    )
    torch.set_float32_matmul_precision("high" if workload.tf32 else "highest")
    inputs = workload.inputs(draw_on("cuda", workload.dtype, workload.data, 0))
    expected = workload.reference(*inputs)
    settings = _settings(race)
    calls: dict[str, Call] = {}
    errors: dict[str, float | None] = {}
    failed: dict[str, str] = {}
    for name, fields in race.arms.items():
        try:
            calls[name], errors[name] = _checked(workload, fields, inputs, expected)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
    del expected
    tidy()
    calls[COPY], errors[COPY] = _copy(workload.bytes_min()), None
    chosen = {name: _instrument(call, settings, race) for name, call in calls.items()}
    taken = settings.compare([(calls[name], {"instrument": chosen[name]}) for name in calls], "cuda")
    assert taken is not None, "too slow for rounds"
    arms = {
        name: Arm(fmean(batches), batches, instrument, errors[name])
        for name, (instrument, batches) in zip(calls, taken, strict=True)
    }
    calls.clear()
    forget_compiled()
    tidy()
    return Result(race, arms, failed)


def _checked(workload: Workload, fields: Mapping[str, Any], inputs: Any, expected: Any) -> tuple[Call, float]:
    """Return the call of an implementation, and its error relative to the tolerance. Raises what the call raises."""
    given = dict(fields)
    name = given.pop("name")
    implementation = implementations.build(Choice(name, fields_of("impl", name) | given))
    call = workload.call(implementation.load(type(workload).__name__.lower()), inputs)
    call = implementation.wrap_call(call, "cuda")
    for _ in range(CALLS_BEFORE_CHECK):
        call.restore()
        outputs = call.run()
    torch.cuda.synchronize()
    found = compare(outputs, expected, getattr(torch, workload.output_dtype))
    if not found.correct:
        raise ValueError(f"wrong: {found.reason}")
    return replace(call, inputs=inputs), found.err_over_tol


def _copy(size_bytes: int) -> Call:
    """Return a call that moves ``size_bytes``, half of them read and half written.

    It changes the sign, so that it is a kernel. A plain copy would be a copy node in a CUDA graph, which reaches only
    two thirds of the rate above half a GiB. It is also the best that torch's elementwise kernels reach.
    """
    source = torch.randn(size_bytes // 8, device="cuda")
    target = torch.empty_like(source)
    return Call(lambda: (torch.neg(source, out=target),))


def _instrument(call: Call, settings: Benchmark, race: Race) -> str:
    return "host_clock" if race.e2e else instruments.choose(call, settings)[0].name


def _settings(race: Race) -> Benchmark:
    settings: Benchmark = schema.build(Benchmark, fields_of("measure", "benchmark"), "measure")
    return replace(settings, max_s=LONGEST_S, cold_l2=not race.e2e, buffer_sets=1 if race.e2e else settings.buffer_sets)
