"""Every kernel of ours under compute-sanitizer: accesses out of bounds, races, reads of what nobody wrote.

    python -m benchmarks.sanitize [--tools memcheck racecheck initcheck] [--only softmax] [--write]

Small sizes, odd ones among them, in every type an implementation takes, forward and, where there is one, backward; each
is checked against float64 as well. A tool is one process of all of them, and the tools run side by side.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, load_average, page, publish, run, table, word
from runner.tool import find

TOOLS = {  # and their options
    "memcheck": ["--report-api-errors", "no"],  # bindings ask the driver for functions that it is too old to have
    "racecheck": [],
    "initcheck": [],
}
LIMIT_S = 500.0
DTYPES = ("float32", "bfloat16", "float16")
MLP = {"layers": 2, "steps": 1, "zero_grad": "every_step", "pass": "fwd_bwd"}
SIZES: dict[str, list[dict[str, Any]]] = {  # op → points; a design of its own for each of them
    "add": [{"rows": 7, "cols": cols} for cols in (64, 1001)],
    "gelu": [
        {"rows": 7, "cols": cols, "form": form, "pass": pass_}
        for cols in (64, 1001)
        for form in ("tanh", "erf")
        for pass_ in ("fwd", "bwd")
    ],
    "softmax": [{"rows": 5, "cols": cols} for cols in (127, 1024, 16384, 32768, 65536, 131072, 262144, 1048576)]
    + [{"rows": 5, "cols": cols, "pass": "bwd"} for cols in (1000, 16384, 40000)],
    "matmul": [
        {"m": m, "n": n, "k": k}
        for m, n, k in ((16, 256, 256), (128, 512, 512), (256, 384, 320), (520, 520, 264), (33, 65, 127))
    ],
    "cdist": [{"n": n, "m": m, "d": d} for n, m, d in ((200, 136, 64), (257, 129, 128), (300, 260, 512), (33, 65, 3))],
    "mlp": [{"dim": dim, "batch": batch, **MLP} for dim, batch in ((256, 128), (37, 19))],
}
IMPLS = {  # op → implementations with kernels of ours
    "add": ("triton", "cuda"),
    "gelu": ("triton", "cuda"),
    "softmax": ("triton", "cuda"),
    "matmul": ("triton", "cuda", "split"),
    "cdist": ("triton", "cuda"),
    "mlp": ("triton",),
}
SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")


def main() -> int:
    """Run all tools. 1 if one of them finds something."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", nargs="+", default=list(TOOLS), choices=TOOLS)
    parser.add_argument("--only", default="", help="calls whose name has this in it")
    parser.add_argument("--write", action="store_true", help="keep the table in benchmarks/results/")
    parser.add_argument("--calls", action="store_true", help=argparse.SUPPRESS)  # the process that is looked at
    options, load = parser.parse_args(), load_average()
    if options.calls:
        return calls(options.only)
    sanitizer = find("compute-sanitizer")
    if sanitizer is None:
        parser.error("compute-sanitizer is not here; it comes with the CUDA toolkit")
    calls_words = [sys.executable, "-m", "benchmarks.sanitize", "--calls", "--only", options.only]
    subprocess.run(calls_words, cwd=ROOT, check=True, timeout=LIMIT_S)  # compiles what the tools then find
    with tempfile.TemporaryDirectory() as folder:
        facts = run(["workload=gelu", "workload.cols=256", "impl=torch", "log=none"], Path(folder) / "facts").facts
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # else an allocation has neighbours of its own
    running = {
        tool: subprocess.Popen(
            [sanitizer, "--tool", tool, *TOOLS[tool], "--print-limit", "20", *calls_words],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for tool in options.tools
    }
    lines = []
    for tool, process in running.items():
        lines.append((tool, *outcome(process)))
        print(*lines[-1], flush=True)
    drawn = table(["tool", "found", "calls", ""], lines)
    publish("sanitize", page("Kernels under compute-sanitizer", drawn, facts, load), facts, options.write)
    return int(any(line[-1] != word(True) for line in lines))


def outcome(process: subprocess.Popen[str]) -> tuple[str, str, str]:
    """What a tool found, on how many calls, and PASS or MISS."""
    try:
        said, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
        said += f"\nstopped after {LIMIT_S:g} s"
    summaries = [int(one or other) for one, other in SUMMARY.findall(said)]
    done = re.search(r"(\d+) calls right", said)
    clean = bool(summaries) and not any(summaries) and done is not None and process.returncode == 0
    if not clean:
        print("\n".join(said.splitlines()[-60:]), file=sys.stderr)
    found = f"{sum(summaries)} errors" if summaries else "no summary"
    return found, done[1] if done else "not all", word(clean)


def calls(only: str) -> int:
    """Every call once, against float64; how many were right on the last line."""
    import torch

    from benchmarks.kernels.race import fields_of
    from kernels import Unsupported
    from models.draw import draw_on
    from runner import impl, options, schema
    from runner.case import Choice
    from runner.check import compare

    right, bad = 0, 0
    for op, points in SIZES.items():
        for point in points:
            for dtype in DTYPES:
                fields = fields_of("workload", op) | point | {"dtype": dtype}
                workload = schema.build(options.find("models", op), fields, op)
                inputs = workload.inputs(draw_on("cuda", dtype, "normal", 0))
                expected = workload.reference(*inputs)
                for name in IMPLS[op]:
                    title = f"{op} {name} {dtype} " + " ".join(f"{key}={value}" for key, value in point.items())
                    if only not in title:
                        continue
                    implementation = impl.build(Choice(name, fields_of("impl", name)))
                    try:
                        outputs = workload.call(implementation.load(op), inputs).run()
                        torch.cuda.synchronize()
                    except Unsupported:
                        continue
                    found = compare(outputs, expected, getattr(torch, workload.output_dtype))
                    right, bad = right + found.correct, bad + (not found.correct)
                    if not found.correct:
                        print(f"WRONG {title}: {found.reason}", flush=True)
    print(f"{right} calls right, {bad} wrong")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
