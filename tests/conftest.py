"""Tests marked ``gpu`` run where torch sees a GPU. Shared: workloads with inputs, and the verdict of a tolerance.

What tests draw from torch is drawn from one seed, so that they pass everywhere or nowhere; ``SEED=7`` draws another.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor

from models.draw import draw_on
from models.workload import Expected, Workload
from runner import options, schema

Make = Callable[..., tuple[Workload, tuple[Tensor, ...]]]
Judge = Callable[[Sequence[Expected], Sequence[Tensor]], float]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(int(os.environ.get("SEED", "0")))


@pytest.fixture
def make() -> Make:
    """``make("gelu", dtype="float32", rows=3, ...)``: the workload, and its inputs drawn from seed 0.

    Fields that are not given are as its YAML has them.
    """

    def build(
        name: str, *, dtype: str, device: str = "cpu", data: str = "normal", tf32: bool = False, **fields: object
    ) -> tuple[Workload, tuple[Tensor, ...]]:
        kind = options.find("models", name)
        values = yaml.safe_load((options.CONF / "workload" / f"{name}.yaml").read_text())
        defaults = {attribute: values[field] for field, (attribute, _) in schema.rules_of(kind).items()}
        workload = kind(**(defaults | {"dtype": dtype, "data": data, "tf32": tf32} | fields))
        return workload, workload.inputs(draw_on(device, workload.dtype, workload.data, seed=0))

    return build


@pytest.fixture
def error() -> Judge:
    """The largest error of any element of any output, as a multiple of what is allowed there. NaN counts as inf."""

    def judge(expected: Sequence[Expected], outputs: Sequence[Tensor]) -> float:
        ratios = []
        for want, got in zip(expected, outputs, strict=True):
            assert got.shape == want.value.shape, want.name
            ratio = (got.double() - want.value).abs() / (want.atol + want.rtol * want.value.abs())
            ratios.append(ratio.nan_to_num(nan=torch.inf).max())
        return float(torch.stack(ratios).max())

    return judge


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="torch sees no NVIDIA GPU here"))


@pytest.fixture
def marked():
    """``marked("NAME=value")``: processes that have this in their environment, and so what they were started from."""

    def find(mark: str) -> list[str]:
        found = []
        for proc in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has just ended, or is another user's
                if mark.encode() in (proc / "environ").read_bytes().split(b"\0"):
                    found.append((proc / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200])
        return found

    return find
