"""strided_copy beyond what its workload draws."""

from __future__ import annotations

import pytest
import torch

from runner.kernels.unsupported import Unsupported


@pytest.mark.parametrize("impl", ["triton"])
def test_what_is_no_vector_of_real_numbers_or_has_no_stride_is_refused(load, device, impl):
    function = load("strided_copy", impl)
    x = torch.arange(9.0, device=device)
    assert torch.equal(function(x[::2], stride=2), x[::4])
    assert torch.equal(function(x[1:], stride=3), x[1::3])
    with pytest.raises(ValueError, match="x has 2 dimensions and the stride is 2"):
        function(x.view(3, 3), stride=2)
    with pytest.raises(ValueError, match="the stride is 0: give a vector, and a stride of at least 1"):
        function(x, stride=0)
    with pytest.raises(Unsupported, match="view_as_real"):
        function(x.to(torch.complex64), stride=2)
