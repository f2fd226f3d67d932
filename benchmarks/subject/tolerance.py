"""Test whether the tolerance found from a reference passes right results and finds wrong ones.

    python -m benchmarks.subject.tolerance [--tasks "softmax;gelu"] [--files FOLDER...] [--seed 1] [--quick] [--write]

Each of the operations in ``tasks`` runs in float32, bfloat16 and float16 as torch does it, rounded from float64, in
float32 inside, with sums in other orders, and in forms of its own; all of these are right. Then wrong results are made
of it. A wrong one that is no further from the truth than the worst right one is left out. A right one with the bits of
another counts once. On a CPU.

With ``--files`` the operations are those of public tasks in folders of the reader, as a copy of KernelBench, at sizes
as in ``public_tasks``.
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import load_average, publish_study, table, word
from benchmarks.subject.sizes import operation, smaller
from benchmarks.subject.tasks import TASKS, Task
from benchmarks.subject.variants import LOWER, dropped, in_order, lowered, tf32
from runner.subject.tolerance import Judge
from runner.tasks import formats, own_file
from runner.timing.nested import mapped, tensors

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LEAST_HONEST, LEAST_FOUND = 0.995, 0.94
EDITS = ("an element 1 %", "a row 1 %", "the last 1/16 1 %", "all 1 %")


@dataclass(frozen=True)
class Verdict:
    """The judgement of one result."""

    task: str
    dtype: str
    kind: str  # of a variant
    honest: bool
    right: bool
    ratio: float


@dataclass(frozen=True)
class Case:
    """A task in one dtype."""

    task: str
    dtype: str
    seconds: float
    refused: str
    note: str


Outputs = list[Tensor]


def outputs_of(value: Any) -> Outputs:
    """Return the tensors of what a function returned."""
    return [tensor.detach() for tensor in tensors(value)]


def floating(change: Callable[[Tensor], Tensor], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return ``args`` with floating tensors changed, those of a copy of each module included."""

    def only(tensor: Tensor) -> Tensor:
        return change(tensor) if tensor.is_floating_point() else tensor

    def copied(module: torch.nn.Module) -> torch.nn.Module:
        other = copy.deepcopy(module)
        for tensor in (*other.parameters(), *other.buffers()):
            tensor.data = only(tensor.data)
        return other

    result: tuple[Any, ...] = mapped(only, args, copied)
    return result


def cast(args: tuple[Any, ...], to: torch.dtype) -> tuple[Any, ...]:
    """Return ``args`` with floating tensors of the type ``to``."""
    return floating(lambda tensor: tensor.to(to), args)


