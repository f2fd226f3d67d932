"""Run all our kernels under compute-sanitizer, to find accesses out of bounds, races, and reads of unwritten memory.

    python -m benchmarks.kernels.sanitize [softmax ...] [--tools memcheck racecheck initcheck filled] [--write]

Sizes are small, some of them odd, in every dtype of an implementation, forward and, if it exists, backward. Each result
is also checked against float64. Each operation and tool has its own process, and as many run at a time as there are
cores. Inputs and references are computed on the CPU, so that the tools check little but our kernels.

initcheck does not see stores by the tensor memory accelerator of Hopper, and reports correct results as unwritten. So
its reports about readers of such results do not count. Instead, the tool ``filled`` repeats each call with all memory
filled with NaN. If something was not written, or was read before it was written, the result then contains NaN.

racecheck reports the way in which Triton hands work to specialized warps: it stores a number for each warp, all warps
pass a barrier, and each reads its number. The report appears for any such kernel whose warps use barriers of their own,
even for one that only adds numbers. These reads are in the line of the kernel's name, where a kernel has no code of its
own, and do not count.
"""

from __future__ import annotations

import argparse
import linecache
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, fields_of, load_average, page, publish, run, table, word
from runner.device import tools
from runner.worker.sanitizer import ALONE, NAME, TOTAL

FEW = ["--print-limit", "20"]
TOOLS = {  # tools and their options
    "memcheck": [*FEW, "--report-api-errors", "no"],  # bindings try functions that an older driver lacks
    "racecheck": FEW,
    "initcheck": ["--print-limit", "4000000", "--show-backtrace", "no"],  # print all, since readers are counted
    "filled": None,  # without compute-sanitizer
}
LIMIT_S, GRACE_S = 480.0, 10.0
KERNELS = ROOT / "kernels"
DTYPES = ("float32", "bfloat16", "float16")
OTHER_DTYPES = {"histogram": ("float32",)}
MLP = {"layers": 2, "steps": 1, "zero_grad": "every_step", "pass": "fwd_bwd"}
REDUCTIONS = ("reduce_sum", "reduce_max", "argmax", "norm")
SHARED = {"m": 768, "n": 1536, "k": 6144}  # programs share tiles, in 16 bits; other kernels would take minutes for it
SIZES: dict[str, list[dict[str, Any]]] = {  # op → sizes; each of them uses another kernel or plan
    "add": [{"rows": 7, "cols": cols} for cols in (64, 1001)],
    "square": [{"rows": 7, "cols": cols, "pass": pass_} for cols in (64, 1001) for pass_ in ("fwd", "bwd")],
    **{
        op: [{"rows": 7, "cols": cols, "dim": dim} for cols in (1001, 32768) for dim in ("all", 0, 1)]
        for op in REDUCTIONS
    },
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
        for m, n, k in (
            *((16, 256, 256), (128, 512, 512), (256, 384, 320), (520, 520, 264), (33, 65, 127)),
            *((1280, 2304, 264), (1536, 2048, 512), (1536, 2047, 264)),  # warps with roles, in 16 bits
        )
    ]
    + [SHARED],
    "cdist": [{"n": n, "m": m, "d": d} for n, m, d in ((200, 136, 64), (257, 129, 128), (300, 260, 512), (33, 65, 3))],
    "mlp": [{"dim": dim, "batch": batch, **MLP} for dim, batch in ((264, 136), (37, 19))],
    "attention": [
        {"batch": 1, "heads": 2, "kv_heads": 1, "length": n, "kv_length": m, "d": d, "causal": True, "pass": "fwd_bwd"}
        for n, m, d in ((130, 130, 64), (33, 140, 40), (70, 70, 17))
    ],
    "conv2d": [
        {"channels": 6, "height": 13, "width": 21, "filters": 70, "groups": groups, "stride": stride, "layout": layout}
        for groups, stride, layout in ((1, 1, "contiguous"), (2, 2, "channels_last"))
    ],
    "conv_bn_relu_pool": [
        {"channels": channels, "height": 13, "width": 10, "filters": 70, "layout": layout}
        for channels, layout in ((3, "contiguous"), (32, "channels_last"))
    ],
    "transpose": [{"rows": rows, "cols": cols} for rows, cols in ((256, 320), (100, 333))],
    "cumsum": [{"rows": 7, "cols": cols} for cols in (64, 1001, 40000)],
    "strided_copy": [{"elements": elements, "stride": stride} for elements, stride in ((4096, 1), (1001, 3))],
    "adamw": [
        {"layers": 2, "dim": dim, "kv": 3, "hidden": 100, "vocab": 11, "moments": moments}
        for dim, moments in ((64, "same"), (33, "float32"))
    ],
    "histogram": [{"elements": elements, "bins": bins} for elements, bins in ((4096, 64), (100_001, 1000))],
    **{
        op: [{"rows": 7, "cols": cols, "pass": "fwd_bwd"} for cols in (127, 1001, 4096, 16384, 40000)]
        for op in ("layernorm", "rmsnorm")
    },
    "linear_int8": [
        {"m": m, "k": k, "n": n, "group": group}
        for m, k, n, group in (
            (1, 4096, 200, 0),
            (3, 1001, 65, 0),
            (20, 640, 130, 32),
            (70, 300, 70, 128),
            (2, 200, 33, 50),
        )
    ],
    "nearest": [{"n": n, "m": m, "d": d} for n, m, d in ((300, 200, 64), (70, 1500, 40), (33, 65, 3), (130, 300, 200))],
    "cross_entropy": [{"rows": 7, "vocab": vocab, "pass": "fwd_bwd"} for vocab in (10, 1001, 4096, 50257)],
}
LITTLE = SIZES | {  # for initcheck, which reports 512 reads of a launch, and an error if there are more
    "mlp": [{"dim": dim, "batch": batch, **MLP} for dim, batch in ((128, 16), (37, 19))],
}
IMPLS = {  # op → implementations with our kernels
    "add": ("triton", "cuda"),
    "square": ("triton", "cuda"),
    **dict.fromkeys(REDUCTIONS, ("triton",)),
    "gelu": ("triton", "cuda"),
    "softmax": ("triton", "cuda"),
    "matmul": ("triton", "cuda", "split"),
    "cdist": ("triton", "cuda"),
    **dict.fromkeys(("mlp", "transpose", "strided_copy", "adamw", "cumsum", "attention"), ("triton",)),
    **dict.fromkeys(("layernorm", "rmsnorm", "cross_entropy", "linear_int8", "nearest"), ("triton",)),
    "histogram": ("triton", "cuda"),
    "conv2d": ("cuda",),
    "conv_bn_relu_pool": ("triton",),
}
HAZARDS = re.compile(r"^========= RACECHECK SUMMARY: (\d+) hazard", re.MULTILINE)
PLACE = re.compile(r"^=+ +(at (?!0x)\S.*|.* on access by \w+ source)$", re.MULTILINE)
READERS = re.compile(  # reads of what the accelerator has stored: copies to the host, torch's kernels, one of ours
    r"^=+ +Uninitialized (?:access .* on access by cudaMemcpy source$"
    r"|.* read of size .*\n=+ +at (?:(?:void )?at::native::|_through_activation\+0x))",
    re.MULTILINE,
)
HAND_OVER = re.compile(r"^=+ Error: Race reported between Read access at (\w+)\+0x\w+ in (\S+):(\d+)$", re.MULTILINE)
DONE = re.compile(r"(\d+) calls right, (\d+) wrong")


