"""Run a function in float64, exactly or with the errors that rounding and sums in any order may have.

``Rounding`` sees every aten operator that a function calls, so a function needs no change. Operators that compute in
one kernel, such as a normalization or a softmax, are taken apart so that errors inside them are seen too.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch._decomp import get_decompositions
from torch.nested._internal.nested_tensor import NestedTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from ..records.replaced import replaced

aten = torch.ops.aten
DTYPE = torch.Tensor.dtype.__get__  # type: ignore[attr-defined]

UNIT: dict[torch.dtype, float] = {  # unit roundoff: the largest relative error of one rounding
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
}
FLOAT8: list[torch.dtype] = [getattr(torch, name) for name in dir(torch) if name.startswith("float8_e")]
UNIT |= {dtype: torch.finfo(dtype).eps / 2 for dtype in FLOAT8}

TF32 = 2.0**-11  # unit roundoff of a float32 factor with 10 bits of fraction
OF_UNIFORM = 0.6  # standard deviation of a rounding error, in units: 1/3^(1/2)
POOL = {"cpu": 2**20}  # numbers of a pool of normals: one that fits a cache on a CPU
POOL_ELSEWHERE = 2**22
REMEMBERED = 2**25  # elements of spreads that are kept from one draw to the next; the others are computed again

# Operators that add many products, and the position of the first factor.
PRODUCTS = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "convolution": 0, "convolution_backward": 0}
PRODUCTS |= {"addmm": 1, "baddbmm": 1, "addbmm": 1, "addmv": 1, "addr": 1}
SUMS = {"sum", "nansum", "cumsum", "trace", "index_add", "scatter_add", "index_put", "embedding_dense_backward"}
MEANS = {"mean", "avg_pool1d", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"}
# Roundings that the error of an operator is as large as, where that is not one: torch's own GELU on a CPU uses an erf
# whose error reaches 8 unit roundoffs, and 1 + erf(x) cancels for negative x.
ROUNDINGS = {"erf": 3.0, "erfc": 3.0}
# Functions that are x near 0. Kernels compute them as exp(x) - 1, log(1 + x), 2 sigmoid(2 x) - 1, where 1 is rounded.
BY_ONE = {"expm1", "log1p", "tanh", "sinh", "asinh", "atanh"}
# Operators that factor matrices, or solve with factors, begin with one of these words; ENTRYWISE begin so and do not.
FACTORS = ("linalg_", "cholesky_", "triangular_solve")
ENTRYWISE = {"linalg_vector_norm", "linalg_cross"}
SCANS = {"cumsum", "cumprod", "logcumsumexp"}
SCATTERED = {"index_add", "scatter_add", "scatter_reduce", "index_put", "embedding_dense_backward"}
CASTS = {"_to_copy", "copy"}
STEP = 16  # numbers that are all multiples of 1 / STEP count something, such as positions, and are exact
TINY = torch.finfo(torch.float32).tiny
EXACT = {"add", "sub", "rsub", "mul", "sum", "cumsum", "remainder", "fmod", "floor_divide"}  # for such numbers
# Operators that return the indices of numbers by their order, in which equal numbers may be taken either way.
ORDERS = {"argmax", "argmin", "max", "min", "topk", "sort", "kthvalue", "median", "nanmedian", "cummax", "cummin"}
ORDERS |= {"max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool3d"}

# Operators whose results are numbers that they were given. One that is missing here gets noise that it does not need.
_COPIES = """
clone copy lift_fresh fill zero zeros ones full arange scalar_tensor zeros_like ones_like full_like empty_like
new_zeros new_ones new_full new_empty empty empty_strided eye max_pool1d_with_indices max_pool2d_with_indices
max_pool3d_with_indices max min amax amin aminmax fmax fmin maximum minimum relu threshold clamp clamp_min
clamp_max hardtanh neg abs sgn sign where masked_fill masked_scatter cat stack index index_select gather take
embedding constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d
replication_pad3d repeat flip roll sort topk kthvalue median nanmedian mode cummax cummin tril triu diag_embed
slice_scatter select_scatter scatter index_copy index_fill round floor ceil trunc nan_to_num pixel_shuffle
pixel_unshuffle channel_shuffle upsample_nearest1d upsample_nearest2d upsample_nearest3d im2col heaviside resize
set adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d relu6 unsafe_split complex _unsafe_view
masked_select _unique2 unique_dim unique_consecutive unique_dim_consecutive copysign diagonal_scatter
split_with_sizes_copy view_copy expand_copy permute_copy _conj_physical _unsafe_index
"""
COPIES = frozenset(_COPIES.split())

# Functions of torch whose arguments autocast casts to 16 bits.
_AUTOCAST = """
matmul __matmul__ __rmatmul__ mm bmm mv addmm baddbmm addbmm addmv linear bilinear einsum multi_dot chain_matmul
conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d scaled_dot_product_attention
multi_head_attention_forward
"""
AUTOCAST = frozenset(_AUTOCAST.split())

# Operators of one kernel, which computes in float32 inside whatever the type of its result.
_TOGETHER = """
native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit _batch_norm_with_update
cudnn_batch_norm _softmax _log_softmax logsumexp _fused_rms_norm mse_loss huber_loss smooth_l1_loss gelu silu
mish softplus hardswish elu selu celu log_sigmoid_forward logaddexp glu binary_cross_entropy
binary_cross_entropy_with_logits soft_margin_loss native_layer_norm_backward
native_group_norm_backward native_batch_norm_backward _softmax_backward_data _log_softmax_backward_data
gelu_backward silu_backward mish_backward softplus_backward hardswish_backward elu_backward mse_loss_backward
sigmoid_backward tanh_backward _fused_rms_norm_backward upsample_linear1d upsample_bilinear2d upsample_trilinear3d
upsample_bicubic2d
"""
INSIDE: dict[Any, Callable[..., Any]] = {}  # how each is taken apart
for _name in _TOGETHER.split():
    with suppress(AttributeError, RuntimeError):  # this version of torch lacks it, or does not take it apart
        INSIDE |= get_decompositions([getattr(aten, _name)])


def _by_product(x: Tensor, y: Tensor) -> Tensor:
    """Return the distances of all pairs of rows as torch does those of many: by a product, in which they cancel."""
    squares, others = (z.square().sum(-1, keepdim=True) for z in (x, y))
    return (squares + others.mT - 2 * (x @ y.mT)).clamp(min=0).sqrt()


INSIDE[aten._euclidean_dist.default] = _by_product


class Noise:
    """Normal numbers from a pool at random offsets: much cheaper than new ones, and the same for a seed."""

    def __init__(self, device: torch.device, seed: int) -> None:
        """Draw the pool on ``device``."""
        self._size = POOL.get(device.type, POOL_ELSEWHERE)
        drawn = _normals if device.type == "cpu" else _normals.__wrapped__  # no memory of a GPU is kept
        self._normals = drawn(device, seed, self._size)
        self._factors: dict[float, Tensor] = {}  # of the whole pool, for large tensors
        self._random = random.Random(seed)

    def scale(self, tensor: Tensor, std: float) -> Tensor:
        """Multiply each element of ``tensor`` by 1 + std N, in place. Infinities stay."""
        is_small = tensor.numel() < self._size // 16
        if not is_small and std not in self._factors:
            self._factors[std] = 1 + std * self._normals
        if not tensor.is_complex():
            for (part,) in _parts([tensor], self._size // 2):
                some = self._some(self._normals if is_small else self._factors[std], part)
                part.mul_(1 + std * some if is_small else some)
            return tensor
        return self.add(tensor, std * tensor.abs())

    def add(self, tensor: Tensor, std: Tensor) -> Tensor:
        """Add std N to each element of ``tensor``, in place. ``std``: of the shape of ``tensor``."""
        std = std.nan_to_num(0.0, 0.0, 0.0)
        memory = tensor
        if tensor.is_complex():
            memory, std = torch.view_as_real(tensor), torch.stack([std / math.sqrt(2)] * 2, -1)
        for part, spread in _parts([memory, std], self._size // 2):
            part.addcmul_(spread, self._some(self._normals, part))
        return tensor

    def one(self) -> float:
        """Return one normal number."""
        return self._random.gauss(0.0, 1.0)

    def _some(self, pool: Tensor, like: Tensor) -> Tensor:
        start = self._random.randrange(self._size - like.numel() + 1)
        return pool[start : start + like.numel()].view(like.shape)


@lru_cache(maxsize=1)
def _normals(device: torch.device, seed: int, count: int) -> Tensor:
    """Return normal numbers. A CPU takes 20 ms to draw those of a pool, a quarter of what a small case takes."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(count, dtype=torch.float64, device=device, generator=generator)


