"""Implementations of workloads over ranks: two processes, each checked against its own float64 reference.

They use gloo on a CPU, and NCCL on two GPUs. Both are started once, make all calls, and write what came of each.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import yaml

from runner.kernels.unsupported import Unsupported
from runner.records.options import CONF, option_class
from runner.records.schema import rules_of

RANKS = 2
DTYPES = ("float32", "bfloat16")
IMPLEMENTATIONS = {
    "ddp_step": ("naive", "overlap", "torch"),
    "matmul_all_reduce": ("naive", "torch", "chunked", "ring", "symmetric"),
    "ring_attention": ("naive", "torch", "ring"),
}
SIZES: dict[str, list[dict[str, Any]]] = {
    "ddp_step": [{"dim": 12, "layers": 3, "batch": 5, "activation": name} for name in ("gelu", "relu")],
    # an odd number of rows, which no band divides | one row
    "matmul_all_reduce": [{"m": m, "k": 38, "n": 9} for m in (7, 1)],
    # grouped heads | one position on each rank
    "ring_attention": [
        {"heads": 4, "kv_heads": 2, "length": length, "d": 8, "causal": causal, "variant": variant}
        for length, causal, variant in product((26, RANKS), (False, True), ("ring", "striped"))
    ],
}
CASES = [
    (op, impl, number, dtype)
    for op, impls in IMPLEMENTATIONS.items()
    for impl, number, dtype in product(impls, range(len(SIZES[op])), DTYPES)
]


def local_gradients(x: torch.Tensor, *params: torch.Tensor, activation: str) -> tuple[torch.Tensor, ...]:
    """Gradients that nobody has averaged."""
    from runner.kernels.mlp.torch import mlp

    return torch.autograd.grad(mlp(x, *params, activation=activation).mean(), params)


def own_product_twice(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return 2 * (a @ b)


def the_other_split(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, variant: str) -> torch.Tensor:
    from runner.kernels.ring_attention.ring import ring_attention

    return ring_attention(q, k, v, causal=causal, variant="ring" if variant == "striped" else "striped")


WRONG: dict[str, Callable[..., Any]] = {
    "ddp_step": local_gradients,
    "matmul_all_reduce": own_product_twice,
    "ring_attention": the_other_split,
}


def name_of(op: str, impl: str, number: int, dtype: str) -> str:
    return f"{op} {impl} {number} {dtype}"


def results(rank: int, device: str) -> Iterator[tuple[str, tuple[bool, str]]]:
    """Yield each case, whether its outputs are right on this rank, and why not."""
    for op, number, dtype in dict.fromkeys((op, number, dtype) for op, _, number, dtype in CASES):
        kind = option_class("models", op)
        values = yaml.safe_load((CONF / "workload" / f"{op}.yaml").read_text())
        given = {a: values[f] for f, (a, _) in rules_of(kind).items() if f not in ("rank", "world_size")}
        given |= {"rank": rank, "world_size": RANKS, "ranks": RANKS, "dtype": dtype} | SIZES[op][number]
        workload = kind(**{each.name: given[each.name] for each in fields(kind)})
        inputs = workload.draw_inputs(device, 0)
        expected = workload.expected_outputs(inputs)
        of_impl = {
            impl: getattr(importlib.import_module(f"runner.kernels.{op}.{impl}"), op) for impl in IMPLEMENTATIONS[op]
        }
        for impl, function in {**of_impl, "wrong": WRONG[op]}.items():
            call = workload.call(function, inputs)
            try:
                call.run()
            except Unsupported as error:
                yield name_of(op, impl, number, dtype), (device == "cpu" and impl == "symmetric", str(error))
                continue
            call.restore()
            result = expected.check(call.run())
            yield name_of(op, impl, number, dtype), (bool(result.correct), result.reason)


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def found(request, tmp_path_factory: pytest.TempPathFactory) -> list[Mapping[str, tuple[bool, str]]]:
    """The results of each rank."""
    if request.param == "cuda" and torch.cuda.device_count() < RANKS:
        pytest.skip("it needs two GPUs")
    folder = tmp_path_factory.mktemp("ranks")
    commands = [[sys.executable, __file__, str(rank), request.param, str(folder)] for rank in range(RANKS)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    errors = [process.communicate(timeout=240)[1] for process in processes]
    assert not any(process.returncode for process in processes), errors
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize(("op", "impl", "number", "dtype"), CASES)
def test_an_implementation_is_right_on_every_rank(found, op, impl, number, dtype):
    for of_rank in found:
        right, reason = of_rank[name_of(op, impl, number, dtype)]
        assert right, reason


@pytest.mark.parametrize("op", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_results_of_one_rank_alone_are_wrong(found, op, dtype):
    """Without a collective, and with the positions of the other split."""
    number = 1 if op == "ddp_step" else 3 if op == "ring_attention" else 0
    for of_rank in found:
        right, reason = of_rank[name_of(op, "wrong", number, dtype)]
        assert not right
        assert reason


if __name__ == "__main__":
    own, where, place = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    torch.set_num_threads(1)
    if where == "cuda":
        torch.cuda.set_device(own)
    store = dist.FileStore(str(place / "store"), RANKS)
    dist.init_process_group("nccl" if where == "cuda" else "gloo", store=store, rank=own, world_size=RANKS)
    (place / f"{own}.json").write_text(json.dumps(dict(results(own, where))))
    dist.destroy_process_group()
