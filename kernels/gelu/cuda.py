"""GELU in CUDA C++: ``gelu.cu`` is the fast version, ``gelu_lecture.cu`` the version that one writes first."""

from __future__ import annotations

import torch
from torch import Tensor

from ..cuda_build import TYPES, kernel, require_type, source
from ..launch import each_time, planned
from ..unsupported import Unsupported
from ._form import is_tanh

THREADS = 256  # threads of a block, as in gelu.cu
ACCESS = 16  # bytes that a thread reads at once
LECTURE_THREADS = 1024


@planned
def gelu(x: Tensor, *, form: str, variant: str = "default", build: str = "nvrtc") -> Tensor:
    """Compute GELU of each element of ``x``; shapes and dtypes as in ``kernels.gelu``. ``y`` is contiguous.

    Args:
        x: a tensor; it is copied first if it is not contiguous.
        form: "erf" or "tanh".
        variant: "default", or "lecture" for float32 and the tanh form only.
        build: "nvrtc" or "extension", as in ``kernels.cuda_build``.

    Raises:
        Unsupported: ``x`` is not on an NVIDIA GPU, or of another dtype, or the builder lacks something.
        BuildFailed: the source does not compile.
        ValueError: ``form`` is neither "erf" nor "tanh".

    """
    tanh = is_tanh(form)
    require_type("gelu", x, "convert x from")
    code = source(__file__, variant)
    x = x.contiguous()
    y = each_time(torch.empty_like, x)
    if variant == "lecture":
        if x.dtype != torch.float32 or not tanh:
            raise Unsupported("variant=lecture computes float32 and form=tanh only; use the default variant")
        name, threads, elements = "gelu_kernel", LECTURE_THREADS, LECTURE_THREADS
    else:
        aligned = "true" if x.data_ptr() % ACCESS == 0 else "false"
        name = f"gelu_kernel<{TYPES[x.dtype]}, {'true' if tanh else 'false'}, {aligned}>"
        threads, elements = THREADS, THREADS * ACCESS // x.element_size()
    launch = kernel(code, name, build, x.device)
    if x.numel():
        launch(-(-x.numel() // elements), threads, x, y, x.numel())
    return y
