"""impl=cudagraph: what is captured when, by a stand-in for CUDA's graphs on a CPU, and the real ones on a GPU."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from runner import implementations
from runner.implementations.compiled import Compiled
from runner.implementations.file import File
from runner.kernels.unsupported import Unsupported
from runner.records.bad_input import BadInput
from runner.records.case import Choice
from runner.timing import capture
from runner.timing.call import Call

MLP = {"dim": 16, "layers": 3, "batch": 8, "steps": 3, "activation": "gelu", "lr": 0.1}


class Graph(TorchDispatchMode):
    """A CUDA graph on a CPU: what is done while it is captured is undone at its end, and done again by ``replay``."""

    def __init__(self):
        super().__init__()
        self.nodes, self.undo, self.replays = [], [], 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        written = [
            tensor
            for index, (parameter, value) in enumerate(zip(function._schema.arguments, args, strict=False))
            if parameter.alias_info is not None and parameter.alias_info.is_write
            for tensor in (value if isinstance(value, list | tuple) else [value])
        ]
        with torch.utils._python_dispatch._disable_current_modes():
            self.undo += [(tensor, tensor.clone()) for tensor in written]
            result = function(*args, **kwargs)
        self.nodes.append((function, args, kwargs, result))
        return result

    def roll_back(self):
        for tensor, was in reversed(self.undo):
            tensor.copy_(was)

    def replay(self):
        self.replays += 1
        with torch.no_grad():
            for function, args, kwargs, result in self.nodes:
                again = function(*args, **kwargs)
                for old, new in zip(tensors(result), tensors(again), strict=True):
                    if old.data_ptr() != new.data_ptr():
                        old.detach().copy_(new)


def tensors(result):
    items = result if isinstance(result, list | tuple) else [result]
    return [item for item in items if isinstance(item, torch.Tensor)]


@pytest.fixture
def cuda(monkeypatch):
    """The parts of torch.cuda that a capture takes; ``graphs`` has what was captured."""
    state = SimpleNamespace(graphs=[], refuses="", elsewhere=False)

    def graph():
        state.graphs.append(Graph())
        return state.graphs[-1]

    @contextlib.contextmanager
    def capturing(graph, *, pool=None):
        if state.refuses:
            raise capture.CaptureError(state.refuses)
        with graph, torch.autograd.set_multithreading_enabled(False):
            yield
        with torch.no_grad():
            graph.roll_back()

    stream = SimpleNamespace(wait_stream=lambda other: None)
    fakes = {
        "CUDAGraph": graph,
        "current_stream": lambda device=None: stream,
        "stream": lambda stream: contextlib.nullcontext(),
        "synchronize": lambda: None,
        "is_current_stream_capturing": lambda: state.elsewhere,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(capture, "capturing", capturing)
    monkeypatch.setattr(capture, "capture_stream", lambda: stream)
    return state


def cudagraph(of="torch"):
    return implementations.build(Choice("cudagraph", {"of": of}))


@pytest.mark.parametrize("zero_grad", ["every_step", "accumulate"])
@pytest.mark.parametrize("pass_", ["fwd", "fwd_bwd", "train_step"])
def test_a_graph_holds_the_whole_call_and_repeats_it(cuda, make, error, pass_, zero_grad):
    workload, inputs = make("mlp", dtype="float32", pass_=pass_, zero_grad=zero_grad, **MLP)
    expected = workload.reference(*inputs)
    call = cudagraph().wrap_call(workload.call(cudagraph().load("mlp"), inputs), "cuda")
    for _ in range(3):
        outputs = call.run()
        assert error(expected, outputs) < 1
        call.restore()
    (graph,) = cuda.graphs
    assert graph.replays == 3
    assert sum("addmm" in str(function) for function, *_ in graph.nodes) >= 9  # three layers, three steps


def test_the_first_call_leaves_parameters_as_one_call_does(cuda, make):
    workload, inputs = make("mlp", dtype="float32", pass_="train_step", zero_grad="every_step", **MLP)
    function = cudagraph().load("mlp")
    eager, graphed = workload.call(function, inputs), cudagraph().wrap_call(workload.call(function, inputs), "cuda")
    for _ in range(2):
        for one, other in zip(eager.run(), graphed.run(), strict=True):
            assert torch.equal(one, other)


def test_outputs_are_the_same_tensors_each_time(cuda):
    x = torch.randn(5)
    call = cudagraph().wrap_call(Call(lambda: (x * 2,)), "cuda")
    (first,) = call.run()
    x += 1
    (second,) = call.run()
    assert first is second
    assert torch.equal(second, x * 2)


def test_within_another_capture_the_call_itself_is_made(cuda):
    """Neither torch nor CUDA lets a graph be launched into a stream that is being captured."""
    called = []
    call = cudagraph().wrap_call(Call(lambda: (called.append(1), torch.ones(1))[1:]), "cuda")
    call.run()
    count, replays = len(called), cuda.graphs[0].replays
    cuda.elsewhere = True
    call.run()
    assert len(called) == count + 1
    assert cuda.graphs[0].replays == replays


def test_what_no_graph_can_hold_is_unsupported_and_says_why(cuda):
    cuda.refuses = "operation not permitted when stream is capturing"
    call = cudagraph().wrap_call(Call(lambda: (torch.ones(1),)), "cuda")
    with pytest.raises(Unsupported, match="no CUDA graph can hold this call: operation not permitted when stream"):
        call.run()


def test_an_error_of_the_call_itself_is_its_own(cuda):
    def fails():
        raise ValueError("of the call's own")

    with pytest.raises(ValueError, match="of the call's own"):
        cudagraph().wrap_call(Call(fails), "cuda").run()


def test_on_a_cpu_it_says_what_would_help():
    with pytest.raises(Unsupported, match="a CUDA graph needs an NVIDIA GPU; run with device=cuda"):
        cudagraph().wrap_call(Call(lambda: ()), "cpu")


def test_it_wraps_every_other_implementation(tmp_path):
    user = tmp_path / "user.py"
    user.write_text("def gelu(x): return x")
    compiled, file = cudagraph("compiled"), cudagraph(f"{user}:gelu")
    assert isinstance(compiled.inner, Compiled)
    assert compiled.kept_on_disk("gelu")
    assert isinstance(file.inner, File)
    assert user in file.sources("gelu")
    assert [path.name for path in cudagraph("triton").sources("softmax")] == ["cudagraph.py", "triton.py"]
    assert not cudagraph("naive").missing("gelu")
    assert cudagraph("naive").load("gelu").__module__ == "kernel_runner.kernels.gelu.naive"


@pytest.mark.parametrize(
    ("of", "why"),
    [
        ("triten", r"impl\.of: no implementation 'triten' to wrap; did you mean triton\?"),
        ("cudagraph", r"impl\.of: no implementation 'cudagraph' to wrap"),
        ("nowhere.py:f", r"impl\.of: there is no file nowhere\.py"),
    ],
)
def test_what_it_cannot_wrap_is_said_before_anything_runs(of, why):
    with pytest.raises(BadInput, match=why):
        cudagraph(of)


@pytest.mark.gpu
@pytest.mark.parametrize("of", ["torch", "triton", "compiled"])
@pytest.mark.parametrize("pass_", ["fwd", "fwd_bwd", "train_step"])
def test_on_a_gpu_the_whole_mlp_is_right_and_repeats(make, error, of, pass_):
    fields = MLP | {"pass_": pass_, "zero_grad": "every_step"}
    workload, inputs = make("mlp", dtype="float32", device="cuda", **fields)
    implementation = cudagraph(of)
    call = implementation.wrap_call(workload.call(implementation.load("mlp"), inputs), "cuda")
    expected = workload.reference(*inputs)
    for _ in range(3):
        assert error(expected, call.run()) < 1
        call.restore()


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["gelu", "softmax"])
def test_on_a_gpu_a_backward_alone_is_captured_on_the_streams_of_its_own_forward(make, error, op):
    workload, inputs = make(op, dtype="float32", device="cuda", rows=64, cols=100, pass_="bwd")
    call = cudagraph().wrap_call(workload.call(cudagraph().load(op), inputs), "cuda")
    expected = workload.reference(*inputs)
    assert error(expected, call.run()) < 1
    with torch.cuda.stream(torch.cuda.Stream()):
        assert error(expected, call.run()) < 1


@pytest.mark.gpu
def test_on_a_gpu_a_call_that_synchronises_is_unsupported_and_harms_nobody_after_it():
    x = torch.randn(100, device="cuda")
    with pytest.raises(Unsupported, match="no CUDA graph can hold this call"):
        cudagraph().wrap_call(Call(lambda: (x * float(x.sum()),)), "cuda").run()
    (y,) = cudagraph().wrap_call(Call(lambda: (x * 2 + torch.rand_like(x) * 0,)), "cuda").run()
    assert torch.equal(y, x * 2)


@pytest.mark.gpu
def test_on_a_gpu_it_is_timed_in_a_graph_like_any_other_and_its_caller_waits_less(make):
    from runner.timing.latency import latency_columns
    from runner.timing.preparation import preparation
    from runner.timing.timestamps import GraphTimestamps

    workload, inputs = make("mlp", dtype="float32", device="cuda", pass_="fwd_bwd", zero_grad="every_step", **MLP)
    eager = workload.call(cudagraph().load("mlp"), inputs)
    graphed = cudagraph().wrap_call(workload.call(cudagraph().load("mlp"), inputs), "cuda")
    graphed.run()
    before = preparation(None, cold_l2=True)
    held = [GraphTimestamps(call.run, before, captures=2, constant_us=0.0).contents for call in (eager, graphed)]
    assert held[0] is None or held[0].kinds == held[1].kinds
    waits = [latency_columns(call, 0.6)["latency_us"] for call in (eager, graphed)]
    assert waits[1] < waits[0] / 2
