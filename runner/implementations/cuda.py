"""CUDA C++: ``kernels/<op>/cuda.py`` and the ``.cu`` files beside it, by either builder, in any variant."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from runner.experiment.schema import choices
from runner.implementations import KERNELS, Implementation, Watch, kernel
from runner.kernels.cuda_sources import DEFAULT, variants

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Cuda(Implementation):
    """``build`` and ``variant`` are keyword arguments of the function in ``kernels/<op>/cuda.py``."""

    build: Literal["nvrtc", "extension"]
    variant: str

    def __post_init__(self) -> None:
        every = dict.fromkeys([DEFAULT, *(name for folder in sorted(KERNELS.glob("*/")) for name in variants(folder))])
        if self.variant not in every:
            raise ValueError(f"variant: no such variant {self.variant!r}; {choices(self.variant, every)}")

    def missing(self, op: str) -> str:
        """Empty if there is a ``kernels/<op>/cuda.py``, and this variant of it."""
        if why := kernel("cuda")().missing(op):
            return why
        have = variants(KERNELS / op)
        return "" if self.variant in have else f"kernels/{op} has no variant {self.variant}; it has {', '.join(have)}"

    def sources(self, op: str) -> list[Path]:
        """Source files of this wrapper, of the function, which imports the builders, and of the variant."""
        own = variants(KERNELS / op).get(self.variant)
        return [*super().sources(op), *kernel("cuda")().sources(op), *([own] if own else [])]

    def kept_on_disk(self, op: str) -> bool:
        """What either builder makes."""
        return not self.missing(op)

    def load(self, op: str) -> Callable[..., Tensor]:
        """The function, which builds its kernel when it is first called."""
        return functools.partial(kernel("cuda")().load(op), build=self.build, variant=self.variant)

    @contextmanager
    def watching(self, op: str, device: str) -> Iterator[Watch]:
        """Adds up what was built, or loaded from the disk."""
        from runner.kernels.cuda_build import builds

        watch, before = Watch(), len(builds)
        yield watch
        mine = builds[before:]
        watch.metrics.update(
            compile_s=sum(build.seconds for build in mine), compile_cached=all(build.cached for build in mine)
        )