def _parts(tensors: Sequence[Tensor], most: int) -> Iterator[tuple[Tensor, ...]]:
    """Yield views of up to ``most`` elements of tensors of one shape, in the order of the first one's memory."""
    first = tensors[0]
    order = sorted(range(first.dim()), key=first.stride, reverse=True)
    tensors = [tensor.permute(order) for tensor in tensors]
    if all(tensor.is_contiguous() for tensor in tensors):
        yield from zip(*(tensor.view(-1).split(most) for tensor in tensors), strict=True)
    elif first.numel() <= most:
        yield tuple(tensors)
    else:
        for rows in zip(*tensors, strict=True):
            yield from _parts(rows, most)


class _Operator(NamedTuple):
    """A call of an operator of torch."""

    func: Any
    name: str  # without the namespace and the underscore of operators in place
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    out: Any


class NominalTypes(TorchFunctionMode):
    """Makes ``x.dtype`` the type that x would have outside: a function may cast to float32, and back to that of x.

    What a function of torch creates inside, such as the causal mask of attention, has the type of its arguments. Casts
    as ``torch.autocast`` does, which leaves float64 as it is.
    """

    def __init__(self, rounding: Rounding) -> None:
        super().__init__()
        self._rounding = rounding

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call ``func``."""
        args, kwargs = self._cast(func, (args, kwargs or {}))
        with self._rounding.creating_for((args, kwargs)):
            result = func(*args, **kwargs)
        return self._rounding.nominal(args[0]) if func == DTYPE and result == torch.float64 else result

    def _cast(self, func: Any, arguments: Any) -> Any:
        """Return ``arguments`` in the types that autocast, if it is on, gives them."""
        name = getattr(func, "__name__", "")
        is_loss = name.endswith("_loss") or "cross_entropy" in name
        device = next((one.device.type for one in _floats(arguments)), "") if is_loss or name in AUTOCAST else ""
        if not device or not torch.is_autocast_enabled(device):
            return arguments
        kind = torch.float32 if is_loss else torch.get_autocast_dtype(device)

        def cast(one: Tensor) -> Tensor:
            return one if not _is_float(one) or self._rounding.nominal(one) in (kind, torch.float64) else one.to(kind)

        return tree_map_only(Tensor, cast, arguments)


class Rounding(TorchDispatchMode):  # type: ignore[misc]
    """Runs everything in float64. With ``noise``, each result gets the error of its rounding and of its sums.

    A cast to float32, float16 or bfloat16 stays float64; a cast to a type narrower than ``kind`` is meant, and done.
    What is cast to float64 although ``kind`` is narrower has the errors of float32.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        kind: torch.dtype,
        noise: Noise | None = None,
        *,
        unrounded: frozenset[int] = frozenset(),
        tf32: Collection[str] = (),
        spreads: dict[Any, Tensor] | None = None,
        order: int = 0,
    ) -> None:
        """Prepare one run of a function, whose arguments are those that ``argument`` returns.

        Args:
            kind: the narrowest type that the case computes in.
            noise: None for an exact run.
            unrounded: numbers of operators that write an output, from ``writers`` of an exact run. Their last
                rounding is allowed for elsewhere; whatever else reads their result gets it rounded.
            tf32: operators whose float32 factors may be rounded to TF32, a part of ``PRODUCTS``.
            spreads: what earlier draws found of sums, which is used again.
            order: of equal numbers: 1 as in memory, other ones at random; -n is the reverse of n.

        """
        super().__init__()
        self.kind, self.noise, self.tf32 = kind, noise, tf32
        self.random = ""  # the first operator that draws random numbers
        self.communicates = False  # with other ranks
        self.elements = 0  # numbers that were computed, and for products what takes as long
        self.products: set[torch.dtype] = set()  # types of the products
        self.kinds_of: dict[int, torch.dtype] = {}  # of the results of an operator, by its number
        self._nominal: dict[int, torch.dtype] = {}  # types that tensors would have outside, by storage
        self._writers: dict[int, frozenset[int]] = {}
        self._unrounded, self._order = unrounded, order
        self._constants: set[int] = set()  # storages whose values depend on no tensor of floating point numbers
        self._counts: set[int] = set()  # storages of numbers that count something, or are computed from such alone
        self._bare: dict[int, float] = {}  # storages of outputs whose last rounding is left out, with its unit
        self._outer: dict[int, tuple[torch.Size, set[int], int]] = {}  # see _note_factors
        self._spreads = {} if spreads is None else spreads
        self._default = torch.float64 if kind == torch.float64 else torch.float32
        self._created: torch.dtype | None = None  # type of what a function of torch creates inside
        self._accumulated = UNIT[torch.float64 if kind == torch.float64 else torch.float32]
        self._count, self._sums, self._inside = 0, 0, False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: else torch imports torch._dynamo with the first operator, which takes seconds."""
        return False

    def argument(self, tensor: Tensor, *, varies: bool) -> Tensor:
        """Return a copy in float64 of a tensor that the function is given.

        With ``noise``, one that ``varies`` gets the error of a rounding, unless its numbers count something, or have so
        few bits that any implementation has them as they are.
        """
        if not _is_float(tensor):
            return tensor.clone()
        copied = self._wide(tensor.detach())
        if self.noise is not None and copied.layout is torch.strided:
            if _counts(copied):
                self._counts.add(_storage(copied))
            elif varies and UNIT[self.nominal(copied)] <= self._accumulated:
                self.noise.scale(copied, self._accumulated)
        return copied.requires_grad_(tensor.requires_grad)

    def _wide(self, tensor: Tensor) -> Tensor:
        """Return a copy in float64, or complex128, and note the type of ``tensor``."""
        wide = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64, copy=True)
        self._nominal[_storage(wide)] = torch.float32 if tensor.is_complex() else tensor.dtype
        return wide

    def creating_for(self, arguments: object) -> AbstractContextManager[None]:
        """Give float64 tensors that are created inside the type that the results for ``arguments`` would have."""
        given = _floats(arguments)
        return replaced(self, "_created", self._kind(given, (), False) if given else None)

    def writers(self, tensor: Tensor) -> frozenset[int]:
        """Return the numbers of the operators that rounded the values of ``tensor``."""
        return self._writers.get(_storage(tensor), frozenset())

    def nominal(self, tensor: Tensor) -> torch.dtype:
        """Return the type that ``tensor`` would have outside."""
        return self._nominal.get(_storage(tensor), self._default)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run ``func`` on float64. A nested tensor runs it on its values, and comes here again."""
        if any(issubclass(kind, NestedTensor) for kind in types):
            return NotImplemented
        with torch._C.DisableTorchFunction():
            return self._dispatch(func, args, kwargs)

    def _dispatch(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
        kwargs = dict(kwargs or {})
        if func.namespace == "c10d":
            return self._communicate(func, args, kwargs)
        if func.namespace == "higher_order":  # such as flex_attention: by the operators that it is made of
            with self:
                return func.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd](*args, **kwargs)
        name = func._schema.name.partition("::")[2].rstrip("_")
        mutable = func._schema.is_mutable
        if name == "view" and func._overloadname == "dtype":
            raise TypeError("view(dtype) reads the bits of a number, and float64 has others")
        if not self.random and _draws(func, args, kwargs):
            self.random = name
        with self:
            if (result := func.decompose(*args, **kwargs)) is not NotImplemented:
                return result
        written = [
            argument.alias_info is not None and argument.alias_info.is_write for argument in func._schema.arguments
        ]
        args = [arg if write else self._widened(arg) for arg, write in zip(args, written, strict=False)]
        kwargs = {key: value if mutable else self._widened(value) for key, value in kwargs.items()}
        requested = kwargs.get("dtype")
        requested = requested if requested is not None and requested.is_floating_point else None
        if requested:
            kwargs["dtype"] = torch.float64
            if requested == torch.float64:  # a reference asks for it to be exact; an implementation need not
                requested = self._default if _floats(args) else self._created or self._default
        elif kwargs.get("dtype") == torch.complex64:
            kwargs["dtype"] = torch.complex128
        given = _floats((args, kwargs))
        kind = requested or self._kind(given, args, mutable)
        if name in PRODUCTS and torch._C._current_graph_task_id() >= 0:  # in a backward: autograd would cast there
            kind = min(map(self.nominal, given), key=lambda one: (one.itemsize, -UNIT[one]))
        rounds = self._rounds(func, name, kind, args)
        if self.noise is not None and not self._inside:
            args = self._noisy_arguments(name, kind, args, written) if rounds else args
        out = self._call(func, args, kwargs)
        if name in ORDERS and self.noise is not None and not mutable:
            out = self._reordered(func, args, kwargs, out)
        if requested and name in CASTS and requested.itemsize < self.kind.itemsize:
            out, rounds = out.to(requested).to(out.dtype), False
        self._finish(_Operator(func, name, args, kwargs, out), given, kind, rounds)
        return out

    def _communicate(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an operator of ``torch.distributed``, a collective to its end.

        Its schema does not say what it writes. Each term of a sum over ranks gets an error, as partial sums have, and
        so does the sum; what only moves keeps its bits.
        """
        self.communicates = True
        sums, given = "reduce" in func._schema.name, _floats((args, kwargs))
        for tensor in given:
            self._writers.pop(_storage(tensor), None)  # so that rounding counts as an error of what was sent
            unit = self._bare.pop(_storage(tensor), 0.0) + (UNIT[self.nominal(tensor)] if sums else 0.0)
            if unit and self.noise is not None:
                self.noise.scale(tensor, unit)
        out = func(*args, **kwargs)
        # Tensors and the work of a collective; for the work of a send the caller waits. NCCL has no work for a call
        # that waits, and to wait for none ends the process.
        if isinstance(out, tuple) and (work := dist.Work.unbox(out[-1])) is not None:
            work.wait()
        if sums and self.noise is not None:
            for tensor in _floats(out):
                self.noise.scale(tensor, UNIT[self.nominal(tensor)])
        return out

    def _call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if self.noise is None or func not in INSIDE:
            return func(*args, **kwargs)
        with replaced(self, "_inside", True), self:
            out = INSIDE[func](*args, **kwargs)
        if func == aten._softmax_backward_data.default and self._is_wide(args[1]):
            dy, y, dim = args[:3]  # flash attention has the sum of dy * y from the output of attention, which is stored
            std = OF_UNIFORM * UNIT[self.kind] * (dy * y).square().sum(dim, keepdim=True).sqrt()
            out = out - y * self.noise.add(torch.zeros_like(std), std)
        return out

    def _is_wide(self, tensor: Tensor, kind: torch.dtype | None = None) -> bool:
        """Return whether a case, or a product, of 16 bits computes ``tensor`` in float32."""
        is_narrow = (kind or self.kind).itemsize == 2
        return is_narrow and self.nominal(tensor) == torch.float32 and bool(self.writers(tensor))

    def _reordered(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Any:
        """Return ``out`` with the indices of a call in which numbers that round to the same have another order."""
        first = args[0]
        if not _is_float(first) or _storage(first) in self._constants or all(map(_is_float, tree_leaves(out))):
            return out
        kind, device, count = self.nominal(first), first.device, first.numel()
        drawn = torch.Generator(device).manual_seed(abs(self._order))
        usual = abs(self._order) == 1
        places = torch.arange(count, device=device) if usual else torch.randperm(count, generator=drawn, device=device)
        shift = places.double().view(first.shape) * (math.copysign(UNIT[kind] / 8, self._order) / max(1, count))
        rounded = first.to(kind).double()
        numbers = rounded + (rounded.abs() + TINY) * shift
        other = func(numbers, *args[1:], **kwargs)
        return tree_map(lambda was, now: was if _is_float(was) else now, out, other)

    def _widened(self, value: Any) -> Any:
        """Return an argument in float64: a function may use tensors that are not its arguments."""

        def wide(tensor: Tensor) -> Tensor:
            if not _is_float(tensor) or tensor.dtype in (torch.float64, torch.complex128):
                return tensor
            widened = self._wide(tensor)
            self._constants.discard(_storage(widened))
            self._counts.discard(_storage(widened))
            return widened

        return tree_map_only(Tensor, wide, value)

    def _kind(self, given: Sequence[Tensor], args: Sequence[Any], mutable: bool) -> torch.dtype:
        """Return the type of the result outside: by torch's promotion of types, or the type of what is changed."""
        if mutable and args and isinstance(args[0], Tensor):
            return self.nominal(args[0])
        kinds = {self.nominal(tensor) for tensor in given if tensor.dim()} or {self.nominal(t) for t in given}
        if {torch.float16, torch.bfloat16} <= kinds:
            kinds.add(torch.float32)
        return max(kinds, key=lambda kind: (kind.itemsize, -UNIT[kind]), default=self._default)

    def _rounds(self, func: Any, name: str, kind: torch.dtype, args: Sequence[Any]) -> bool:
        if name in CASTS:
            source = next((arg for arg in reversed(args[:2]) if isinstance(arg, Tensor)), None)
            return source is not None and _is_float(source) and UNIT[kind] > UNIT[self.nominal(source)]
        views = [returned.alias_info for returned in func._schema.returns]
        return name not in COPIES and not any(info is not None and not info.is_write for info in views)

    def _noisy_arguments(
        self, name: str, kind: torch.dtype, args: Sequence[Any], written: Sequence[bool]
    ) -> Sequence[Any]:
        """Return ``args`` with the roundings of outputs that are read again, and of factors of TF32."""
        noise = self.noise
        assert noise is not None
        if self._bare:
            for arg in (arg for arg, write in zip(args, written, strict=False) if write and isinstance(arg, Tensor)):
                if unit := self._bare.pop(_storage(arg), None):
                    noise.scale(arg, unit)
            args = tree_map_only(Tensor, self._rounded, list(args))
        if name in PRODUCTS:
            first, truncates = PRODUCTS[name], name in self.tf32 and kind == torch.float32
            truncated = 1 + TF32 * noise.one() if truncates else None  # hardware may cut bits off, with one sign
            factors = list(args[first:])
            args = [*args[:first], *tree_map_only(Tensor, lambda one: self._of_product(one, truncated, kind), factors)]
        if name == "sum" and (known := self._outer.get(_storage(args[0]))):
            shape, repeated, wide = known
            dims = args[1] if len(args) > 1 and args[1] else range(len(shape))
            if args[0].shape == shape and repeated.isdisjoint(dim % len(shape) for dim in dims):
                unit = OF_UNIFORM * UNIT[self.kind] * math.sqrt(wide)
                args = [_of_memory(args[0], lambda memory: noise.scale(memory.clone(), unit)), *args[1:]]
        if name.removeprefix("_").startswith(FACTORS) and name not in ENTRYWISE:
            args = [self._shaken(arg) if isinstance(arg, Tensor) and arg.dim() > 1 else arg for arg in args]
        return args

    def _of_product(self, factor: Tensor, truncated: float | None, kind: torch.dtype) -> Tensor:
        """Return a factor of a product as tensor cores take it: in TF32 if that scales it by ``truncated``.

        In a case or a product (``kind``) of 16 bits, they take factors of 16 bits. So what the function computes in
        float32 may be rounded, as the weights of flash attention are, but no argument in float32.
        """
        if (noise := self.noise) is None or not _is_float(factor):
            return factor
        if truncated:
            return _of_memory(factor, lambda memory: noise.scale(memory * truncated, OF_UNIFORM * TF32))
        kind = min(kind, self.kind, key=lambda one: one.itemsize)
        if not self._is_wide(factor, kind):
            return factor
        unit = OF_UNIFORM * UNIT[kind]

        def rounded(memory: Tensor) -> Tensor:
            return memory.where(memory == memory.to(kind), noise.scale(memory.clone(), unit))

        return _of_memory(factor, rounded)

    def _note_factors(self, op: _Operator, out: Tensor) -> None:
        """Note the dimensions along which factors of a new ``a * b`` repeat, and how many factors are wide.

        A sum of it over other dimensions is a product of matrices too: ``(w[:, None] * x).sum(0)`` is ``w @ x``.
        """
        self._outer.pop(_storage(out), None)
        factors = [one for one in op.args[:2] if isinstance(one, Tensor)]
        if op.name == "mul" and not self._inside and (wide := sum(map(self._is_wide, factors))):
            strides = [one.expand(out.shape).stride() for one in factors]
            repeated = {dim for dim, size in enumerate(out.shape) if size > 1 and not all(s[dim] for s in strides)}
            if repeated:
                self._outer[_storage(out)] = (out.shape, repeated, wide)

    def _shaken(self, matrix: Tensor) -> Tensor:
        """Return matrices with the backward error of a factorization, as large as rows and columns, not elements."""
        if (noise := self.noise) is None or not _is_float(matrix):
            return matrix
        rows, columns = matrix.shape[-2:]
        row, column, whole = (matrix.abs().square().mean(dims, keepdim=True).sqrt() for dims in (-1, -2, (-2, -1)))
        std = (row * column / whole).nan_to_num(0.0) * (self._accumulated * (rows * columns) ** 0.25)
        return _of_memory(matrix, lambda memory: noise.add(memory.clone(), std))

    def _rounded(self, tensor: Tensor) -> Tensor:
        unit = self._bare.get(_storage(tensor)) if _is_float(tensor) else None
        if unit is None or (noise := self.noise) is None:
            return tensor
        return _of_memory(tensor, lambda memory: noise.scale(memory.clone(), unit))

    def _finish(self, op: _Operator, given: Sequence[Tensor], kind: torch.dtype, rounds: bool) -> None:
        """Note what wrote the new tensors that ``op`` returns, and add noise to them."""
        name, mutable = op.name, op.func._schema.is_mutable
        old = set() if mutable else {_storage(tensor) for tensor in given}
        fresh = [x for x in _floats(op.out) if _has_memory(x) and _storage(x) not in old]
        self._count += not self._inside
        unit = self._accumulated if self._inside else max(self._accumulated, UNIT[kind])
        last = self._count in self._unrounded and not self._inside
        is_constant = all(_storage(one) in self._constants for one in given)
        keeps = not rounds or name in EXACT or _is_scaled(name, op.args, op.kwargs)
        is_exact = all(_storage(one) in (self._counts if keeps else self._constants) for one in given)
        for tensor in fresh:
            where = _storage(tensor)
            self._note_factors(op, tensor)
            self._nominal[where] = kind
            (self._constants.add if is_constant else self._constants.discard)(where)
            (self._counts.add if is_exact else self._counts.discard)(where)
            self.elements += tensor.numel() * (4 if op.func in INSIDE else 1)
            if not self._inside:
                known = [self.writers(one) for one in given] if not rounds and given else [frozenset([self._count])]
                self._writers[where] = frozenset().union(*known, self.writers(tensor) if mutable else ())
                self.kinds_of[self._count] = kind
                units = [] if rounds else [bare for one in given if (bare := self._bare.get(_storage(one)))]
                if units:
                    self._bare[where] = max(units)
                elif not mutable:
                    self._bare.pop(where, None)
            if rounds and name in PRODUCTS:
                self.products.add(kind)
                self.elements += tensor.numel() * _terms(name, op.args, tensor) // 64
            if rounds and self.noise is not None:
                exact = tensor.clone() if is_exact and not tensor.is_complex() else None
                self._sum(op, tensor, unit)
                if last:
                    self._bare[where] = unit
                else:
                    self.noise.scale(tensor, unit * ROUNDINGS.get(name, 1.0))
                if exact is not None:  # positions and their multiples, such as arange(n) / 2, need no rounding
                    fits = exact == exact.to(kind)
                    tensor.copy_(exact.where(fits, tensor))
                    if fits.all():
                        self._bare.pop(where, None)

    def _sum(self, op: _Operator, tensor: Tensor, unit: float) -> None:
        """Add to ``tensor`` the error of a sum of many terms in any order, and of partial sums that are rounded."""
        assert self.noise is not None
        if op.name.startswith("_fft"):
            self.noise.add(tensor, _of_transform(op.args, tensor) * unit)
            return
        if op.name in BY_ONE:
            self.noise.add(tensor, tensor.abs().clamp(max=self._accumulated))
        terms = _terms(op.name, op.args, tensor)
        if terms <= 1:
            return
        self._sums += 1
        key = (self._sums, tuple(tensor.shape))
        spread = self._spreads.get(key)
        if spread is None:
            spread = self._spread(op, tensor, terms, unit)
            if spread.numel() + sum(known.numel() for known in self._spreads.values()) <= REMEMBERED:
                self._spreads[key] = spread
        self.noise.add(tensor, spread)

    def _spread(self, op: _Operator, tensor: Tensor, terms: int, unit: float) -> Tensor:
        """Return the standard deviation of the error of a sum: a random walk, whatever the signs of its terms."""
        name, variance = op.name, (tensor.abs() / 3) ** 2  # terms of one sign; below: of random signs
        partial: float | Tensor = 0.0
        if name in PRODUCTS or name in SUMS or name in MEANS:
            pure = getattr(aten, name) if op.func._schema.is_mutable else op.func
            place = next((i for i, one in enumerate(tree_leaves(op.out)) if one is tensor), 0)

            def of(change: Callable[[Tensor], Tensor]) -> Tensor:  # the same sum, of changed terms
                args, kwargs = tree_map_only(Tensor, change, (list(op.args), op.kwargs))
                return tree_leaves(pure(*args, **kwargs))[place].abs()  # type: ignore[no-any-return]

            squares = of(_square) / (terms if name in MEANS else 1)
            if name in SCATTERED and unit > self._accumulated:  # torch adds one after the other in the narrow type
                rounded = (of(lambda term: torch.ones_like(term) if _is_float(term) else term) - 2).clamp(min=0)
                partial = OF_UNIFORM * unit * (rounded * (squares / 2 + 3 * variance)).sqrt()
            variance += squares / 6
            if name in PRODUCTS and unit > self._accumulated:  # torch lets cuBLAS round partial sums
                partial = OF_UNIFORM * unit * math.sqrt(max(1, _taps(name, op.args, place) / 2)) * squares.sqrt()
        return self._accumulated * math.sqrt(terms) * variance.sqrt() + partial


def _counts(tensor: Tensor) -> bool:
    """Return whether all numbers of a tensor are real multiples of 1 / STEP. The first few rule most tensors out."""
    parts = (tensor.reshape(-1)[:STEP], tensor)
    return tensor.is_floating_point() and all(bool((part * STEP % 1 == 0).all()) for part in parts)


def _is_scaled(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether an operator divides by a power of two, or returns whole quotients."""
    by = args[1] if name == "div" else None
    return bool(kwargs.get("rounding_mode")) or (isinstance(by, int | float) and math.frexp(abs(by))[0] == 0.5)


def _of_memory(tensor: Tensor, copied: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a copy of ``tensor``. Operators that a mode calls do not see that it is a lazy conjugate or negative."""
    if tensor.is_conj():
        return _of_memory(tensor.conj(), copied).conj()
    return torch._neg_view(_of_memory(torch._neg_view(tensor), copied)) if tensor.is_neg() else copied(tensor)


def _square(tensor: Tensor) -> Tensor:
    return tensor.abs().square() if _is_float(tensor) else tensor


def _of_transform(args: Sequence[Any], tensor: Tensor) -> Tensor:
    """Return the size of an error of one unit in a Fourier transform: of all its results, not of each."""
    axes = [axis for axis in args[1] if -tensor.dim() <= axis < tensor.dim()] or [-1]
    length = math.prod(tensor.shape[axis] for axis in axes)
    rms = tensor.abs().square().mean(axes, keepdim=True).sqrt()
    return (rms * math.sqrt(math.log2(max(2, length)))).expand(tensor.shape)


def _terms(name: str, args: Sequence[Any], out: Tensor) -> int:
    """Return how many numbers an operator adds for one of its results; 1 if that is unknown."""
    first = args[PRODUCTS.get(name, 0)] if args else None
    if not isinstance(first, Tensor) or not _is_float(first) or not out.numel():
        return 1
    if name == "convolution":
        return int(args[1].numel() // args[1].shape[1 if args[6] else 0])
    if name == "convolution_backward":
        channels = args[2].shape[1 if args[7] else 0]
        return max(1, int(args[0].numel() * args[2].numel() // (channels * out.numel())))
    if name == "addr":
        return 2
    if name in PRODUCTS:
        return int(first.shape[-1]) if name != "addbmm" else int(first.shape[0] * first.shape[-1])
    if name in SCANS:
        return int(first.shape[args[1]]) if first.dim() else 1
    if name.startswith("nll_loss") and isinstance(args[1], Tensor):
        return max(1, args[1].numel() // out.numel())
    if name.startswith(("_cdist", "_pdist")):
        return int(first.shape[-1])
    if name in SCATTERED:
        source = max((arg.numel() for arg in args[1:] if isinstance(arg, Tensor)), default=1)
        return max(2, source // out.numel())
    return max(1, first.numel() // out.numel())


def _taps(name: str, args: Sequence[Any], place: int) -> int:
    """Return how many taps a transposed convolution adds to one result in its own type, as torch does on a CPU."""
    if name == "convolution" and args[6]:
        weight, stride = args[1], args[3]
    elif name == "convolution_backward" and place == 0 and not args[7]:
        weight, stride = args[2], args[4]
    else:
        return 1
    return int(math.prod(weight.shape[2:]) // math.prod(stride))


def _draws(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether an operator draws random numbers that reach its result."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    names = [argument.name for argument in func._schema.arguments]
    values = {
        argument.name: argument.default_value for argument in func._schema.arguments if argument.has_default_value()
    }
    values |= dict(zip(names, args, strict=False)) | dict(kwargs)
    off = [values.get(name) is False for name in ("train", "training")]
    return not (any(off) or values.get("dropout_p") == 0 or ("dropout" in func._schema.name and values.get("p") == 0))


def _floats(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor) and _is_float(leaf)]


def _is_float(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _storage(tensor: Tensor) -> int:
    while is_functorch_wrapped_tensor(tensor):  # inside torch.func.grad, vmap and jvp
        tensor = get_unwrapped(tensor)
    return int(tensor.untyped_storage().data_ptr()) if _has_memory(tensor) else id(tensor)


def _has_memory(tensor: Tensor) -> bool:
    """Return whether ``tensor`` is one array; a sparse one and the zeros of forward-mode differentiation are not."""
    return tensor.layout is torch.strided and not tensor._is_zerotensor()
