"""What a run says before it starts if it will take minutes on a CPU: for how long, and what smaller run to type."""

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence

from .. import config
from ..execute.zygote import NVIDIA_DEVICE
from ..findings.duration import duration, estimate
from ..records.bad_input import BadInput
from ..records.case import CaseRecord
from ..records.plan import Plan

LONG_S, SHORT_S = 120.0, 45.0
RECENT = 1000  # rows of earlier runs that are read, in some 50 ms, while torch is imported
SIZE, SMALLEST = 128, 32  # whole numbers from here on are sizes that can be halved, down to this


def advice(
    cases: Sequence[CaseRecord], plan: Plan, argv: Sequence[str], devices: Callable[[Plan], set[str] | None]
) -> str:
    """Return a sentence if ``cases`` of ``plan``, which ``argv`` asks for, will take minutes on this CPU, else "".

    ``devices`` returns the names of the devices that a plan will use; it is called only for a long run.
    """
    on_cpu = all(case.settings.device == "cpu" for case in cases)
    if plan.launcher.name != "local" or not (on_cpu or not os.path.exists(NVIDIA_DEVICE)):
        return ""
    guess = estimate(cases, plan.output_dir, {"cpu"}, plan.launcher.fields, RECENT)
    if guess.total_s < LONG_S or not (on_cpu or devices(plan) == {"cpu"}):
        return ""
    takes = f"this will take about {duration(guess.total_s)} on this CPU{' (a guess)' * guess.is_guess}"
    for words in () if plan.resume.of else _smaller(cases, argv):
        try:
            smaller = config.plan(words)
        except BadInput:  # the sizes belong together in another way
            continue
        if (less := estimate(smaller.cases, plan.output_dir, {"cpu"}, most_rows=RECENT)).total_s < SHORT_S:
            return f"{takes}; to try it in {duration(less.total_s)}: python -m runner {shlex.join(words)}"
    return f"{takes}; Ctrl-C keeps the cases that are done, and resume=last goes on"


def _smaller(cases: Sequence[CaseRecord], argv: Sequence[str]) -> Iterator[list[str]]:
    """Yield command lines of smaller runs: with ``quick=true``, then with one smaller and smaller set of sizes too."""
    words = [word for word in argv if not word.startswith("quick=")]
    yield [*words, "quick=true"]
    sizes = _sizes(cases)
    given = {f"workload.{name}" for case in cases for name in case.workload.fields if name in sizes or name == "size"}
    words = [word for word in words if word.partition("=")[0].lstrip("+") not in {*given, "workload.shape", "shapes"}]
    while sizes:
        yield [*words, *(f"workload.{name}={size}" for name, size in sizes.items()), "quick=true"]
        if max(sizes.values()) <= SMALLEST:
            return
        sizes = {name: max(SMALLEST, size // 2) for name, size in sizes.items()}


def _sizes(cases: Sequence[CaseRecord]) -> Mapping[str, int]:
    """Return the sizes of the workloads by field, the least of each; for square products their ``size`` alone."""
    sizes: dict[str, int] = {}
    for fields in (case.workload.fields for case in cases):
        for name, value in fields.items():
            if isinstance(value, int) and value >= SIZE and value != (name != "size" and fields.get("size")):
                sizes[name] = min(value, sizes.get(name, value))
    return {name: size for name, size in sizes.items() if name != "size" or "m" not in sizes}
