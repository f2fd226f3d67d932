"""Self-tests of the timings on this machine, on calls with a known result."""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path

from ...device import identity
from ..settings import default_settings
from .checks import Check, SelfTest, Settings, TooBusy


def settings() -> Settings:
    """Return the defaults of ``conf/measure/benchmark.yaml``, without the measured peak."""
    return replace(default_settings(Settings), measured_peak=False)


def self_tests(device: str) -> Mapping[str, SelfTest]:
    """Return the checks of ``device``, "cpu" or "cuda", in order, by the name that the user sees."""
    checks: Mapping[str, SelfTest] = import_module(f".{device}", __package__).CHECKS
    return checks


def run_checks(device: str, chosen: Settings, ended: Callable[[str, Sequence[Check], float], None]) -> list[Check]:
    """Run every check of ``device`` with the settings ``chosen``. A check that raises an exception has failed.

    ``ended`` is called after each check with its name, its findings and its seconds. A check that other processes have
    disturbed has no findings.
    """
    everything: list[Check] = []
    gc.collect()
    gc.freeze()  # torch's 300,000 objects, which a collection during a sample would visit
    for name, check in self_tests(device).items():
        started = time.perf_counter()
        try:
            findings = check(chosen)
        except TooBusy:
            findings = []
        except Exception as error:
            line = str(error).strip().partition("\n")[0]
            findings = [Check(name, f"{type(error).__name__}: {line}", "it can be done at all", passed=False)]
        gc.collect()  # frees the buffers of the check
        ended(name, findings, time.perf_counter() - started)
        everything += findings
    return everything


def certify(device: str, findings: Sequence[Check]) -> Path | None:
    """Keep ``findings`` as the certificate of this machine. None if they cannot be kept."""
    facts = identity.identity() if device == "cuda" else identity.cpu_identity()
    return identity.certify(facts, device, [asdict(finding) for finding in findings])
