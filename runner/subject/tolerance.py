"""Judge outputs of an operation against its reference, with limits that follow from the reference itself.

The reference runs in float64, in its own types, and several times in float64 with the errors that rounding may have.
``limits`` has the rule; ``benchmarks/subject/tolerance.py`` tries it on operations that it was not made with.
"""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import inf
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..records.figures import listed
from ..records.replaced import replaced, setting
from ..timing import nested, ranks
from ..timing.arguments import is_watched
from ..timing.call import Expected, Outputs
from ..timing.correctness import CHUNK, CheckResult, deviation, misfit, part, real_parts, same_bits
from ..timing.nested import Path, is_array, leaves, mapped, named_tensors, plain_leaves, reconnect, returned, tensors
from .gradients import WithGradients, wanted
from .limits import Floats, Integers
from .recompiles import eagerly
from .rounding import PRODUCTS, UNIT, Noise, NominalTypes, Rounding

SEED = 1
DRAWS = (10, 5)  # of a judge, and of a quick one
LEAST = 3  # draws, however large the case
PROBES = {3: 1, 4: 1, 5: 1}  # by the number of draws: those that only probe the limits of the others; 2 of more than 5
NAMED = 4  # arguments that a message names
COUNTER = ".num_batches_tracked"  # of BatchNorm, which counts in Python; an implementation's kernel does not
AFFORDED = {"cpu": 3e8}  # numbers that all draws together may compute: some seconds
AFFORDED_ELSEWHERE = 1.5e10
HAVE_TF32 = {"cuda"}
LOWER = {  # the next narrower type
    torch.float64: torch.float32,
    torch.float32: torch.bfloat16,
    torch.bfloat16: torch.float8_e4m3fn,
    torch.float16: torch.float8_e4m3fn,
}
Leaves = dict[Path, object]  # what a call returns, and by names such as ``cache.k`` the arguments that it changes


@dataclass(frozen=True)
class Given:
    """The limits of an output whose tolerance the caller gives."""

    expected: Expected

    def judge(self, output: Tensor, factor: float = 1.0, *, quick: bool = False) -> CheckResult:
        """Return how ``output``, of the shape of the reference, differs."""
        return deviation(output, self.expected)


@dataclass(frozen=True)
class _Output:
    """One output that is compared."""

    own: Tensor  # ``real_parts`` of the reference's in its own types
    is_number: bool  # of Python
    limit: Floats | Integers | Given
    is_exact: bool = False  # the reference returns float64 for narrower inputs: any floating type is right


