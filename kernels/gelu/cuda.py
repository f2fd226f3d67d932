"""GELU in CUDA C++: ``gelu.cu`` as it should be, ``gelu_lecture.cu`` as it is first written."""

from __future__ import annotations

import torch
from torch import Tensor

from ..cuda_build import TYPES, kernel, require_type, source
from ..unsupported import Unsupported
from ._form import is_tanh

THREADS = 256  # a block, as in gelu.cu
ACCESS = 16  # bytes a thread reads at once
LECTURE_THREADS = 1024


def gelu(x: Tensor, *, form: str, variant: str = "default", build: str = "nvrtc") -> Tensor:
    """GELU of ``x``, as in ``kernels.gelu``. ``y`` is contiguous; an ``x`` that is not is copied first.

    ``variant``: "default" or "lecture". ``build``: "nvrtc" or "extension", as in ``kernels.cuda_build``.

    Raises:
        Unsupported: ``x`` is not on an NVIDIA GPU or not of a type above, what ``build`` needs is missing, or the
            variant is not for ``x``.
        BuildFailed: the compiler refused.
        ValueError: there is no such ``form``.

    """
    tanh = is_tanh(form)
    require_type("gelu", x, "convert x from")
    code = source(__file__, variant)
    x = x.contiguous()
    y = torch.empty_like(x)
    if variant == "lecture":
        if x.dtype != torch.float32 or not tanh:
            raise Unsupported("variant=lecture is of float32 and the tanh form only; the default variant has all")
        name, threads, elements = "gelu_kernel", LECTURE_THREADS, LECTURE_THREADS
    else:
        aligned = "true" if x.data_ptr() % ACCESS == 0 else "false"
        name = f"gelu_kernel<{TYPES[x.dtype]}, {'true' if tanh else 'false'}, {aligned}>"
        threads, elements = THREADS, THREADS * ACCESS // x.element_size()
    launch = kernel(code, name, build, x.device)
    if x.numel():
        launch(-(-x.numel() // elements), threads, x.data_ptr(), y.data_ptr(), x.numel())
    return y
