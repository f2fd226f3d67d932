"""Implementations of other libraries: what each says where it is not installed, or where there is no GPU."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import pytest
import torch

from runner import implementations
from runner.kernels.unsupported import Unsupported
from runner.records.case import Choice

X = torch.ones(8, 8)
LIBRARIES = [  # implementation, package, operation, inputs, options
    ("liger", "liger-kernel", "softmax", (X,), {}),
    ("quack", "quack-kernels", "softmax", (X,), {}),
    ("quack", "quack-kernels", "matmul", (X, X), {}),
    ("cudnn", "nvidia-cudnn-frontend", "matmul", (X, X), {}),
    ("fa4", "flash-attn-4", "attention", (X, X, X), {}),
    ("torchao", "torchao", "linear_int8", (X, X.char(), X[:, :1]), {"group": 0}),
    ("numba", "numba-cuda", "add", (X, X), {}),
    ("numba", "numba-cuda", "square", (X,), {}),
    ("numba", "numba-cuda", "gelu", (X,), {"form": "erf"}),
]


@pytest.mark.parametrize(("impl", "package", "op", "inputs", "options"), LIBRARIES)
def test_it_says_what_to_install_or_that_it_needs_a_gpu(impl, package, op, inputs, options):
    implementation = implementations.build(Choice(impl, {"rev": None}))
    try:
        version(package)
    except PackageNotFoundError:
        with pytest.raises(Unsupported, match=rf"needs the package {package}: pip install -e '\.\[{impl}\]' in the"):
            implementation.load(op)
    else:
        if impl == "torchao":
            pytest.skip("torchao runs on a CPU too")
        with pytest.raises(Unsupported, match=r"need an NVIDIA GPU; .*device=c"):
            implementation.load(op)(*inputs, **options)
