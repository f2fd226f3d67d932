"""A step of AdamW on lists of tensors that no workload makes: odd sizes, alignments, layouts, types and lengths."""

from __future__ import annotations

import random

import pytest
import torch

from runner.kernels.unsupported import Unsupported

TINY = {"layers": 1, "dim": 1, "kv": 1, "hidden": 1, "vocab": 1}
IMPLS = ["naive", "torch", "fused", "triton"]
STEP = {"step": 3, "lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1}
TYPES = ["float32", "float16", "bfloat16", "float64"]


def drawn(shapes, device, dtype="float32", moments="same", view=lambda x: x, seed=0):
    """Return the tensors of a step, each of them a ``view``."""
    generator = torch.Generator(device).manual_seed(seed)
    tensors = [torch.randn(shape, device=device, generator=generator) for _ in range(4) for shape in shapes]
    count, stored = len(shapes), getattr(torch, dtype if moments == "same" else moments)
    state = [x.to(stored) for x in (*tensors[2 * count : 3 * count], *(x.square() for x in tensors[3 * count :]))]
    return [view(x) for x in (*(x.to(getattr(torch, dtype)) for x in tensors[: 2 * count]), *state)]


@pytest.fixture
def load(load):
    """Like ``load`` of other kernels, but what it returns runs once, since a step changes its arguments."""
    return lambda op, impl: getattr(function := load(op, impl), "__wrapped__", function)


@pytest.fixture
def check(make, error):
    """``check(function, tensors)``: assert that a step is right, and does not change gradients."""

    def run(function, tensors, dtype="float32", moments="same", **changed):
        options, count = STEP | changed, len(tensors) // 4
        workload, _ = make("adamw", **TINY, dtype=dtype, moments=moments, **options)
        expected, grads = workload.reference(*tensors), [g.clone() for g in tensors[count : 2 * count]]
        function(*tensors, **options)
        assert error(expected, [*tensors[:count], *tensors[2 * count :]]) <= 1
        assert all(map(torch.equal, tensors[count : 2 * count], grads))

    return run


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"step": 1},
        {"step": 10**6},
        {"weight_decay": 0.0},
        {"beta1": 0.0},
        {"beta2": 0.0},
        {"eps": 0.5},
        {"lr": 3.0},
    ],
    ids=str,
)
def test_any_step_and_hyperparameters(load, check, device, impl, changed):
    check(load("adamw", impl), drawn([(3, 5), (1025,), ()], device), **changed)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("moments", ["same", "float32"])
@pytest.mark.parametrize("dtype", TYPES)
def test_each_type_of_parameters_and_moments(load, check, device, impl, dtype, moments):
    if impl == "triton" and device == "cpu" and dtype == "bfloat16":
        pytest.skip("the interpreter rounds it otherwise")
    function, tensors = load("adamw", impl), drawn([(7,), (33, 3)], device, dtype, moments)
    if impl == "fused" and tensors[0].dtype != tensors[-1].dtype:
        with pytest.raises(Unsupported, match="moments=same"):
            function(*tensors, **STEP)
    else:
        check(function, tensors, dtype, moments)


VIEWS = {
    "offset": lambda x: torch.cat([x.flatten(), x.flatten()[:1]])[1:].view(x.shape),
    "transposed": lambda x: x.t().contiguous().t(),
    "strided": lambda x: x.repeat_interleave(2, -1)[:, ::2],
}


@pytest.mark.parametrize("impl", ["naive", "triton"])
@pytest.mark.parametrize("view", VIEWS)
def test_tensors_that_lie_in_memory_in_any_way(load, check, device, impl, view):
    check(load("adamw", impl), drawn([(40, 30), (3, 700)], device, view=VIEWS[view]))
    mixed = drawn([(40, 30)], device)
    mixed[1] = VIEWS["transposed"](mixed[1])
    check(load("adamw", impl), mixed)
    mixed[1] = torch.ones((), device=device).expand(40, 30)
    check(load("adamw", impl), mixed)


@pytest.mark.parametrize("impl", IMPLS)
def test_a_parameter_without_numbers_is_left_alone(load, device, impl):
    function, alone = load("adamw", impl), drawn([(5,)], device)
    tensors = [x for one in alone for x in (one.new_empty(0, 3), one.clone())]
    function(*alone, **STEP)
    function(*tensors, **STEP)
    assert all(map(torch.equal, tensors[1::2], alone))


@pytest.mark.parametrize("impl", ["triton"])
def test_a_list_of_several_types_and_the_same_list_at_other_addresses(load, check, device, impl):
    function = load("adamw", impl)
    tensors = drawn([(5,), (2000,), (3, 3)], device)
    for place in range(1, 12, 3):
        tensors[place] = tensors[place].half()
    for again in (tensors, [x.clone() for x in tensors], tensors):
        check(function, again, "float16", "float16")


@pytest.mark.parametrize("impl", ["triton"])
def test_tensors_that_do_not_belong_together_are_refused(load, device, impl):
    function = load("adamw", impl)
    tensors = drawn([(4, 4)], device)
    with pytest.raises(ValueError, match="give parameters, gradients, first and second moments"):
        function(*tensors[:3], **STEP)
    with pytest.raises(ValueError, match=r"a parameter \[4, 4\] float32"):
        function(tensors[0], tensors[1].flatten(), *tensors[2:], **STEP)
    function(*tensors, **STEP)
    with pytest.raises(ValueError, match=r"a parameter \[4, 4\] float32"):  # at addresses that are known
        function(tensors[0], tensors[1].flatten(), *tensors[2:], **STEP)
    before = tensors[0].clone()
    with pytest.raises(ValueError, match="it cannot change in place"):
        function(*tensors[:3], tensors[3][:1].expand(4, 4), **STEP)
    assert torch.equal(tensors[0], before)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES)
def test_twelve_drawn_lists_of_odd_sizes(check, dtype):
    chance = random.Random(f"adamw {dtype}")
    for seed in range(12):
        count = chance.choice((1, 2, 31, 300, 1100))
        most = 200_000 if count < 300 else 700
        shapes = [(chance.randrange(1, 5), chance.randrange(1, most)) for _ in range(count)]
        moments, view = chance.choice(("same", "float32")), chance.choice(("offset", "transposed", "strided"))
        tensors = drawn(shapes, "cuda", dtype, moments, VIEWS[view], seed)
        check(adamw_in_triton(), tensors, dtype, moments, step=chance.randrange(1, 10_000))


@pytest.mark.gpu
def test_a_graph_of_a_list_that_was_not_seen_before_is_right_and_outlives_other_lists(make, error):
    function, graph = adamw_in_triton(), torch.cuda.CUDAGraph()
    function(*drawn([(3000,), (7,)], "cuda"), **STEP)  # compiled
    tensors = drawn([(3000,), (7,)], "cuda", seed=1)
    workload, _ = make("adamw", dtype="float32", **TINY, **STEP)
    expected = workload.reference(*tensors)
    with torch.cuda.graph(graph):
        function(*tensors, **STEP)
    others = [drawn([(50,)] * 3, "cuda", seed=seed) for seed in range(70)]  # more than are kept
    for other in others:
        function(*other, **STEP)
    graph.replay()
    assert error(expected, [*tensors[:2], *tensors[4:]]) <= 1
    kept = torch.cuda.memory_allocated()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        function(*tensors, **STEP)
    assert torch.cuda.memory_allocated() == kept  # the table is there already


def adamw_in_triton():
    """Return the kernel, where tests run that need a GPU."""
    from runner.kernels.adamw.triton import adamw

    return adamw