class Judge(Outputs):
    """Judges outputs of an operation against its reference, with limits that follow from the reference itself."""

    refused: str  # why no output can be judged, and what to do; "" if outputs can
    unproven: str  # why outputs within the limits may be wrong all the same, and what to do; "" if they are right
    note: str  # wrong answers that would pass although the case can tell others; "" if there are none

    def __init__(
        self,
        reference: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
        *,
        tf32: bool | None = False,
        factor: float = 1.0,
        atol: float | None = None,
        rtol: float | None = None,
        either: bool = False,
        share: float = 1.0,
        cap: float | None = None,
        quick: bool = False,
        computed: str | None = None,
        how: str = "",
        state: bool = True,
        names: Sequence[str] = (),
    ) -> None:
        """Run the reference, always on copies of its arguments.

        Args:
            reference: a function or a module. It may change its arguments, and then need not return anything.
            args: its arguments, any nesting; modules among them are copied too. They must hold the same values as long
                as the judge is used.
            kwargs: the same by name.
            tf32: may float32 factors of products be rounded to TF32? None: as torch's switches are set, which allow it
                in convolutions by default.
            factor: widens all limits.
            atol: with ``rtol`` replaces the limits: |y - r| <= atol + rtol |r|.
            rtol: see ``atol``.
            either: with ``atol`` and ``rtol``: |y - r| <= max(atol, rtol |r|).
            share: with them, of the elements that must be right; others must be finite.
            cap: with them, of |y - r| at every element.
            quick: with half of the draws.
            computed: name of the narrowest type that the case computes in; None: that of its arguments.
            how: what the tolerance says of the reference.
            state: compare arguments that the reference changes, also if it returns something.
            names: of the members of the tuple that the reference returns; none: reasons tell their places.

        Raises:
            Exception: what the reference raises in its own types, if it does not run in float64 either.

        """
        self.refused = self.unproven = self.note = ""
        self._run, module = _callable(reference)
        self._values = (module, tuple(args), dict(kwargs or {}))
        self._tf32, self._factor, self._quick, self._how, self._state = tf32, factor, quick, how, state
        self._reference, self._names = reference, {f"[{place}]": name for place, name in enumerate(names)}
        self._given = (atol or 0.0, rtol or 0.0) if atol is not None or rtol is not None else None
        self._either, self._outliers = either, (share, inf if cap is None else cap)
        self._relaxed: dict[Path, _Output] | None = None  # with TF32 allowed, if that was asked
        self._inputs_vary = True  # by a rounding, from draw to draw
        inputs = tensors(self._values)
        self._kind = getattr(torch, computed) if computed else _kind(inputs)
        self._device = next((tensor.device for tensor in inputs if tensor.device.type != "cpu"), torch.device("cpu"))
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            self._start()
            self.refused = ranks.current.first(self.refused)
            if not self.refused:
                self._outputs = self._limits(_products_of(tf32, self._device))
            if not self.refused:
                self._names |= self._names_of_gradients()
                self._try_wrong_answers()

    @property
    def output_bytes(self) -> int:
        """Return the size of all outputs in bytes."""
        return sum(leaf.nbytes for leaf in self._own.values() if isinstance(leaf, Tensor))

    def check(self, outputs: object, changed: Sequence[Tensor] | None = None) -> CheckResult:
        """Compare every tensor, number and string of ``outputs``, which a call returned, and the arguments.

        The arguments must hold what the call left there. ``changed``: the arguments that it changed; None: unknown, so
        that arguments are not compared. A call must leave the values that the reference leaves. A call that returns no
        tensor may leave its result in an argument that the reference writes and returns, or in any argument if the
        reference changes none.
        """
        if changed is not None and not tensors(outputs) and self._written and all(self._written.values()):
            now = self._named(self._values)
            given: Leaves = {path: now[name] for path, name in self._written.items()}
        elif self._returns:
            given = dict(leaves(returned(outputs, changed) if self._written and not self._changed else outputs))
        else:
            given = {}
        result = self._check(given, changed)
        if changed is None and self._changed and result.correct:
            result.compared &= self._returns
            result.unknown = f"what it leaves in {listed(self._changed)} is not compared: no memory for copies"
        return result

    def check_tensors(self, outputs: Sequence[object], paths: Sequence[Path] = ()) -> CheckResult:
        """Compare the tensors that a call returned.

        Args:
            outputs: the tensors in the order of the call's result.
            paths: their places in it. If they are not those of the reference's tensors, the order counts.

        """
        if self.refused:
            return CheckResult(compared=False, unknown=self.refused)
        if not self._returns:
            return self._check({})
        own = self._returned
        wanted = [path for path, leaf in own.items() if isinstance(leaf, Tensor)]
        free = set(filter(self._is_gradient, own))  # None is one of zeros
        known = {*paths} | free == {*wanted} | free
        if len(outputs) != len(wanted) and not known:  # a tensor may be right where the reference has a number
            wanted = [path for path, leaf in own.items() if isinstance(_tensor(leaf), Tensor)]
        wanted = [*paths] if known or set(paths) == set(wanted) else wanted
        if len(outputs) != len(wanted):
            reason = f"{len(outputs)} tensors where the reference has {len(wanted)}"
            return CheckResult(compared=False, tolerance=[self.tolerance], reason=reason)
        return self._check(own | dict(zip(wanted, outputs, strict=True)))

    def _check(self, given: Leaves, changed: Sequence[Tensor] | None = None) -> CheckResult:
        if self.refused:
            result = CheckResult(compared=False, unknown=self.refused)
            for path, leaf in self._matched(given, result).items() if self._is_random else ():
                reason = _unequal(self._own[path], leaf)
                result.reason = result.reason or (reason and f"{self._name(path)}: {reason}")
            result.unknown = "" if result.reason else self.refused
            return result
        result = CheckResult(tolerance=[self.tolerance], note=self.note)
        given = self._matched(given, result)
        now = self._named(self._values) if changed is not None and (self._state or not self._returns) else {}
        touched = set(map(_place, changed or ()))
        unchanged = {
            name
            for name, leaf in now.items()
            if (_place(leaf) not in touched if isinstance(leaf, Tensor) else _is_left(self._before.get(name), leaf))
        }
        known, stale = self._changed, list[Path]()
        given |= {name: now[name] for name in known if name in now}
        for path, expected in self._own.items():
            if path in given:
                reason = self._compare(path, expected, given[path], result)
                if reason and path in unchanged:
                    stale.append(path)
                else:
                    result.reason = result.reason or (reason and f"{self._name(path)}: {reason}")
            elif changed is not None and path in known:
                stale.append(path)
        if stale:
            result.reason = result.reason or f"it does not change {listed(stale, NAMED)}, as the reference does"
        extra = [name for name in now if name not in unchanged and name not in known]
        # A call may leave gradients where there were none, as ``backward`` does.
        if extra := [name for name in extra if name in self._before or not name.endswith(".grad")]:
            text = f"it changes {listed(extra, NAMED)}, which the reference leaves as it is"
            if known:
                result.reason = result.reason or text
            else:
                result.note = "; ".join(filter(None, (result.note, text)))
        if result.compared and not result.correct and self._is_tf32(given):
            result.reason += "; only TF32 explains it, which tf32=false does not allow"
        if result.correct:
            result.unknown = self.unproven
        return result

    @property
    def tolerance(self) -> str:
        """Return how the limits were found."""
        if self._given:
            share, cap = self._outliers
            form = "the larger of {:.2g} and {:.2g} |r|" if self._either else "{:.2g} + {:.2g} |r|"
            some = f", {share:.4g} of the elements" * (share < 1) + f", none above {cap:.2g}" * (cap < inf)
            return f"{form.format(*self._given)}{some} (as given)"
        wider = "" if self._factor == 1 else f", {self._factor:g} times as wide"
        return f"automatic ({self.draws} draws){wider}{self._how}"

    # --- runs of the reference ---

    def _start(self) -> None:
        """Run the reference in its own types and exactly, and refuse what cannot be judged."""
        failure: Exception | None = None
        self._own: Leaves = {}
        self._returns, self._is_random = True, False  # random values of the same shapes in each run
        self._changed: list[str] = []  # of the arguments, by a run in its own types or by the exact one
        self._finds_changes = True
        self._before: Leaves = self._named(self._values)  # in arguments, before a call; tensors hold their values now
        self._written: dict[Path, str] = {}  # the changed argument that a returned tensor is, "" for none
        try:
            with _tf32_allowed(self._tf32, self._device):
                self._own = self._leaves(Tensor.clone)
        except Exception as error:  # the reference may not exist in this type on this device
            failure = error
        try:
            self._exact, exact = self._in_float64(None)
        except Exception as error:
            if failure or isinstance(error, torch.OutOfMemoryError):
                raise failure or error from None
            if self._given is None:
                self.refused = f"the reference does not run in float64 ({_in_a_line(error)}): give atol and rtol"
            self._exact, exact = dict(self._own), Rounding(self._kind)
        self._finds_changes = False
        left = {name: _detached(self._before[name]) for name in self._changed if name not in self._own}
        self._own |= mapped(Tensor.clone, left)  # what changes by less than a rounding
        if failure:
            self._own = {
                path: leaf.to(exact.nominal(leaf)) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf
                for path, leaf in self._exact.items()
            }
            in_type = f"{_name(self._kind)} ({_in_a_line(failure)})"
            self.note = f"the reference does not run in {in_type}: its own error is unknown"
        own_shapes = self._shapes(self._own)
        if ranks.current.any(exact.random):
            again = [self._shapes(self._in_float64(None)[0]) for _ in range(LEAST)]
            self._is_random = bool(exact.random) and all(shapes == own_shapes for shapes in again)
        if exact.random:
            self.refused = (
                f"the reference draws random numbers ({exact.random}): "
                "call eval(), set p=0, pass the mask or the noise as an input, or write check() in a workload file"
            )
        elif not self._own or not any(isinstance(_tensor(leaf), Tensor) for leaf in self._own.values()):
            self.refused = "the reference returns no tensor and changes no argument: return what it computes"
        elif any(isinstance(leaf, Tensor) and leaf.layout is not torch.strided for leaf in self._own.values()):
            self.refused = "the reference returns a sparse tensor: return its indices and values"
        elif not self.refused and own_shapes != self._shapes(self._exact):
            self.refused = "the reference gives other shapes in float64: give inputs far from its thresholds"
        self._elements, self._products = exact.elements, exact.products
        self._communicates = ranks.current.any(exact.communicates)  # then all ranks run it equally often
        self._unrounded = self._last_operators(exact)
        most = AFFORDED.get(self._device.type, AFFORDED_ELSEWHERE) / max(1, self._elements)
        total = ranks.current.agreed(int(min(DRAWS[self._quick], max(LEAST, most))))
        self.draws, self._probes = total - PROBES.get(total, 2), PROBES.get(total, 2)

    def _last_operators(self, exact: Rounding) -> frozenset[int]:
        """Return the operators that round to the type of an output, or to a wider one."""
        operators: set[int] = set()
        for path, own in self._own.items():
            leaf = self._exact.get(path)
            if isinstance(leaf, Tensor) and isinstance(own, Tensor) and own.is_floating_point():
                wide = [one for one in exact.writers(leaf) if UNIT[exact.kinds_of[one]] <= UNIT[own.dtype]]
                operators.update(wide)
        return frozenset(operators)

    def _in_float64(self, noise: Noise | None, **options: Any) -> tuple[Leaves, Rounding]:
        """Run the reference in float64, with errors if there is ``noise``."""
        mode = Rounding(self._kind, noise, **options)
        wide = partial(mode.argument, varies=self._inputs_vary)

        def widened(module: torch.nn.Module) -> torch.nn.Module:
            copied = nested.copied(module)
            for before, after in zip(tensors(module), tensors(copied), strict=True):
                after.data = wide(before).data
            reconnect(copied)
            return copied

        values = mapped(wide, self._values, widened)
        in_float64 = setting(torch.get_default_dtype, torch.set_default_dtype, torch.float64)
        math = sdpa_kernel(SDPBackend.MATH)  # of operators that the mode knows
        with eagerly(), in_float64, mode, NominalTypes(mode), math:  # torch.compile would compile the modes too
            outputs = self._run(*values)
        return self._collected(outputs, values), mode

    def _leaves(self, change: Callable[[Tensor], Tensor]) -> Leaves:
        """Run the reference in its own types, with changed arguments."""

        def fresh(tensor: Tensor) -> Tensor:
            return change(tensor.detach()).requires_grad_(tensor.requires_grad)

        copies = mapped(fresh, self._values, nested.copied)
        outputs = self._run(*copies)
        return self._collected(outputs, copies)

    def _collected(self, outputs: object, values: Any) -> Leaves:
        """Return what a run returned, and the arguments that it changed. The first run finds which these are."""
        own = dict(leaves(outputs)) if outputs is not None else {}
        if self._finds_changes:
            self._returns, before = outputs is not None, self._before
            after = self._named(values) if self._state or not self._returns else {}
            new = [name for name, x in after.items() if name not in before or not _is_left(before[name], x)]
            self._changed += [name for name in new if name not in self._changed]
            changed = {name: after[name] for name in self._changed}
            places = {_place(x): name for name, x in changed.items() if isinstance(x, Tensor)}
            self._written = {
                path: places.get(_place(x), "") if is_watched(x) else ""
                for path, x in own.items()
                if isinstance(x, Tensor)
            }
        self._arrays = {path for path, leaf in plain_leaves(outputs) if is_array(leaf)}
        if self._changed:
            own |= {name: leaf for name, leaf in self._named(values).items() if name in self._changed}
        return {path: _detached(leaf) for path, leaf in own.items()}

    def _named(self, values: Any) -> Leaves:
        """Return the tensors and numbers in arguments whose changes are noticed, by the reference's names for them."""
        _, args, kwargs = values
        function = inspect.unwrap(self._reference)
        try:
            function = function.forward if isinstance(function, torch.nn.Module) else function
            arguments = inspect.signature(function).bind(*args, **kwargs).arguments
        except (TypeError, ValueError):  # it is not of Python
            arguments = {"args": args, **kwargs}
        named: Leaves = {}
        seen: set[int] = set()
        for name, value in arguments.items():
            numbers = {path: leaf for path, leaf in leaves(value) if path and isinstance(leaf, int | float | complex)}
            found = {path: x for path, x in named_tensors(value).items() if is_watched(x) and id(x) not in seen}
            seen.update(map(id, found.values()))
            named |= {f"{name}{path}": leaf for path, leaf in (found | numbers).items()}
        return {name: leaf for name, leaf in named.items() if not name.endswith(COUNTER)}

    def _names_of_gradients(self) -> dict[Path, str]:
        """Return names of the outputs and the gradients by their paths, where the reference returns gradients."""
        if not isinstance(self._reference, WithGradients):
            return {}
        names = {id(leaf): name for name, leaf in self._named(self._values).items()}
        places = enumerate(chain(*wanted(self._values[1:])), int(self._reference.outputs))
        gradients = {f"[{place}]": f"grad of {names[id(x)]}" for place, x in places if id(x) in names}
        outputs = [path for path in self._own if path.startswith("[0]") and self._reference.outputs]
        return gradients | {path: path.removeprefix("[0]") or "the output" for path in outputs}

    @property
    def _returned(self) -> Leaves:
        """What the reference returns, without the arguments that it changes."""
        return {path: leaf for path, leaf in self._own.items() if path not in self._changed}

    def _shapes(self, values: Leaves) -> dict[Path, object]:
        numbers = {path: _tensor(leaf) for path, leaf in values.items()}
        return {path: tuple(one.shape) if isinstance(one, Tensor) else () for path, one in numbers.items()}

    def _limits(self, tf32: Collection[str]) -> dict[Path, _Output]:
        """Return the limits of all outputs, from draws with errors."""
        outputs: dict[Path, _Output] = {}
        for path, leaf in self._own.items():
            own, value = _tensor(leaf), _tensor(self._exact[path])
            if isinstance(own, Tensor) and isinstance(value, Tensor):
                is_number = not isinstance(leaf, Tensor)
                is_exact = not is_number and own.dtype == torch.float64 != self._kind
                own = real_parts(own)
                own = own.to(self._kind) if is_exact or (is_number and own.is_floating_point()) else own
                outputs[path] = _Output(own, is_number, self._limit(own, real_parts(value)), is_exact)
        drawn = {path: output for path, output in outputs.items() if not isinstance(output.limit, Given)}
        if drawn and not self._draw(drawn, tf32):
            if self._inputs_vary:  # as those of unique values, or at a threshold that inputs meet
                self._inputs_vary = False
                return self._limits(tf32)
            self.refused = "the shape of an output depends on rounding: give inputs far from its thresholds"
        return outputs

    def _limit(self, own: Tensor, value: Tensor) -> Floats | Integers | Given:
        if not own.is_floating_point():
            return Integers(value.to(own.dtype), own)
        if self._given is None:
            return Floats(value.double(), own)
        exact, (atol, rtol) = value.double(), self._given
        allowed = (exact.abs() * rtol).clamp(min=atol) if self._either else atol
        return Given(Expected("", exact, allowed, 0.0 if self._either else rtol, self.tolerance, *self._outliers))

    def _draw(self, outputs: Mapping[Path, _Output], tf32: Collection[str]) -> bool:
        """Add draws to the limits of ``outputs``. Return False at the first one whose outputs have other shapes."""
        noise, spreads = Noise(self._device, SEED), dict[Any, Tensor]()
        shapes = self._shapes(self._exact)
        for number in range(self.draws + self._probes):
            order = (number // 2 + 1) * (-1) ** number  # each in both directions
            drawn, _ = self._in_float64(noise, unrounded=self._unrounded, tf32=tf32, spreads=spreads, order=order)
            if ranks.current.any(self._shapes(drawn) != shapes):
                return False
            for path, output in outputs.items():
                limit, value = output.limit, _tensor(drawn[path])
                assert not isinstance(limit, Given)
                assert isinstance(value, Tensor)
                if number == self.draws and isinstance(limit, Floats):
                    limit.close()
                value = real_parts(value).to(output.own.dtype if isinstance(limit, Integers) else torch.float64)
                (limit.add if number < self.draws else limit.probe)(value)
        return True

    # --- comparisons ---

    def _matched(self, given: Leaves, result: CheckResult) -> Leaves:
        """Return outputs by the paths of the reference's; what is missing or too much goes into ``result``."""
        own = self._returned
        missing, extra = [path for path in own if path not in given], [path for path in given if path not in own]
        beside = {_parent(path) for path in given if path in own}
        if len(missing) == len(extra) and beside.isdisjoint(map(_parent, missing + extra)):  # in another nesting
            given |= {path: given[other] for path, other in zip(missing, extra, strict=True)}
            missing = extra = []
        for path in missing + extra:
            result.compared = False
            text = f"{self._name(path)}: {'missing' if path in missing else 'not expected'}"
            if [*given] == [""] and len(own) > 1:
                text = f"it returns one value; the reference returns {len(own)}"
            elif [*own] == [""]:
                text = f"it returns {len(given)} values; the reference returns one"
            result.reason = result.reason or text
        return {path: leaf for path, leaf in given.items() if path in own}

    def _name(self, path: Path) -> str:
        return self._names.get(path, path) or "the output"

    def _is_gradient(self, path: Path) -> bool:
        return self._name(path).startswith("grad of ")

    def _compare(self, path: Path, expected: object, leaf: object, result: CheckResult) -> str:
        """Add the errors of one output to ``result``. Return what is wrong with it."""
        output = self._outputs.get(path)
        if self._is_gradient(path) and leaf is None and isinstance(expected, Tensor):
            reason = self._compare(path, expected, torch.zeros_like(expected), result)
            return reason and "there is none, and the reference has one"
        if self._is_gradient(path) and expected is None and isinstance(leaf, Tensor):
            reason = "the reference has none; call requires_grad_() on the other inputs if it does not count"
            return reason if leaf.any() else ""
        if output is None:
            return _unequal(expected, leaf)
        y = _tensor(leaf) if output.is_number else leaf
        if path in self._arrays and isinstance(y, Tensor):  # an array has no device of its own
            y = y.to(output.own.device)
        if output.is_exact and isinstance(y, Tensor) and y.is_floating_point():
            y, expected = y.to(output.own.dtype), output.own
        if not output.is_number and isinstance(expected, Tensor) and (reason := misfit(y, expected, expected.dtype)):
            result.compared = False
            return reason
        if not isinstance(y, Tensor) or (output.is_number and not _is_of_kind(real_parts(y), output.own)):
            result.compared = False
            return f"a {type(leaf).__name__} where a {type(expected).__name__} is expected"
        figures = output.limit.judge(y, self._factor)
        result.include(figures)
        return figures.reason

    def _passes(self, outputs: Mapping[Path, object], limits: Mapping[Path, _Output]) -> list[Path]:
        """Return the paths of ``outputs`` that are right."""
        right = []
        for path, output in limits.items():
            y = _tensor(outputs.get(path))
            if isinstance(y, Tensor) and real_parts(y).shape == output.own.shape:
                passes = output.limit.judge(real_parts(y).to(output.own.dtype), self._factor, quick=True).correct
                right += [path] if passes else []
        return right

    def _is_tf32(self, outputs: Leaves) -> bool:
        """Return whether ``outputs`` are right with factors of TF32."""
        refused = self._tf32 or self._given or self._communicates
        if refused or self._device.type not in HAVE_TF32 or torch.float32 not in self._products:
            return False
        if self._relaxed is None:
            with torch.random.fork_rng([self._device] if self._device.type == "cuda" else []):
                self._relaxed = self._limits(PRODUCTS)
        return len(self._passes(outputs, self._relaxed)) == len(self._relaxed)

    # --- wrong answers that the case must tell ---

    def _try_wrong_answers(self) -> None:
        """Set ``unproven`` and ``note`` by wrong answers that pass."""
        judged = {path: output for path, output in self._outputs.items() if output.own.numel()}
        notes = [self.note] if self.note else []
        if not ranks.current.any(judged):
            self.note = "; ".join([*notes, "no output has an element, so any numbers would pass"])
            return
        refusing = {
            "zeros": {path: torch.zeros_like(output.own) for path, output in judged.items()},
            "a constant": {path: _mean(output.own) for path, output in judged.items()},
            "the output for other inputs": self._of_changed(  # of the same signs and magnitude
                lambda tensor: (tensor / 2).reshape(-1).flip(0).reshape(tensor.shape)
            ),
        }
        if all(output.own.numel() == 1 for output in judged.values()):
            refusing["a constant"] = None
        blind = []
        for name, outputs in refusing.items():
            right = self._passes(outputs, judged) if outputs else []
            blind += [name] if judged and len(right) == len(judged) else []
            if name == "zeros" and 0 < len(right) < len(judged):
                notes += [f"zeros would pass in {listed([*map(self._name, right)])}"]
        unproven = f"{listed(blind)} would pass: give inputs that make the outputs differ" if blind else ""
        if not self._given and (unproven := ranks.current.first(unproven)):
            self.unproven = unproven
            return
        notes += [f"{listed(blind)} would pass"] if blind else []
        if stale := self._passes(self._named(self._values), judged):
            notes += [f"{listed(stale)} left unchanged would pass"]
        floats = {path: output for path, output in judged.items() if output.own.is_floating_point()}
        larger = {path: (output.own.double() * 1.01).to(output.own.dtype) for path, output in floats.items()}
        if floats and len(self._passes(larger, floats)) == len(floats):
            notes += ["a result 1 % too large would pass"]
        lower = LOWER.get(self._kind)
        outputs = None
        if lower and ranks.current.any(floats):
            outputs = self._of_changed(lambda tensor: tensor.to(lower).to(tensor.dtype))
        if outputs and floats and len(self._passes(outputs, judged)) == len(judged):
            notes += [f"the result of inputs rounded to {_name(lower)} would pass"]
        self.note = "; ".join(notes)

    def _of_changed(self, change: Callable[[Tensor], Tensor]) -> Leaves | None:
        """Return the outputs for changed floating inputs; None if there are none, or if they are the same."""

        def changed(tensor: Tensor) -> Tensor:
            return change(tensor) if tensor.is_floating_point() and tensor.itemsize > 1 else tensor.clone()

        try:
            with _tf32_allowed(self._tf32, self._device):
                outputs = self._leaves(changed)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # the reference takes no other numbers
            return None
        pairs = [(_tensor(outputs.get(path)), output.own) for path, output in self._outputs.items()]
        same = all(isinstance(one, Tensor) and _same(real_parts(one).to(own.dtype), own) for one, own in pairs)
        return None if same else outputs


# --- values ---


def _callable(reference: Callable[..., Any]) -> tuple[Callable[..., Any], torch.nn.Module | None]:
    """Return a function of a module, arguments and keyword arguments, with the module that ``reference`` belongs to."""
    gradients = reference if isinstance(reference, WithGradients) else None
    function = gradients.__wrapped__ if gradients else reference
    owner = function if isinstance(function, torch.nn.Module) else getattr(function, "__self__", None)
    is_owned = isinstance(owner, torch.nn.Module)

    def run(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        bound = function if not is_owned else module if owner is function else getattr(module, function.__name__)
        return gradients.of(bound, args, kwargs) if gradients else bound(*args, **kwargs)

    return run, owner if is_owned else None


def _kind(inputs: Sequence[Tensor]) -> torch.dtype:
    """Return the narrowest type that the case computes in: of its inputs, without types of one byte."""
    kinds = [tensor.dtype for tensor in inputs if tensor.is_floating_point() and tensor.itemsize > 1]
    kinds += [
        torch.float64 if tensor.dtype == torch.complex128 else torch.float32 for tensor in inputs if tensor.is_complex()
    ]
    return min(kinds, key=lambda kind: (kind.itemsize, -UNIT[kind]), default=torch.float32)


def _detached(leaf: object) -> object:
    return leaf.detach() if isinstance(leaf, Tensor) else leaf


def _parent(path: Path) -> Path:
    """Return the path of what holds the leaf at ``path``."""
    return path[: max(path.rfind("["), path.rfind("."), 0)]


def _tensor(leaf: object) -> object:
    """Return a number as a tensor without dimensions, but for integers that no type of torch can hold."""
    if isinstance(leaf, float | complex) or (isinstance(leaf, int) and -(2**63) <= leaf < 2**63):
        widest = torch.complex128 if isinstance(leaf, complex) else torch.float64
        return torch.tensor(leaf, dtype=None if isinstance(leaf, int) else widest)
    return leaf


def _is_of_kind(number: Tensor, own: Tensor) -> bool:
    return number.shape == own.shape and number.is_floating_point() == own.is_floating_point()


def _mean(own: Tensor) -> Tensor:
    """Return a tensor that has the mean of ``own`` everywhere."""
    mean = own.double().nan_to_num(0.0, 0.0, 0.0).mean()
    return (mean if own.is_floating_point() else mean.round()).to(own.dtype).expand(own.shape)


def _same(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors have the same numbers: 0 equals -0, and NaN equals NaN."""
    starts = range(0, first.numel(), CHUNK)  # copies of all in float64 may not fit
    return first.shape == second.shape and all(
        same_bits(part(first, start).double() + 0, part(second, start).double() + 0) for start in starts
    )


def _is_left(before: object, after: object) -> bool:
    """Return whether an argument holds what it held; in a run in float64, a tensor of another type."""
    if isinstance(before, Tensor) and isinstance(after, Tensor):
        return same_bits(after.to(before.dtype), before)
    if isinstance(before, Tensor) or isinstance(after, Tensor):
        return False
    return before == after or (before != before and after != after)  # NaN


def _place(tensor: Tensor) -> tuple[object, ...]:
    """Return what tells ``tensor`` from a view of the same memory."""
    return tensor.data_ptr(), tensor.shape, tensor.stride()


def _unequal(expected: object, leaf: object) -> str:
    """Return how a value that is not a number differs from the reference's: objects of unknown types by their type."""
    if isinstance(expected, Tensor):
        return misfit(leaf, expected, expected.dtype)
    exact = isinstance(expected, int) and not isinstance(_tensor(expected), Tensor)
    if (exact or isinstance(expected, str | bytes | torch.dtype | torch.device)) and leaf != expected:
        return f"{leaf!r} where {expected!r} is expected"
    numbers = (bool, int, float, complex)
    if isinstance(expected, numbers) and (isinstance(leaf, numbers) or (isinstance(leaf, Tensor) and not leaf.ndim)):
        return ""
    if type(leaf) is not type(expected):
        return f"a {type(leaf).__name__} where a {type(expected).__name__} is expected"
    return ""


def _name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")


def _in_a_line(error: Exception) -> str:
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first[:160]}"


def _products_of(tf32: bool | None, device: torch.device) -> Collection[str]:
    """Return the operators that may round factors to TF32. None: as torch's switches are set, on a GPU."""
    if tf32 is not None:
        return PRODUCTS if tf32 else ()
    if device.type != "cuda":
        return ()
    convolutions = {name for name in PRODUCTS if "convolution" in name}
    others = PRODUCTS.keys() - convolutions if torch.backends.cuda.matmul.allow_tf32 else set()
    return others | (convolutions if torch.backends.cudnn.allow_tf32 else set())


@contextmanager
def _tf32_allowed(allowed: bool | None, device: torch.device) -> Iterator[None]:
    """Set torch's switches of TF32 in products and convolutions on a GPU, and set them back."""
    with ExitStack() as stack:
        if device.type == "cuda" and allowed is not None:
            for backend in (torch.backends.cuda.matmul, torch.backends.cudnn):
                stack.enter_context(replaced(backend, "allow_tf32", allowed))
        yield
