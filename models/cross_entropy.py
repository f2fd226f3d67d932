"""Cross entropy of each row of logits with a class: loss = log sum_k exp(x_k) - x_target.

Backward: dx_j = (y_j - [j is the target]) dloss, with y the softmax of the row.

The tolerance is derived, since the automatic one would hold about ten float64 tensors of the size of the logits, 43 GB
for 4096 x 128256, and would run a gradient over them five times. This one is computed for a few rows at a time, and
keeps only what it returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt
from typing import TYPE_CHECKING, Literal

from .layout import WithLayout
from .passes import WithPasses
from .rounding import COMMON, FLOOR
from .workload import ARITHMETIC, ITEMSIZE, UNIT, Draw, Expected, Size

if TYPE_CHECKING:
    from torch import Tensor

LOWEST_EXPONENT = -746.0  # below it, exp is 0 even in float64
TOGETHER = 2**24  # logits whose reference is computed at once: 128 MiB for each temporary
TARGET_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class CrossEntropy(WithPasses, WithLayout):
    """loss [rows] of logits x [rows, vocab] and targets [rows], the gradient dx of x, or both."""

    rows: Size  # tokens
    vocab: Size  # classes
    pass_: Literal["fwd", "bwd", "fwd_bwd"]  # fwd: loss; bwd: dx from dloss, without the forward; fwd_bwd: both

    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """Return x [rows, vocab] and target [rows], int64; for bwd and fwd_bwd also dloss [rows].

        The classes are drawn evenly, but the first row has the last class, and the last row the first class.
        """
        import torch

        x, order = draw(self.rows, self.vocab), draw(self.rows)
        target = (torch.special.ndtr(order.double()) * self.vocab).long().clamp_(0, self.vocab - 1)
        target[0], target[-1] = self.vocab - 1, 0
        return (x, target) if self.pass_ == "fwd" else (x, target, draw(self.rows))

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Return loss [rows] for fwd, dx [rows, vocab] for bwd, both for fwd_bwd.

        With m the largest x of a row and s = sum exp(x - m): the sum has the error that the workload softmax derives,
        cols^(1/2) units in the worst order and those of exp, and its logarithm has it as an absolute error. The
        exponents x - m, converted to powers of two, add two units of their mean size under y. m, log s and their sum
        are rounded too: large logits have a large error. PyTorch rounds s and log s to ``dtype`` on a CPU; the first is
        an absolute error of log s, which exceeds the second where log s is below 1, as with two classes.

        y has the relative error of the sum, and 2 units of x - m. PyTorch computes y from log y, which it has stored in
        ``dtype``, and on a CPU rounds y and its product with dloss to it. Others compute y from log sum exp, stored in
        the arithmetic type, or store y - 1 at the target and y elsewhere in ``dtype`` in the forward, as Liger does,
        and multiply that by dloss. At the target, y - 1 cancels. In 16 bits that is much, |log y| + |log s| units: from
        about 1000 classes on, PyTorch's own y may be 5 % too large in one element in bfloat16. So the factor that all y
        have in common is judged as well: an eighth of their bounds, which log y as a multiple of few numbers may have,
        and what is left of errors of whole rows.
        """
        import torch

        x, target, *upstream = inputs
        exact = torch.empty(2, self.rows, dtype=torch.float64, device=x.device)  # loss, and its error
        gradient = torch.empty(2, *x.shape, dtype=torch.float64, device=x.device) if upstream else None
        along = torch.empty_like(x) if upstream else None  # y dloss: dx beside the targets
        sums = torch.empty(2, self.rows, dtype=torch.float64, device=x.device)  # of along^2, and with its bound
        step = max(1, TOGETHER // self.vocab)
        for start in range(0, self.rows, step):
            rows = slice(start, start + step)
            dloss = upstream[0][rows].double()[:, None] if upstream else None
            exact[:, rows], *of_gradient = self._of_rows(x[rows].double(), target[rows, None], dloss)
            if gradient is not None and along is not None:
                gradient[:, rows], along[rows], sums[:, rows] = of_gradient
        unit, rtol = ARITHMETIC[self.dtype], UNIT[self.dtype] + 4 * ARITHMETIC[self.dtype]
        summed, stored = f"{self._summed():.1e} + {2 * unit:.1e}", f"{UNIT[self.dtype]:.1e}"
        of_loss = f"{summed} (sum y |x - m| + |m| + |log s| + |x_target - m|) + {stored} max(|log s|, 1)"
        found = [Expected("loss", exact[0], exact[1], rtol, f"{rtol:.1e} |r| + {of_loss}")]
        if gradient is None:
            return tuple(found)
        of_dx = f"{summed} (|x - m| + |m| + |log s|) + {stored} (2 + |log y| + max(|log s|, 1))"
        squares, bounds = sums[0].sum(), sums[1]
        of_rows = sqrt(3) * bounds.square().sum().sqrt()  # 3 deviations of even errors
        common = float((bounds.sum() / 8 + of_rows) / squares) + COMMON[self.dtype] * UNIT[self.dtype]
        common = common if squares else inf
        of_dx = f"{rtol:.1e} |r| + y |dloss| ({of_dx}); {common:.1e} in common"
        found += [Expected("dx", gradient[0], gradient[1], rtol, of_dx, common=common, along=along)]
        return tuple(found[self.pass_ == "bwd" :])

    def _summed(self) -> float:
        """Return the relative error of the sum."""
        return (4 + sqrt(self.vocab)) * ARITHMETIC[self.dtype]

    def _of_rows(self, x: Tensor, target: Tensor, dloss: Tensor | None) -> tuple[Tensor, ...]:
        """Return loss and its absolute error for some rows in float64.

        With ``dloss`` also dx and its error, y dloss without the targets, and for each row the sum of the squares of
        that, plain and times the relative error.
        """
        import torch

        unit, stored, floor = ARITHMETIC[self.dtype], UNIT[self.dtype], FLOOR[self.dtype]
        largest = x.amax(-1, keepdim=True)
        exponent = (x - largest).clamp_(min=LOWEST_EXPONENT)
        y = exponent.exp()
        total = y.sum(-1, keepdim=True)
        y /= total
        aside = 1 - y.gather(-1, target)
        log, own = total.log(), x.gather(-1, target) - largest
        of_log, common = stored * log.abs().clamp(min=1), self._summed() + 2 * unit * (largest.abs() + log.abs())
        of_exponents = (y * exponent.abs()).sum(-1, keepdim=True) + own.abs()
        loss = torch.stack([log - own, common + 2 * unit * of_exponents + of_log + floor])[..., 0]
        if dloss is None:
            return (loss,)
        of_y = common + of_log + 2 * unit * exponent.abs() + stored * (2 + (exponent - log).abs())
        along = y.mul(dloss).scatter_(-1, target, 0)
        square = along.square()
        sums = torch.stack([square.sum(-1), square.mul_(of_y).sum(-1)])
        of_dx = of_y.mul_(y).mul_(dloss.abs()).add_(floor)
        of_dx.scatter_add_(-1, target, (2 * unit + stored * aside) * dloss.abs())
        return loss, torch.stack([y.mul_(dloss).scatter_add_(-1, target, -dloss), of_dx]), along, sums

    def flops(self) -> int:
        """4 per logit (max, subtract, exp, sum), or for bwd (subtract, exp, divide, multiply); fwd_bwd has both."""
        return (8 if self.pass_ == "fwd_bwd" else 4) * self.rows * self.vocab

    def bytes_min(self) -> int:
        """The logits, read once, and the losses; for bwd and fwd_bwd dx, written once, and dloss. Targets throughout.

        A backward that computes y again reads the logits a second time, which is 3/2 of this for fwd_bwd.
        """
        matrices = 1 if self.pass_ == "fwd" else 2
        vectors = 2 if self.pass_ == "fwd_bwd" else 1
        return self.rows * ((matrices * self.vocab + vectors) * ITEMSIZE[self.dtype] + TARGET_BYTES)
