"""conv2d, conv_bn_relu_pool: layouts, what they refuse, and on a GPU drawn sizes in each type."""

from __future__ import annotations

from importlib import import_module
from random import Random

import pytest
import torch

from runner.kernels.unsupported import Unsupported

IMPLS = [("conv2d", impl) for impl in ("naive", "torch", "im2col", "fft", "cuda")]
IMPLS += [("conv_bn_relu_pool", impl) for impl in ("naive", "torch", "triton")]
LAYOUTS = ["contiguous", "channels_last", "transposed", "strided", "offset"]
SIZES = {"batch": 2, "channels": 3, "height": 9, "width": 7, "filters": 5, "padding": 1}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("op", "impl"), IMPLS)
def test_every_layout_gives_the_same(make, load, device, expected_of, error, op, impl, layout):
    function = load(op, impl)
    workload, inputs = make(op, dtype="float32", device=device, layout=layout, **SIZES)
    contiguous, plain = make(op, dtype="float32", device=device, **SIZES)
    (y,) = workload.call(function, inputs).run()
    assert error(expected_of(contiguous, plain), [y]) <= 1
    if layout == "channels_last" and impl in ("torch", "cuda", "triton"):
        assert y.is_contiguous(memory_format=torch.channels_last)


def test_training_and_what_is_no_block_is_refused_in_triton(load, device):
    block = load("conv_bn_relu_pool", "triton")
    x, w, vector = (torch.randn(*shape, device=device) for shape in ((1, 3, 8, 8), (4, 3, 3, 3), (4,)))
    with pytest.raises(Unsupported, match="one kernel cannot know the mean"):
        block(x, w, vector, vector)
    with pytest.raises(ValueError, match="do not fit images"):
        block(x[:, :2], w, *[vector] * 4)
    with pytest.raises(ValueError, match="give one dtype on one device"):
        block(x, w.half(), *[vector] * 4)
    with pytest.raises(ValueError, match="3 numbers 1 apart do not fit into 2 pixels"):
        block(x[:, :, :2], w, *[vector] * 4)
    with pytest.raises(ValueError, match="4 filters have a number each"):
        block(x, w, vector[:2], *[vector] * 3)
    with pytest.raises(ValueError, match="give one dtype on one device"):
        block(x, w, vector, vector.double(), vector, vector)
    with pytest.raises(Unsupported, match="takes float32, float16 and bfloat16"):
        block(x.int(), w.int(), *[vector.int()] * 4)
    assert block(x[:0], w, *[vector] * 4).shape == (0, 4, 3, 3)


def test_nan_goes_on_and_minus_infinity_does_not_in_triton(load, device):
    block = load("conv_bn_relu_pool", "triton")
    x = torch.ones(1, 1, 2, 4, device=device)
    x[0, 0, 0, 0], x[0, 0, 1, 3] = torch.nan, -torch.inf
    one = torch.ones(1, device=device)
    y = block(x, one.view(1, 1, 1, 1), one, one * 0, one * 0, one)
    assert y[0, 0, 0, 0].isnan()
    assert float(y[0, 0, 0, 1]) == pytest.approx(1, abs=1e-4)


@pytest.mark.gpu
def test_filters_that_do_not_fit_are_refused_in_cuda(load):
    function = load("conv2d", "cuda")
    x = torch.randn(1, 2, 300, 300, device="cuda")
    with pytest.raises(Unsupported, match="bytes of shared memory of 49152; use impl=torch"):
        function(x, torch.randn(4, 2, 200, 200, device="cuda"))
    with pytest.raises(Unsupported, match="give square ones"):
        function(x, torch.randn(4, 2, 3, 5, device="cuda"))
    with pytest.raises(ValueError, match="do not fit images"):
        function(x, torch.randn(4, 3, 3, 3, device="cuda"))


def test_nan_stays_in_transforms(load, device):
    x = torch.ones(1, 1, 6, 6, device=device)
    x[0, 0, 2, 2] = torch.nan
    assert load("conv2d", "fft")(x, torch.ones(1, 1, 3, 3, device=device)).isnan().all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_columns_that_cancel_in_dx_are_added_in_float32(make, load, device, expected_of, error, dtype):
    fields = SIZES | {"batch": 2, "channels": 17, "filters": 1}
    workload, inputs = make("conv2d", dtype=dtype, device=device, pass_="fwd_bwd", **fields)
    assert error(expected_of(workload, inputs), workload.call(load("conv2d", "im2col"), inputs).run()) <= 1


def test_transforms_have_no_backward(make, load, device):
    workload, inputs = make("conv2d", dtype="float32", device=device, pass_="bwd", **SIZES)
    with pytest.raises(Unsupported, match="no backward"):
        workload.call(load("conv2d", "fft"), inputs).run()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["float32", "tf32", "bfloat16", "float16"])
@pytest.mark.parametrize(("op", "impl"), IMPLS)
def test_drawn_odd_sizes_match_float64(make, expected_of, error, monkeypatch, op, impl, kind):
    function, chance, tf32 = getattr(import_module(f"runner.kernels.{op}.{impl}"), op), Random(kind), kind == "tf32"
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", tf32)
    for _ in range(12):
        groups = chance.choice((1, 1, 2)) if op == "conv2d" else 1
        fields = {"batch": chance.randrange(1, 8), "channels": groups * chance.randrange(1, 40)}
        fields |= {"filters": groups * chance.randrange(1, 80), "kernel": chance.choice((1, 2, 3, 3, 5))}
        fields |= {"height": chance.randrange(9, 50) | 1, "width": chance.randrange(9, 70) | 1}
        fields |= {"padding": chance.randrange(3), "layout": chance.choice(LAYOUTS)}
        if op == "conv2d":
            fields |= {"groups": groups, "stride": chance.choice((1, 1, 2, 3)), "dilation": chance.choice((1, 1, 2))}
        dtype = "float32" if tf32 else kind
        workload, inputs = make(op, dtype=dtype, device="cuda", tf32=tf32, **fields)
        call = workload.call(function, inputs)
        call.run()
        assert error(expected_of(workload, inputs), call.run()) <= 1, fields  # by the plan of the first call
