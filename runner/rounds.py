"""Rounds: the cases of one point sampled side by side, after each has had its own row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Rounds:
    """Ten batch means of each case; the n-th of all were taken at one time, and their ratio is of that moment."""

    batches_us: Mapping[str, Sequence[float]] = field(default_factory=dict)  # by the cases' keys
    instruments: Mapping[str, str] = field(default_factory=dict)  # likewise
    reason: str = ""  # why there are none

    def to_record(self) -> dict[str, object]:
        """As JSON-ready values; ``from_record`` reads it back."""
        batches = {key: list(batches) for key, batches in self.batches_us.items()}
        return {"batches_us": batches, "instruments": dict(self.instruments), "reason": self.reason}

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> Rounds:
        """The inverse of ``to_record``."""
        return cls(**record)  # type: ignore[arg-type]
