"""What torch.compile did for a case: where it left the graph, and why it compiled again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def compilations() -> list[str]:
    """A line for each graph break and each recompilation since the case began, with torch's reason for it."""
    from torch._dynamo.utils import counters, get_compilation_metrics

    breaks = [f"graph break, {times}x: {_first(reason)}" for reason, times in counters["graph_break"].items()]
    return breaks + [f"compiled again: {_first(reason)}" for reason in recompile_reasons(get_compilation_metrics())]


def recompile_reasons(metrics: Sequence[Any]) -> list[str]:
    """Of those of ``metrics``, torch's records of compilations, that were not the first of their function."""
    return [str(reason) for one in metrics if (reason := getattr(one, "recompile_reason", None))]


def _first(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "torch gives no reason"
