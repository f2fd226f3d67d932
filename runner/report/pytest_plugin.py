"""pytest: the fixtures ``bench`` and ``assert_not_slower``, and ``--runner-html`` for a page of what they measured.

pytest finds this file through an entry point. torch is imported when a test asks for a fixture.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from runner.report.bench import Comparison
    from runner.report.derive import Run

RUNS = pytest.StashKey[list["Run"]]()
FIRST_S = 0.6  # of paired rounds; each repetition takes twice as long
TARGET_PCT = 0.5  # half-width of the interval that the first ones aim at; each repetition aims at half of it


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("runner", "timing with kernel-runner")
    group.addoption(
        "--runner-html", metavar="PAGE", help="write a page of all that the fixtures compared (not beside xdist's -n)"
    )
    group.addoption(
        "--runner-cpu", action="store_true", help="run tests with these fixtures where there is no GPU, on CPU tensors"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Raise UsageError if no page can be written: without vl-convert, or with xdist, which measures in parallel."""
    config.stash[RUNS] = []
    if not config.getoption("--runner-html"):
        return
    if config.getoption("numprocesses", None):
        raise pytest.UsageError("--runner-html: leave out -n, whose processes would measure at the same time")
    from runner.experiment.schema import BadInput
    from runner.report import charts

    try:
        charts.convert()
    except BadInput as error:
        raise pytest.UsageError(f"--runner-html: {error}") from None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the page."""
    path, runs = session.config.getoption("--runner-html"), session.config.stash[RUNS]
    if path and runs:
        from runner.report.to_html import page

        Path(path).write_text(page(runs), encoding="utf-8", errors="replace")


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """``runner.bench``, whose comparisons are also on the page. Skipped where torch sees no GPU."""
    import torch

    if not torch.cuda.is_available() and not request.config.getoption("--runner-cpu"):
        pytest.skip("torch sees no NVIDIA GPU here; --runner-cpu runs this test on a CPU")
    from runner.report import bench as timer

    def timed(*given: Any, **options: Any) -> Any:
        found = timer.bench(*given, **options)
        if isinstance(found, timer.Comparison):
            request.config.stash[RUNS].append(replace(found.run, title=request.node.nodeid))
        return found

    return timed


@pytest.fixture
def assert_not_slower(bench: Callable[..., Any]) -> Callable[..., Comparison]:
    """``assert_not_slower(f, *args, than=g, by="3%")``: fail unless ``f`` is shown to be at most 3 % slower than ``g``.

    Both are timed in turn. Where the 95 % interval of the ratio holds the limit, they are timed again for twice as
    long, up to ``max_s`` seconds in all; then it is unclear, and fails too. The other arguments are those of
    ``runner.bench``.

    Returns the comparison. Raises ValueError if ``by`` is no share.
    """

    def decide(
        f: Callable[..., Any],
        *args: Any,
        than: Callable[..., Any],
        by: str | float = "3%",
        max_s: float = 10.0,
        **options: Any,
    ) -> Comparison:
        __tracebackhide__ = True
        limit, begun, each_s, target_pct = 1 + _share(by), time.monotonic(), FIRST_S, TARGET_PCT
        while True:
            found: Comparison = bench(
                {"than": than, "f": f}, *args, baseline="than", max_s=each_s, target_pct=target_pct, **options
            )
            one = found["f"]
            if one.correct is False or one.speedup is None:
                pytest.fail(f"the outputs are wrong: {one.timing.reason}\n{found!r}", pytrace=False)
            if 1 / one.speedup_high > limit:
                pytest.fail(f"f is slower than g by more than {by}: {_ratio(one)}\n{found!r}", pytrace=False)
            if 1 / one.speedup_low <= limit:
                return found
            each_s, target_pct = 2 * each_s, target_pct / 2
            if time.monotonic() - begun + 2 * each_s > max_s:
                pytest.fail(
                    f"unclear after {time.monotonic() - begun:.1f} s whether f is slower than g by more than {by}: "
                    f"{_ratio(one)}; give it more time with max_s=, or a larger by=\n{found!r}",
                    pytrace=False,
                )

    return decide


def _share(by: str | float) -> float:
    """Return "3%" or 0.03 as a number. Raises ValueError."""
    from runner.experiment import schema

    try:
        return schema.share(str(by), "by=")
    except schema.BadInput as error:
        raise ValueError(f'{error}, such as by="3%"') from None


def _ratio(one: Any) -> str:
    """Return how many times as long ``f`` takes, with its interval."""
    return f"it takes {1 / one.speedup:.3f}x as long ({1 / one.speedup_high:.3f}x to {1 / one.speedup_low:.3f}x)"
