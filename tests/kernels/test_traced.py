"""torch.compile traces what is differentiable in Triton in one piece, forward and backward."""

from __future__ import annotations

import os
import sys
from importlib import import_module

import pytest
import torch

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("interpreted kernels are Python", allow_module_level=True)

OPTIONS = {"gelu": {"form": "erf"}, "softmax": {}, "square": {}, "norm": {"dim": "all"}, "mlp": {"activation": "gelu"}}


class Traced(Exception):
    """Enough: here is no GPU to compile for."""


@pytest.fixture
def on_a_gpu(monkeypatch):
    """As far as tracing can tell."""
    import_module("torch._dynamo.exc")  # 2 s, which a process that only collects this file need not spend
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("torch.") and "has_triton" in vars(module):
            monkeypatch.setattr(module, "has_triton", lambda *_: True)
    for op in OPTIONS:
        import_module(f"runner.kernels.{op}.triton")  # decorated before the variable is set: compiled, not interpreted
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # tensors of a CPU are accepted


@pytest.mark.parametrize("op", OPTIONS)
@pytest.mark.parametrize("cols", [128, 4096])
def test_a_kernel_and_its_backward_are_one_graph(op, cols, on_a_gpu):
    graphs = []

    def stop(graph, _):
        graphs.append("".join(part.code for part in graph.modules() if isinstance(part, torch.fx.GraphModule)))
        raise Traced

    inputs = [torch.empty(4, cols, dtype=torch.float16)]
    if op == "mlp":
        inputs = [torch.empty(4, cols), torch.empty(cols, cols), torch.empty(cols)]
    for tensor in inputs:
        tensor.requires_grad_()
    torch._dynamo.reset()
    function = getattr(import_module(f"runner.kernels.{op}.triton"), op)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="Traced"):
        torch.compile(function, fullgraph=True, backend=stop)(*inputs, **OPTIONS[op])
    assert graphs[0].count("triton_kernel_wrapper_mutation(") >= 2


@pytest.mark.gpu
@pytest.mark.parametrize("op", OPTIONS)
def test_compiled_it_gives_what_it_gives_alone(op):
    inputs = [torch.randn(512, 1024, device="cuda")]
    if op == "mlp":
        inputs += [torch.randn(1024, 1024, device="cuda") / 32, torch.randn(1024, device="cuda")]
    for tensor in inputs:
        tensor.requires_grad_()
    function = getattr(import_module(f"runner.kernels.{op}.triton"), op)

    def gradients(forward):
        return torch.autograd.grad(forward(*inputs, **OPTIONS[op]).square().sum(), inputs)

    torch._dynamo.reset()
    alone, compiled = gradients(function), gradients(torch.compile(function, fullgraph=True))
    for one, two in zip(alone, compiled, strict=True):
        assert (one - two).abs().max() <= 1e-5 * two.abs().max()