@dataclass(frozen=True)
class Look:
    """Result of a tool for the calls of an operation."""

    found: int | None  # errors, hazards or wrong results; None: the tool printed no summary
    right: int | None  # correct calls; None: not all calls ended
    clean: bool

    @property
    def cell(self) -> str:
        """The cell of the table."""
        return "not done" if self.found is None or self.right is None else f"{self.found} in {self.right} calls"


def main() -> int:
    """Run all tools. Return 1 if one of them finds something, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ops", nargs="*", metavar="op", help=f"of {', '.join(SIZES)}; all if none is named")
    parser.add_argument("--tools", nargs="+", default=list(TOOLS), choices=TOOLS)
    parser.add_argument("--write", action="store_true", help="keep the table in benchmarks/results/")
    parser.add_argument("--calls-under", choices=TOOLS, help=argparse.SUPPRESS)  # the process under the tool
    options, load = parser.parse_args(), load_average()
    if unknown := set(options.ops) - set(SIZES):
        parser.error(f"no such operation: {', '.join(sorted(unknown))}; one of {', '.join(SIZES)}")
    ops = options.ops or list(SIZES)
    if options.calls_under:
        return calls(ops, options.calls_under)
    sanitizer = tools.find_tool(NAME)
    if sanitizer is None:
        parser.error(f"{NAME} is not installed; it comes with the CUDA toolkit")
    with tempfile.TemporaryDirectory(prefix="sanitize-") as scratch, ThreadPoolExecutor(os.cpu_count()) as pool:
        folder = Path(scratch)
        facts = run(["workload=gelu", "workload.cols=256", "impl=torch", "log=none"], folder / "facts").facts
        for _ in pool.map(lambda op: tools.run_tool(command(op, "memcheck"), folder / op, LIMIT_S), ops):
            pass  # compile all kernels before the tools run
        pairs = list(product(ops, options.tools))
        looks = dict(zip(pairs, pool.map(lambda pair: look(sanitizer, *pair, folder), pairs), strict=True))
    name = "_".join(["sanitize", *options.ops])
    publish(name, page("Kernels under compute-sanitizer", report(looks), facts, load), facts, options.write)
    return int(not all(one.clean for one in looks.values()))


def command(op: str, name: str) -> list[str]:
    """Return the command that runs under the tool ``name``."""
    return [sys.executable, "-m", "benchmarks.kernels.sanitize", "--calls-under", name, op]


def look(sanitizer: str, op: str, name: str, folder: Path) -> Look:
    """Run the calls of ``op`` under the tool ``name``, and print its output unless it found nothing."""
    options = TOOLS[name]
    words = command(op, name) if options is None else [sanitizer, "--tool", name, *options, *command(op, name)]
    ended = tools.run_tool(words, folder / f"{op}-{name}", LIMIT_S, ALONE, GRACE_S)
    found = outcome(ended, by_tool=options is not None)
    why = f", stopped after {LIMIT_S:g} s" if ended.timed_out else ""
    print(f"{op} {name}: {found.cell}{why}", flush=True)
    if not found.clean:
        print("\n".join([*places(ended.output), *ended.output.splitlines()[-60:]]), file=sys.stderr)
    return found


def calls(ops: Sequence[str], name: str) -> int:
    """Make every call once for the tool ``name`` and check it against float64. The last line has the counts."""
    import torch

    from runner import implementations
    from runner.kernels.unsupported import Unsupported
    from runner.models.workload import draw_on
    from runner.records.case import Choice
    from runner.records.options import option_class
    from runner.records.schema import build
    from runner.subject.operation import expected_outputs

    torch.use_deterministic_algorithms(TOOLS[name] is None, warn_only=True)  # then torch fills new tensors with NaN
    sizes = LITTLE if name == "initcheck" else SIZES
    right, wrong = 0, 0
    for op, point, dtype in [
        (one, *more) for one in ops for more in product(sizes[one], OTHER_DTYPES.get(one, DTYPES))
    ]:
        fields = fields_of("workload", op) | point | {"dtype": dtype}
        workload = build(option_class("models", op), fields, op)
        inputs = workload.inputs(draw_on("cpu", dtype, "normal", 0))
        expected = expected_outputs(workload, inputs, quick=True)
        for kind in IMPLS[op]:
            if point == SHARED and (kind, dtype) not in (("triton", "bfloat16"), ("triton", "float16")):
                continue
            implementation = implementations.build(Choice(kind, fields_of("impl", kind)))
            there = tuple(tensor.cuda() for tensor in inputs)
            try:
                outputs = workload.call(implementation.load(op), there).run()
                torch.cuda.synchronize()
            except Unsupported:
                continue
            here = tuple(output.cpu() for output in outputs)
            found = expected.check_tensors(here)
            right, wrong = right + found.correct, wrong + (not found.correct)
            if not found.correct:
                size = " ".join(f"{key}={value}" for key, value in point.items())
                print(f"WRONG {op} {kind} {dtype} {size}: {found.reason}", flush=True)
    print(f"{right} calls right, {wrong} wrong")
    return int(wrong > 0)


# --- what follows; no GPU ---


def outcome(ended: tools.Ended, *, by_tool: bool = True) -> Look:
    """Return the result of a tool, or of calls without one, from its output. Reads are filtered as the module says."""
    done = DONE.search(ended.output)
    told = TOTAL.findall(ended.output) + HAZARDS.findall(ended.output) if by_tool else [done[2]] if done else []
    excused = len(READERS.findall(ended.output)) + hand_overs(ended.output)
    found = sum(map(int, told)) - excused if told else None
    clean = found == 0 and done is not None and ended.code == 0 and not ended.timed_out
    return Look(found, int(done[1]) if done else None, clean)


def hand_overs(said: str) -> int:
    """Return the number of reported races whose read is in the line of a kernel's name."""
    return sum(
        any(linecache.getline(str(path), int(line)).startswith(f"def {kernel}(") for path in KERNELS.rglob(file))
        for kernel, file, line in HAND_OVER.findall(said)
    )


def places(said: str) -> list[str]:
    """Return the places that a tool reports, and how often; the most frequent first."""
    names = Counter(re.sub(r"\+?0x[0-9a-f]+.*?(?= on |$)|\(.*", "", name) for name in PLACE.findall(said))
    return [f"{count:8} {name}" for name, count in names.most_common(10)]


def report(looks: Mapping[tuple[str, str], Look]) -> str:
    """Return a table of errors and hazards by operation and tool."""
    ops, names = (list(dict.fromkeys(pair[place] for pair in looks)) for place in (0, 1))
    lines = [
        (op, *(looks[op, name].cell for name in names), word(all(looks[op, name].clean for name in names)))
        for op in ops
    ]
    return table(["", *names, ""], lines)


if __name__ == "__main__":
    sys.exit(main())
