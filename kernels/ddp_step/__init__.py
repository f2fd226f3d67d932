"""Gradients of a data-parallel training step of an MLP: each rank has its own rows x, all have the same parameters.

ddp_step(x, w1, b1, ..., wL, bL, *, activation) -> gradients

    x            [batch, dim]  float16 | bfloat16 | float32 | float64; other numbers on each rank
    w1, ..., bL  as in ``kernels.mlp``, with requires_grad, equal on all ranks
    gradients    of w1, b1, ..., wL, bL: of the mean of ``mlp(x, *params)`` over the rows of all ranks, the same on each
    activation   "gelu", exact (erf), or "relu"

Ranks are those of the default process group of torch.distributed.
"""
