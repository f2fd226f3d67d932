"""torch.compile that compiles again, or that has reached its limit and runs eagerly."""

from __future__ import annotations

import pytest
import torch

from runner import bench, implementations
from runner.records.case import Choice
from runner.subject import in_process
from runner.subject.in_process import DEFAULTS


@pytest.fixture
def graphs(monkeypatch):
    """A limit of three versions, and a backend that compiles nothing."""
    from dataclasses import replace

    monkeypatch.setattr(in_process, "DEFAULTS", replace(DEFAULTS, samples=20, max_s=0.01, warmup_s=0, paired_rounds=10))
    torch._dynamo.reset()
    config = torch._dynamo.config
    name = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    with config.patch({name: 3}):
        yield lambda f, dynamic=False: torch.compile(f, backend="eager", dynamic=dynamic)
    torch._dynamo.reset()


def half(x):
    return x / 2


def twice(x):
    return 2 * torch.relu(x)


class Twice(torch.nn.Module):
    def forward(self, x):
        return twice(x)


@pytest.mark.parametrize("kind", ["function", "module", "inside"])
def test_a_function_past_its_limit_says_so_and_the_eager_one_does_not(graphs, kind):
    compiled = graphs(Twice() if kind == "module" else twice)
    function = (lambda x: compiled(x) + 0) if kind == "inside" else compiled
    sweep = bench({"eager": twice, "compiled": function}, make=torch.ones, sizes=[2, 3, 4, 5, 6])
    rows = [each.timing for each in sweep if each.name == "compiled"]
    assert [row.columns.get("recompiles") for row in rows[:3]] == [0, 1, 1]
    assert ["recompile_limit" in row.columns for row in rows] == [False, False, False, True, True]
    assert all(row.verdict == "fallback" for row in rows[3:])
    assert "has reached the limit of 3 compiled versions; give torch.compile(dynamic=True)" in rows[4].reason
    assert not any("recompile_limit" in each.timing.columns for each in sweep if each.name == "eager")
    assert "reached the limit of 3 compiled versions" in repr(sweep)
    again = bench(function, make=torch.ones, sizes=[4, 6])  # one that is compiled, and one that is not
    assert ["recompile_limit" in each.timing.columns for each in again] == [False, True]


def test_a_compiled_case_leaves_torchs_limits_as_they_were():
    config = torch._dynamo.config
    limit = "fail_on_recompile_limit_hit"
    limit = limit if hasattr(config, limit) else "fail_on_cache_limit_hit"
    assert not getattr(config, limit)
    fields = {"of": "torch", "mode": "default", "dynamic": False, "fullgraph": False, "cold": False}
    compiled = implementations.build(Choice("compiled", fields))
    compiled.load("gelu")
    with compiled.first_calls("gelu", "cpu"):
        assert getattr(config, limit)
    assert not getattr(config, limit)


def test_recompiles_are_counted_with_torchs_own_reason(graphs):
    sweep = bench(graphs(twice), make=torch.ones, sizes=[2, 3])
    assert "torch.compile compiled it again, 1 time" in repr(sweep)
    modes = bench({name: torch.compile(half, backend=name) for name in ("eager", "aot_eager")}, torch.ones(4))
    assert [each.timing.columns["recompiles"] for each in modes] == [0, 0]  # each has compiled it once
    dynamic = bench(graphs(Twice(), dynamic=True), make=torch.ones, sizes=[4, 5, 6])
    assert not any(each.timing.columns.get("recompiles") for each in dynamic)


def test_sizes_that_depend_on_values_are_compiled_for_the_values_of_the_inputs_alone(graphs):
    def large(x):
        return x[x > 0.5].exp()

    x = torch.linspace(0, 1, 11)  # halved, none is above 0.5
    row = bench(graphs(large, dynamic=None), x, check=large)
    assert row.columns["correct"]
    assert row.columns["recompiles"] == 0


def test_a_function_that_nobody_compiles_has_no_such_columns(graphs):
    assert not [name for name in bench(twice, torch.ones(3)).columns if name.startswith("recompile")]
