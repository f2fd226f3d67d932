"""transpose: what any view gives, and that the result is a copy."""

from __future__ import annotations

import pytest
import torch

VIEWS = {
    "transposed": lambda x: x.t(),
    "every other": lambda x: x[:, ::2],
    "sliced": lambda x: x[1:, 3:],
    "one row": lambda x: x[:1],
    "empty": lambda x: x[:0],
    "several bands": lambda x: x[:1].expand(2200, -1),
}


@pytest.mark.parametrize("impl", ["naive", "torch", "triton"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.int64])
def test_any_view_gives_a_contiguous_copy(load, device, impl, dtype):
    transpose = load("transpose", impl)
    for view in VIEWS.values():
        x = view((torch.randn(70, 33, device=device) * 9).to(dtype))
        y = transpose(x)
        assert torch.equal(y, x.t())
        assert y.is_contiguous()
        assert not y.numel() or y.data_ptr() != x.data_ptr()
