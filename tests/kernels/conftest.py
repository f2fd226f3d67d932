"""Kernels on every device they run on."""

from __future__ import annotations

import os
from importlib import import_module

import pytest


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return request.param


@pytest.fixture
def load(device):
    """``load("gelu", "triton")``: the function, or a skip where ``device`` is not for it."""

    def find(op, impl):
        if impl == "triton" and device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
            pytest.skip("test_under_the_interpreter.py runs this one")
        if impl == "triton":
            pytest.importorskip("triton")
        if impl not in ("naive", "torch", "triton") and device == "cpu":
            pytest.skip("a GPU kernel")
        return getattr(import_module(f"kernels.{op}.{impl}"), op)

    return find
