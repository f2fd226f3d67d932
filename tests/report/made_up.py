"""Rows as a GPU would give them, made up from a cost model: any number, the same ones each time."""

import random

from runner.records.case import CaseRecord, Choice
from runner.records.row import Row
from runner.records.settings import Settings

COPY_GBPS, TFLOPS = 4000.0, {"bfloat16": 800.0, "float32": 60.0}  # the measured peaks
GPU = "NVIDIA H200"
COSTS = {"naive": (9.0, 3.0), "torch": (3.0, 1.25), "compiled": (4.0, 1.1), "triton": (2.5, 1.05), "cuda": (2.2, 1.3)}
HOSTILE = "<script>alert(1)</script>"
REASON = "</script><img src=x onerror=alert(2)> & \"quoted\" 'twice' \u2028"


def workloads():
    """Problems without end: the fields, the operations and the bytes of each."""
    for rows in (1024, 4096, 8192, 16384, 32768):
        for dtype in ("bfloat16", "float32"):
            for cols in (128, 256, 512, 1000, 1024, 2048, 4096, 8192, 16384, 32768):
                size = rows * cols * (2 if dtype == "bfloat16" else 4)
                fields = {"dtype": dtype, "tf32": False, "rows": rows, "cols": cols}
                yield "gelu", fields, 9 * rows * cols, 2 * size
                yield "softmax", fields, 5 * rows * cols, 2 * size
    for size in (256, 512, 1024, 2048, 4096, 8192):
        for dtype in ("bfloat16", "float32"):
            width = 2 if dtype == "bfloat16" else 4
            yield "matmul", {"dtype": dtype, "tf32": False, "size": size}, 2 * size**3, 3 * size**2 * width


def rows(count=1000, *, hostile=True, only=None, scale=1.0, seed=0):
    """``count`` rows or fewer, of the workload ``only`` if that is given; times are multiplied by ``scale``."""
    chance, found = random.Random(seed), []
    impls = [*COSTS, HOSTILE] if hostile else [*COSTS]
    for workload, fields, flops, size in workloads():
        for impl in impls if only in (None, workload) else ():
            if len(found) == count:
                return found
            case = CaseRecord(
                Choice(workload, fields), Choice(impl, {}), (Choice("benchmark", {}),), Settings("auto", 0)
            )
            if impl == HOSTILE and chance.random() < 0.3:
                found.append(Row(case=case, status="error", reason=REASON, device=GPU, phase="build"))
            elif impl == "cuda" and fields["dtype"] == "float32":
                found.append(Row(case=case, status="unsupported", reason="no float32", device=GPU, phase="plan"))
            else:
                found.append(timed(case, flops, size, chance, scale))
    return found


def timed(case, flops, size, chance, scale=1.0):
    """The row of a correct case, now and then a wrong or a contended one."""
    launch, factor = COSTS.get(case.impl.name, (5.0, 1.6))
    ideal = max(size / COPY_GBPS / 1e3, flops / TFLOPS[case.workload.fields["dtype"]] / 1e6)
    us = scale * (launch + factor * ideal) * chance.uniform(0.99, 1.01)
    percent = chance.choice([0.2, 0.3, 0.5, 1.0])
    verdict = chance.choices(["ok", "contended", "not_converged"], [30, 1, 1])[0]
    wrong = case.impl.name == "naive" and chance.random() < 0.02
    bound = "compute" if flops / size > TFLOPS[case.workload.fields["dtype"]] * 1e3 / COPY_GBPS else "memory"
    metrics = {
        "gpu_us": us,
        "low_us": us * (1 - percent / 100),
        "high_us": us * (1 + percent / 100),
        "interval_pct": percent,
        "stat_pct": percent / 2,
        "separate_pct": 0.5,
        "samples": 800,
        "flops": flops,
        "bytes_min": size,
        "intensity": flops / size,
        "bound": bound,
        "pct_of_measured_peak": 100 * ideal / us,
        "fastest_possible_us": 0.9 * ideal,
        "gpu_uuid": "GPU-1",
        "err_over_tol": 4.0 if wrong else chance.uniform(0.01, 0.5),
        "correct": not wrong,
        "converged": verdict != "not_converged",
        "verdict": "wrong" if wrong else verdict,
        "compile_s": 1.5,
        "peak_mem_bytes": size,
        "verdict_reason": "" if verdict == "ok" else f"made up: {verdict}",
    }
    status, reason = ("wrong", "3 of 8192 elements beyond tolerance") if wrong else ("ok", "")
    return Row(case=case, status=status, reason=reason, device=GPU, metrics=metrics)
