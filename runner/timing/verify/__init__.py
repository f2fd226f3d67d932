"""Whether the timings of this machine can be trusted: self-tests on calls whose answer is known."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path

from runner.device import certificate
from runner.measure.benchmark import Benchmark

MODULES = {"cuda": "gpu", "cpu": "cpu"}  # each has ``CHECKS``, by the name that the user sees


@dataclass(frozen=True)
class Finding:
    """One line of the table."""

    name: str
    found: str  # with units
    bar: str  # what it had to be
    passed: bool


Check = Callable[[Benchmark], list[Finding]]
Ended = Callable[[str, Sequence[Finding], float], None]


def settings(conf: Path) -> Benchmark:
    """How a case is timed by default, from the YAML in the folder ``conf``; no comparison with the measured_peak."""
    import yaml

    values = yaml.safe_load((conf / "measure" / "benchmark.yaml").read_text(encoding="utf-8"))
    chosen = Benchmark(**{name: value for name, value in values.items() if name != "name"})
    return replace(chosen, measured_peak=False)


def checks(device: str) -> Mapping[str, Check]:
    """The checks of ``device``, "cpu" or "cuda", in their order."""
    found: Mapping[str, Check] = import_module(f"runner.timing.verify.{MODULES[device]}").CHECKS
    return found


def run(device: str, chosen: Benchmark, ended: Ended = lambda name, findings, seconds: None) -> list[Finding]:
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
    from runner.device.identity import cpu_identity, identity

    facts = identity() if device == "cuda" else cpu_identity()
    return certificate.write(facts, device, [asdict(finding) for finding in findings])


def _findings(name: str, check: Check, chosen: Benchmark) -> list[Finding]:
    try:
        return check(chosen)
    except Exception as error:
        line = str(error).strip().partition("\n")[0]
        return [Finding(name, f"{type(error).__name__}: {line}", "it can be done at all", passed=False)]
