"""Whether the timings of this machine can be trusted: self-tests on calls whose answer is known."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from statistics import fmean

from runner.device import identity
from runner.experiment.case import Scalar
from runner.timing import Call, TimingSettings
from runner.timing.statistics import Ratio, pair_floors, paired, shared_us

MODULES = {"cuda": "gpu", "cpu": "cpu"}  # each has ``CHECKS``, by the name that the user sees


@dataclass(frozen=True)
class Finding:
    """One line of the table."""

    name: str
    found: str  # with units
    bar: str  # what it had to be
    passed: bool


Check = Callable[[TimingSettings], list[Finding]]
Ended = Callable[[str, Sequence[Finding], float], None]


def settings(conf: Path) -> TimingSettings:
    """How a case is timed by default, from the YAML in the folder ``conf``; no comparison with the measured_peak."""
    import yaml

    values = yaml.safe_load((conf / "measure" / "benchmark.yaml").read_text(encoding="utf-8"))
    chosen = TimingSettings(**{name: value for name, value in values.items() if name != "name"})
    return replace(chosen, measured_peak=False)


def checks(device: str) -> Mapping[str, Check]:
    """The checks of ``device``, "cpu" or "cuda", in their order."""
    found: Mapping[str, Check] = import_module(f"runner.timing.verify.{MODULES[device]}").CHECKS
    return found


def run(device: str, chosen: TimingSettings, ended: Ended = lambda name, findings, seconds: None) -> list[Finding]:
    """What every check of ``device`` finds under the settings ``chosen``; one that raises has failed.

    ``ended`` hears of each check when it ends: its name, its findings, and the seconds it took.
    """
    everything: list[Finding] = []
    gc.collect()
    gc.freeze()  # modules: 300,000 objects of torch's, which a collection in the middle of a sample would walk
    for name, check in checks(device).items():
        started = time.perf_counter()
        findings = _findings(name, check, chosen)
        gc.collect()  # the buffers of one check are no business of the next
        ended(name, findings, time.perf_counter() - started)
        everything += findings
    return everything


def certify(device: str, findings: Sequence[Finding]) -> Path | None:
    """Keep ``findings`` as what is known of this machine; None if they cannot be kept."""
    facts = identity.identity() if device == "cuda" else identity.cpu_identity()
    return identity.certify(facts, device, [asdict(finding) for finding in findings])


def _findings(name: str, check: Check, chosen: TimingSettings) -> list[Finding]:
    try:
        return check(chosen)
    except Exception as error:
        line = str(error).strip().partition("\n")[0]
        return [Finding(name, f"{type(error).__name__}: {line}", "it can be done at all", passed=False)]


SURE_US = 8.0  # from here on "same" can be said: below, what an instrument cannot see is too large a share
SURE_SHARE = 0.9  # of pairs that must be called so


@dataclass(frozen=True)
class Compared:
    """One pair of calls."""

    ratio: Ratio  # of the first to the second
    us: float  # of the second


def compared(
    settings: TimingSettings, device: str, first: Call, second: Call, columns: Mapping[str, Scalar] | None = None
) -> Compared:
    """``first`` against ``second``. ``columns`` name the instrument of both, on a GPU.

    Raises:
        RuntimeError: they cannot be sampled side by side.

    """
    both = settings.compare([(first, columns or {}), (second, columns or {})], device)
    if both is None:
        raise RuntimeError("there is no time for rounds in which calls are sampled in turn")
    (name, ours), (other, theirs) = both
    return Compared(paired(ours, theirs, pair_floors(name, other), shared_us(name, other)), fmean(theirs))


def alike(name: str, pairs: Sequence[Compared], most: int) -> Finding:
    """Check that at most ``most`` pairs of equal calls are called faster or slower."""
    told = sum(pair.ratio.word in ("faster", "slower") for pair in pairs)
    widest = 100 * max(abs(pair.ratio.log) for pair in pairs)
    found = f"{told} of {len(pairs)} called different, the farthest {widest:.2f} % apart"
    return Finding(f"{name}: different", found, f"at most {most}", told <= most)


def sure(name: str, pairs: Sequence[Compared]) -> Finding:
    """Check that most pairs of equal and long enough calls are called the same."""
    long = [pair for pair in pairs if pair.us >= SURE_US]
    same = sum(pair.ratio.word == "same" for pair in long)
    found = f'{same} of the {len(long)} from {SURE_US:g} us up called "same"'
    return Finding(f"{name}: same", found, f"at least {100 * SURE_SHARE:.0f} %", same >= SURE_SHARE * len(long))


def slower(name: str, pairs: Sequence[Compared], share: float, least: int) -> Finding:
    """Check that at least ``least`` calls that are longer by ``share`` are called slower."""
    told = sum(pair.ratio.word == "slower" for pair in pairs)
    read = 100 * fmean(pair.ratio.log for pair in pairs)
    found = f"found in {told} of {len(pairs)}, read as {read:+.2f} %"
    return Finding(f"{name}, {100 * share:g} % longer", found, f"at least {least}", told >= least)
