"""Compare our kernels with torch and torch.compile over seeded random shapes, in paired rounds, against bars.

    python -m benchmarks.kernels.shapes [--seed 1] [--ops matmul-bfloat16,softmax-float32] [--shapes 24] [--write]

A quarter of the shapes are of the sets in conf/shapes; 40 % of the sizes of the others are no multiples of 64. Each
operation is a run of the runner, by the experiment ``shapes`` in conf beside this folder, and its table is printed as
soon as it ends. A ratio is the time of the fastest of torch and torch.compile over ours, from the same paired rounds.
A second command with the same ``--folder`` goes on where the first stopped: only shapes that are not finished, or
whose kernels have changed since, are measured. Whole shapes: what is left of a shape would not be in its rounds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.common import environment, keep, load_average, page, run
from benchmarks.kernels.shapes.draw import OPS, Op, Shape, shapes
from benchmarks.kernels.shapes.report import GRAPH, Measured, bars_table, measured, op_table
from runner import config
from runner.records.case import CaseRecord
from runner.records.labels import Labels
from runner.store.fingerprint import Fingerprints

CONF = Path(__file__).parents[1] / "conf"
PEERS = ("torch", "compiled")
TUNED = "impl.mode=default,max-autotune-no-cudagraphs"  # of torch.compile


def main() -> int:
    """Run the operations and print their tables; with --write keep the page. Return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="of the shapes")
    parser.add_argument("--ops", default=",".join(OPS), help="which of %(default)s")
    parser.add_argument("--shapes", type=int, default=24, help="of each op")
    parser.add_argument("--folder", type=Path, help="of the runs; outputs/shapes/seed<SEED> by default")
    parser.add_argument("--max-autotune", action="store_true", help="torch.compile of matmul and mlp in that mode too")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda", help="cpu: small shapes, naive for ours")
    parser.add_argument("--show", action="store_true", help="print the tables of the folder, and measure nothing")
    parser.add_argument("--write", action="store_true", help="keep the page in benchmarks/results/")
    args, load = parser.parse_args(), load_average()
    names = args.ops.split(",")
    if unknown := [name for name in names if name not in OPS]:
        parser.error(f"no such op: {', '.join(unknown)}; there are {', '.join(OPS)}")
    if args.shapes < 2:
        parser.error("--shapes: give at least 2")
    top = (args.folder or Path("outputs", "shapes", f"seed{args.seed}")).resolve()
    found: dict[Op, list[Measured]] = {}
    tables = []
    for name in names:
        op = OPS[name] if args.device == "cuda" else replace(OPS[name], ours=("naive",))
        drawn = shapes(op, args.seed, args.shapes, small=args.device == "cpu")
        words = command(op, args.device, max_autotune=args.max_autotune)
        problems, labels = cases(words, drawn)
        if not args.show:
            measure(words, measured(problems, labels, runs(top / name)), top / name)
        found[op] = measured(problems, labels, runs(top / name))
        tables.append(op_table(op, found[op]))
        print(f"\n{bars_table({op: found[op]})[0]}\n\n{tables[-1]}", flush=True)
    folders = [folder for name in names for folder in runs(top / name)]
    if not folders:
        parser.error(f"--show: {top} has no run of {args.ops}")
    bars, missed = bars_table(found)
    print(f"\n{bars}" if len(found) > 1 else "")
    facts = environment(folders[-1])
    if args.write:
        title = f"Kernels over {args.shapes} random shapes an operation, seed {args.seed}"
        body = "\n\n".join(["## Bars", bars, "## The ten worst shapes of each", *tables])
        keep(f"shapes_seed{args.seed}", page(title, body, facts, None if args.show else load), facts)
    return int(missed > 0)


def command(op: Op, device: str, *, max_autotune: bool = False) -> list[str]:
    """Return the words of the runner for all but the shapes of ``op``."""
    tuned = [TUNED] if max_autotune and op.workload in ("matmul", "mlp") else []
    impls = f"impl={','.join([*op.ours, *PEERS, *([GRAPH] if op.graph else [])])}"
    what = ["+experiment=shapes", f"workload={op.workload}", f"workload.dtype={op.dtype}", impls, *tuned]
    return ["--config-dir", str(CONF), *what, f"device={device}", "log=none", "-m"]


def sweep(drawn: Sequence[Shape]) -> str:
    """Return the word of the runner for the shapes ``drawn``."""
    return "workload.shape=" + ",".join(f"[{','.join(map(str, shape))}]" for shape in drawn)


def cases(words: Sequence[str], drawn: Sequence[Shape]) -> tuple[dict[Shape, list[CaseRecord]], Labels]:
    """Return the cases of each shape, and the names of their implementations."""
    plan = config.plan([*words, sweep(drawn)])
    problems: dict[str, list[CaseRecord]] = {}
    for case in plan.cases:  # in the order of the shapes
        problems.setdefault(case.problem, []).append(case)
    return dict(zip(drawn, problems.values(), strict=True)), Labels(case.impl for case in plan.cases)


def measure(words: Sequence[str], found: Sequence[Measured], folder: Path) -> None:
    """Run the shapes of ``found`` that are not done, or of which a source or a version has changed since."""
    fingerprints, started = Fingerprints(), time.perf_counter()
    left = [
        one.shape
        for one in found
        if not one.done or any(row.fingerprint != fingerprints.of(row.case) for row in one.every_row)
    ]
    print(f"{folder.name}: {len(left)} of {len(found)} shapes to measure", file=sys.stderr, flush=True)
    if left:
        number = 1 + max((int(path.name) for path in folder.glob("[0-9]*")), default=0)
        run([*words, sweep(left)], folder / str(number), codes=(0, 1))  # 1: a case failed, which the table says
        print(f"{folder.name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)


def runs(folder: Path) -> list[Path]:
    """Return the folders of the runs in ``folder``, the oldest first."""
    found = [path.parent for path in folder.glob("*/*/*/rows.jsonl")]
    return sorted(found, key=lambda path: int(path.parents[1].name))


if __name__ == "__main__":
    sys.exit(main())
