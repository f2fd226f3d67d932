"""cnn_step: it trains as torch's modules and optimizer do, and each way to load gives the same."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch
from torch import nn

from runner.kernels.unsupported import Unsupported
from runner.models import stepwise
from runner.models.loading import Loader

SIZES = {"batch": 4, "channels": 2, "size": 10, "filters": 3, "hidden": 7, "classes": 5, "steps": 3, "batches": 2}


def trained(workload, inputs):
    return [*workload.call(workload.formula, inputs).run()]


def test_it_trains_as_modules_do(make):
    workload, inputs = make("cnn_step", dtype="float32", lr=0.1, **SIZES)
    images, targets, *params = (tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs)
    block = [nn.BatchNorm2d, nn.ReLU, nn.MaxPool2d]
    layers = [nn.Conv2d(2, 3, 3, padding=1, bias=False), block[0](3), block[1](), block[2](2)]
    layers += [nn.Conv2d(3, 6, 3, padding=1, bias=False), block[0](6), block[1](), block[2](2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(24, 7), nn.ReLU(), nn.Linear(7, 5)).double()
    with torch.no_grad():
        for own, drawn in zip(model.parameters(), params, strict=True):
            own.copy_(drawn)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for index in range(3):
        nn.functional.cross_entropy(model(images[index % 2]), targets[index % 2]).backward()
        optimizer.step()
        optimizer.zero_grad()
    outputs = trained(workload, inputs)
    assert len(outputs) == 3 * len(params)  # the last, and those before the second and the third step
    for own, y in zip(model.parameters(), outputs[: len(params)], strict=True):
        assert torch.allclose(own.detach(), y.double(), atol=1e-5)
    moved = workload.call(workload.formula, inputs)
    first = [y.clone() for y in moved.run()]
    moved.restore()
    assert all(map(torch.equal, first, moved.run()))


@pytest.mark.parametrize(("dtype", "steps"), [("float32", 5), ("float16", 1), ("bfloat16", 2)])
def test_a_step_with_another_batch_or_rate_or_without_a_part_of_the_update_is_wrong(
    make, expected_of, error, dtype, steps
):
    fields = SIZES | {"steps": steps, "lr": 0.1}
    workload, inputs = make("cnn_step", dtype=dtype, **fields)
    faster, _ = make("cnn_step", dtype=dtype, **fields | {"lr": 0.11})
    expected, (images, targets, *params) = expected_of(workload, inputs), inputs
    outputs = trained(workload, inputs)
    assert error(expected, outputs) <= 1
    assert error(expected, trained(faster, inputs)) > 1
    assert error(expected, trained(workload, (images.flip(0), targets, *params))) > 1
    still = [output if place != 4 else params[4].float() for place, output in enumerate(outputs)]
    assert error(expected, still) > 1  # gamma of the second block
    assert error(expected, [param * 1.05 for param in outputs]) > 1
    assert not expected.check_tensors(outputs[1:]).compared


def test_a_relu_that_tips_may_move_one_filter_by_more_than_the_runs_have_shown(make, expected_of):
    workload, inputs = make("cnn_step", dtype="float32", **SIZES | {"filters": 8, "steps": 1, "lr": 0.1})
    expected, outputs = expected_of(workload, inputs), trained(workload, inputs)
    w2, before = 3, inputs[2 + 3]
    largest = float((outputs[w2] - before).abs().max())

    def moved(filters, by):
        w = outputs[w2].clone()
        w[:filters] += by * largest
        return expected.check([*outputs[:w2], w, *outputs[w2 + 1 :]])

    assert moved(1, 0.08).correct
    assert not moved(2, 0.08).correct  # of 16
    assert moved(1, 0.12).reason.startswith("change of w2 in step 1: the largest error is")


@pytest.mark.parametrize(("steps", "quick", "seen"), [(5, False, {0, 2, 4}), (5, True, {0, 4}), (1, True, {0})])
def test_quick_leaves_out_the_step_in_the_middle(make, monkeypatch, steps, quick, seen):
    workload, inputs = make("cnn_step", dtype="float32", **SIZES | {"steps": steps, "lr": 0.1})
    faster, _ = make("cnn_step", dtype="float32", **SIZES | {"steps": steps, "lr": 0.11})
    judged, of_step = [], stepwise.Stepwise._expected
    monkeypatch.setattr(stepwise.Stepwise, "_expected", lambda *args: judged.append(args[1]) or of_step(*args))
    expected = workload.expected_outputs(inputs, quick=quick)
    assert expected.check(trained(workload, inputs)).correct
    assert set(judged) == seen
    assert not expected.check(trained(faster, inputs)).correct


def test_the_first_step_one_in_the_middle_and_the_last_are_judged():
    assert [stepwise.judged(steps) for steps in (1, 2, 3, 100)] == [[0], [0, 1], [0, 1, 2], [0, 50, 99]]
    assert [stepwise.kept(steps) for steps in (1, 2, 3, 100)] == [[], [1], [1, 2], [1, 50, 51, 99]]


def test_flops_and_features(make):
    workload, inputs = make("cnn_step", dtype="float32", **SIZES)
    assert workload.features == 24
    first, rest = 100 * 2 * 3 * 9, 25 * 18 * 9 + 7 * (24 + 5)
    assert workload.flops() == 2 * 3 * 4 * (2 * first + 3 * rest)
    numbers = sum(param.numel() for param in inputs[2:])
    assert workload.bytes_min() == 4 * (2 * 3 * 4 * 2 * 100 + 2 * numbers) + 2 * 3 * 4 * 8
    with pytest.raises(ValueError, match="size of at least 4"):
        make("cnn_step", dtype="float32", **SIZES | {"size": 3})


@pytest.mark.parametrize("loading", ["pinned", "overlapped"])
def test_what_needs_a_gpu_says_so(make, loading):
    workload, inputs = make("cnn_step", dtype="float32", loading=loading, **SIZES)
    with pytest.raises(Unsupported, match=f"loading={loading} needs an NVIDIA GPU; use loading=pageable"):
        workload.call(workload.formula, inputs)


@pytest.mark.parametrize(
    ("device", "loading"),
    [
        ("cpu", "pageable"),
        *(pytest.param("cuda", one, marks=pytest.mark.gpu) for one in ("pageable", "pinned", "overlapped")),
    ],
)
def test_each_step_finds_its_batch(device, loading):
    batches = [(torch.full((2, 3, 4, 4), float(n), device=device), torch.tensor([n], device=device)) for n in range(3)]
    batches = [(x.contiguous(memory_format=torch.channels_last), target) for x, target in batches]
    loader, seen = Loader(batches, 5, loading), []
    for index in range(5):
        loader.load(index)
        x, target = loader.batch
        assert x.stride() == batches[0][0].stride()
        seen.append((x.sum() / x.numel(), target.sum()))
    assert [(float(x), int(target)) for x, target in seen] == [(n % 3, n % 3) for n in range(5)]


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("loading", ["pageable", "pinned", "overlapped"])
def test_every_way_to_load_trains_the_same(make, expected_of, error, loading, layout):
    function = import_module("runner.kernels.cnn_step.torch").cnn_step
    workload, inputs = make("cnn_step", dtype="float32", device="cuda", loading=loading, layout=layout, **SIZES)
    assert error(expected_of(workload, inputs), workload.call(function, inputs).run()) <= 1
