"""pytest: the fixtures ``bench`` and ``assert_not_slower``, and options that keep what they measured.

pytest finds this file through an entry point. torch is imported when a test asks for a fixture.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ..findings.run import Run
    from .bench import Comparison

RUNS = pytest.StashKey[list["Run"]]()
FIRST_S = 0.6  # first limit of paired rounds; each repetition takes twice as long
TARGET_PCT = 0.5  # half-width of the interval that the first ones aim at; each repetition aims at half of it


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    add = parser.getgroup("runner", "timing with kernel-runner").addoption
    add("--runner-html", metavar="PAGE", help="write a page of all that the fixtures compared (not beside xdist's -n)")
    add("--runner-save", action="store_true", help="save each result of the fixtures as a run")
    add("--runner-output-dir", metavar="FOLDER", default="outputs", help="of these runs, by default outputs")
    add("--runner-cpu", action="store_true", help="run tests with these fixtures where there is no GPU, on CPU tensors")


def pytest_configure(config: pytest.Config) -> None:
    """Raise UsageError if no page can be written: without vl-convert, or with xdist, which measures in parallel."""
    config.stash[RUNS] = []
    options = [option for option in ("--runner-html", "--runner-save") if config.getoption(option)]
    if options and config.getoption("numprocesses", None):
        raise pytest.UsageError(f"{options[0]}: leave out -n, whose processes would measure at the same time")
    if "--runner-html" not in options:
        return
    from ..records.bad_input import BadInput
    from ..report.images import convert

    try:
        convert()
    except BadInput as error:
        raise pytest.UsageError(f"--runner-html: {error}") from None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the page."""
    path, runs = session.config.getoption("--runner-html"), session.config.stash[RUNS]
    if path and runs:
        from ..report.to_html import page

        Path(path).write_text(page(runs), encoding="utf-8", errors="replace")


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """``runner.bench``, whose results are also on the page and saved. Skipped where torch sees no GPU."""
    import torch

    if not torch.cuda.is_available() and not request.config.getoption("--runner-cpu"):
        pytest.skip("torch sees no NVIDIA GPU here; --runner-cpu runs this test on a CPU")
    from . import bench as timer
    from .saved import as_name

    def timed(*given: Any, **options: Any) -> Any:
        found = timer.bench(*given, **options)
        if isinstance(found, timer.Comparison):
            request.config.stash[RUNS].append(found.run.with_plan(name=request.node.nodeid))
        if request.config.getoption("--runner-save"):
            found.save(as_name(request.node.nodeid), request.config.getoption("--runner-output-dir"))
        return found

    return timed


@pytest.fixture
def assert_not_slower(bench: Callable[..., Any]) -> Callable[..., Comparison]:
    """``assert_not_slower(f, *args, than=g, by="3%")``: fail unless ``f`` is shown to be at most 3 % slower than ``g``.

    Both are timed in turn. Where the 95 % interval of the ratio holds the limit, they are timed again for twice as
    long, up to ``max_s`` seconds in all; then it is unclear, and fails too. The other arguments are those of
    ``runner.bench``.

    Returns the comparison, with the names of both functions, or "f" and "g" if these are equal. Raises ValueError if
    ``by`` is not a share.
    """
    from .bench import name_of

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
        name, other = name_of(f), name_of(than)
        name, other = ("f", "g") if name == other else (name, other)
        slower = f"{name} is slower than {other} by more than {by}"
        while True:
            comparison: Comparison = bench(
                {other: than, name: f}, *args, baseline=other, max_s=each_s, target_pct=target_pct, **options
            )
            line = comparison[name]
            for row in comparison.run.rows:
                if row.status not in ("ok", "wrong"):
                    pytest.fail(f"{row.case.impl.name}: {row.status}: {row.reason}\n{row.detail}", pytrace=False)
            if line.correct is False or line.speedup is None:
                pytest.fail(f"the outputs are wrong: {line.timing.reason}\n{comparison!r}", pytrace=False)
            if line.correct is None and options.get("check"):
                unknown = line.timing.columns["check_note"]
                pytest.fail(f"right or wrong is unknown: {unknown}\n{comparison!r}", pytrace=False)
            if line.speedup_high and 1 / line.speedup_high > limit:
                pytest.fail(f"{slower}: {_ratio(line)}\n{comparison!r}", pytrace=False)
            if line.speedup_low and 1 / line.speedup_low <= limit:
                return comparison
            each_s, target_pct = 2 * each_s, target_pct / 2
            if time.monotonic() - begun + 2 * each_s > max_s:
                pytest.fail(
                    f"unclear after {time.monotonic() - begun:.1f} s whether {slower}: "
                    f"{_ratio(line)}; give it more time with max_s=, or a larger by=\n{comparison!r}",
                    pytrace=False,
                )

    return decide


def _share(by: str | float) -> float:
    """Return "3%" or 0.03 as a number. Raises ValueError."""
    from ..records import bad_input
    from ..records.figures import parse_share

    try:
        return parse_share(str(by), "by=")
    except bad_input.BadInput as error:
        raise ValueError(f'{error}, such as by="3%"') from None


def _ratio(line: Any) -> str:
    """Say how many times as long ``f`` takes, with the interval."""
    from ..records.figures import factor, factors

    ends = line.speedup_high and 1 / line.speedup_high, line.speedup_low and 1 / line.speedup_low
    return f"it takes {factor(1 / line.speedup, 3)} as long ({factors(*ends) or 'no interval'})"