def honest_outputs(
    task: Task, args: tuple[Any, ...], dtype: torch.dtype, like: Outputs
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield right results by name."""

    def back(outputs: Outputs) -> Outputs:
        return [one.to(own.dtype) for one, own in zip(outputs, like, strict=True)]

    def within(mode: Any) -> Outputs:
        with mode:
            return outputs_of(task.reference(*args))

    yield "as torch does it", lambda: within(nullcontext())
    yield "rounded from float64", lambda: back(outputs_of(task.reference(*cast(args, torch.float64))))
    if dtype.itemsize < 4:
        yield "float32 inside", lambda: back(outputs_of(task.reference(*cast(args, torch.float32))))
    yield "sums in a loop", lambda: within(in_order(split=False))
    yield "sums in parts", lambda: within(in_order(split=True))
    yield "without mkldnn", lambda: within(torch.backends.mkldnn.flags(enabled=False))
    if any(isinstance(arg, Tensor) and arg.dim() == 4 for arg in args):
        last = mapped(
            lambda tensor: tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor, args
        )
        yield "channels last", lambda: outputs_of(task.reference(*last))
    for name, function in task.honest.items():
        yield f"other form: {name}", lambda function=function: outputs_of(function(*args))


def wrong_outputs(task: Task, args: tuple[Any, ...], dtype: torch.dtype, own: Outputs) -> Iterator[tuple[str, Any]]:
    """Yield wrong results by kind."""
    lower = LOWER[dtype]

    def within(mode: Any) -> Outputs:
        with mode:
            return outputs_of(task.reference(*args))

    def with_inputs(change: Callable[[Tensor], Tensor]) -> Outputs:
        changed = floating(change, args)
        return outputs_of(task.reference(*changed))

    yield "zeros", lambda: [torch.zeros_like(one) for one in own]
    yield "the mean", lambda: [_constant(one) for one in own]
    yield "another call's output", lambda: with_inputs(lambda t: t.flatten().flip(0).reshape(t.shape) * 0.7)
    yield "an input", lambda: [_copied(one, args) for one in own]
    yield "inputs one precision lower", lambda: with_inputs(lambda t: t.to(lower).to(t.dtype))
    yield "all one precision lower", lambda: within(lowered(lower))
    if dtype == torch.float32:
        yield "TF32", lambda: within(tf32())
    yield "terms dropped", lambda: within(dropped())
    for name in EDITS:
        yield name, lambda name=name: [_edited(one, name) for one in own]
    for name, function in task.wrong.items():
        yield name, lambda function=function: outputs_of(function(*args))


def _constant(own: Tensor) -> Tensor:
    return own.double().mean().to(own.dtype).expand(own.shape).clone()


def _copied(own: Tensor, args: tuple[Any, ...]) -> Tensor:
    alike = [t for t in tensors(args) if t.shape == own.shape and t.dtype == own.dtype]
    return alike[0].clone() if alike else own


def _edited(own: Tensor, name: str) -> Tensor:
    """Return ``own`` with 1 % more in a part of it."""
    if not own.is_floating_point():
        return own
    edited, flat = own.clone().contiguous(), max(1, own.numel() // 16)
    if name == "an element 1 %":
        size = edited.view(-1).abs().nan_to_num(0.0, 0.0, 0.0)
        place = int(size.argsort()[size.numel() // 2])  # one of median size
        edited.view(-1)[place] *= 1.01
    elif name == "a row 1 %":
        rows = edited.view(-1, edited.shape[-1]) if edited.dim() else edited.view(1, 1)
        rows[rows.shape[0] // 2] *= 1.01
    else:
        edited.view(-1)[-flat if name == "the last 1/16 1 %" else 0 :] *= 1.01
    return edited


def errors(outputs: Outputs, truth: Outputs) -> list[float]:
    """Return the largest and the root mean square error of each output."""
    found = []
    for output, exact in zip(outputs, truth, strict=True):
        if output.shape != exact.shape:
            found += [math.inf, math.inf]
            continue
        error = (output.double() - exact.double()).abs().nan_to_num(0.0, math.inf, math.inf)
        found += [float(error.max()), float(error.square().mean().sqrt())]
    return found


def judge_task(name: str, task: Task, dtype: torch.dtype, seed: int, quick: bool) -> tuple[Case, list[Verdict]]:
    """Return how the variants of a task are judged in one dtype."""
    torch.manual_seed(seed)
    drawn = task.inputs()
    args = cast(drawn, dtype)
    kind = str(dtype).removeprefix("torch.")
    started = time.process_time()
    try:
        judge = Judge(task.reference, args, quick=quick)
        like = outputs_of(task.reference(*args))
    except (RuntimeError, NotImplementedError, ValueError) as error:  # torch has no such operation in this dtype
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        return Case(name, kind, time.process_time() - started, reason, ""), []
    case = Case(name, kind, time.process_time() - started, judge.refused or judge.unproven, judge.note)
    if case.refused:
        return case, []
    verdicts = []

    def add(variant: str, honest: bool, outputs: Outputs) -> None:
        result = judge.check(outputs)
        verdicts.append(Verdict(name, kind, variant, honest, result.correct, result.err_over_tol))

    honest, worst = {}, [0.0]
    truth = outputs_of(task.reference(*cast(args, torch.float64)))
    for variant, make in honest_outputs(task, args, dtype, like):
        try:
            outputs = make()
        except (RuntimeError, NotImplementedError, ValueError):  # torch has no such form in this dtype
            continue
        if not any(all(map(torch.equal, outputs, other)) for other in honest.values()):  # each result counts once
            honest[variant] = outputs
    own = next(iter(honest.values()))  # as torch does it, if it does
    for variant, outputs in honest.items():
        add(variant, True, outputs)
        worst = [max(pair) for pair in zip(errors(outputs, truth), worst * len(own) * 2, strict=False)]
    for variant, make in wrong_outputs(task, args, dtype, own):
        try:
            outputs = make()
        except (RuntimeError, NotImplementedError, ValueError):
            continue
        further = [error > limit for error, limit in zip(errors(outputs, truth), worst, strict=True)]
        if any(further):
            add(variant, False, [one.to(other.dtype) for one, other in zip(outputs, own, strict=True)])
    return case, verdicts


# --- the page ---


def _share(verdicts: Sequence[Verdict], right: bool) -> str:
    count = sum(verdict.right is right for verdict in verdicts)
    return f"{count} of {len(verdicts)}" + (f" ({100 * count / len(verdicts):.2f} %)" if verdicts else "")


def report(cases: Sequence[Case], verdicts: Sequence[Verdict], seconds: float) -> str:
    """Return the bars, the wrong results by kind, what was missed, and the refused cases."""
    honest = [verdict for verdict in verdicts if verdict.honest]
    wrong = [verdict for verdict in verdicts if not verdict.honest]
    gross = [verdict for verdict in wrong if verdict.kind not in EDITS]
    own = [verdict for verdict in honest if verdict.kind == "as torch does it"]
    passed = sum(verdict.right for verdict in honest) / max(1, len(honest))
    found = sum(not verdict.right for verdict in wrong) / max(1, len(wrong))
    own_wrong = sum(not verdict.right for verdict in own)
    bars = [
        (
            f"right results called right, {100 * LEAST_HONEST:g} % or more",
            _share(honest, True),
            word(passed >= LEAST_HONEST),
        ),
        ("torch's own results called wrong, none", f"{own_wrong} of {len(own)}", word(not own_wrong)),
        (f"wrong results found, {100 * LEAST_FOUND:g} % or more", _share(wrong, False), word(found >= LEAST_FOUND)),
    ]
    dtypes = list(dict.fromkeys(case.dtype for case in cases))
    rows = [
        ("all", _share(honest, True), own_wrong, _share(wrong, False), _share(gross, False)),
        *(
            (
                dtype,
                _share([v for v in honest if v.dtype == dtype], True),
                sum(not v.right for v in own if v.dtype == dtype),
                _share([v for v in wrong if v.dtype == dtype], False),
                _share([v for v in gross if v.dtype == dtype], False),
            )
            for dtype in dtypes
        ),
    ]
    kinds = Counter(verdict.kind for verdict in wrong)
    by_kind = [
        (kind, *(_share([v for v in wrong if v.kind == kind and v.dtype == d], False) for d in dtypes))
        for kind in kinds
    ]
    failed = [(v.task, v.dtype, v.kind, v.ratio) for v in honest if not v.right]
    refused = [(case.task, case.dtype, case.refused) for case in cases if case.refused]
    missed = Counter((v.task, v.kind) for v in gross if v.right)
    times = [case.seconds for case in cases]
    return "\n\n".join(
        [
            f"{len({case.task for case in cases})} tasks, {len(cases)} cases; {seconds:.0f} s in all. "
            f"A judge takes {median(times):.2f} s of CPU time in the median, {max(times):.2f} s at most.",
            "## Bars\n\n" + table(["bar", "seen", ""], bars),
            "## By type\n\n"
            + table(["", "right passed", "torch's own called wrong", "wrong found", "without edits of 1 %"], rows),
            "## Wrong results found, by kind\n\n" + table(["kind", *dtypes], by_kind),
            "## Right results called wrong\n\n" + table(["task", "dtype", "variant", "error over tolerance"], failed),
            "## Wrong results missed, without edits of 1 %\n\n"
            + table(["task", "kind", "dtypes"], [(*key, count) for key, count in sorted(missed.items())]),
            f"## Refused cases\n\n{sum(bool(case.note) for case in cases)} more have a note.\n\n"
            + table(["task", "dtype", "reason"], refused),
        ]
    )


def public(folders: Sequence[str], limit: int, seed: int) -> Iterator[tuple[str, Task]]:
    """Yield the public tasks in ``folders`` by name, at sizes that need at most ``limit`` bytes."""
    for path in (path for folder in folders for path in formats.find(formats.as_place(folder))):
        file = own_file.read(path, strict=False)
        if file.refused:
            print(f"{path}: {file.refused}", file=sys.stderr)
            continue
        try:
            task = operation(path, smaller(file, limit))
            args, options = task.draw("cpu", seed)
        except Exception as error:
            print(f"{path}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        yield Path(path).name, Task(partial(task.reference, **options), lambda args=args: args)


def main() -> None:
    """Judge all tasks and print the page; with --write keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="", help="names, with semicolons; all without")
    parser.add_argument("--files", nargs="*", default=[], metavar="FOLDER", help="of public tasks")
    parser.add_argument("--bytes", type=int, default=2**18, help="of inputs, weights and outputs of a public task")
    parser.add_argument("--seed", type=int, default=1, help="of the inputs")
    parser.add_argument("--quick", action="store_true", help="with half of the draws")
    parser.add_argument("--write", action="store_true", help="keep the page in benchmarks/results/")
    options, load = parser.parse_args(), load_average()
    tasks = dict(public(options.files, options.bytes, options.seed)) if options.files else TASKS
    names = options.tasks.split(";") if options.tasks else list(tasks)
    started, cases, verdicts = time.perf_counter(), [], []
    for name in names:
        for dtype in DTYPES:
            case, judged = judge_task(name, tasks[name], dtype, options.seed, options.quick)
            cases.append(case)
            verdicts += judged
        print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    body = report(cases, verdicts, time.perf_counter() - started)
    options.device, options.load = "cpu", 0
    publish_study(
        "tolerance_public" if options.files else "tolerance",
        "Tolerances found from the reference itself",
        body,
        options,
        load,
    )


if __name__ == "__main__":
    main()
