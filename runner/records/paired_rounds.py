"""PairedRounds: implementations of one problem, measured in turn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from .columns import INSTRUMENTS
from .figures import is_plausible_us
from .schema import check


@dataclass(frozen=True)
class PairedRounds:
    """Ten batch means of each case. The n-th ones of all cases were measured together, so their ratio is valid.

    In a race, a case that was shown to be slower than the fastest has an instrument, but no batches.
    """

    batches_us: Mapping[str, Sequence[int | float]] = field(default_factory=dict)  # by the cases' keys
    instruments: Mapping[str, str] = field(default_factory=dict)  # by the cases' keys
    reason: str = ""  # why there are no batches
    wrong: Mapping[str, str] = field(default_factory=dict)  # what was wrong with outputs, by the cases' keys

    @classmethod
    def of(cls, by_key: Mapping[str, Any]) -> Self:
        """Return the rounds whose ``Batches`` of runner.timing.call are given by the keys of their cases."""
        return cls(
            {key: batches.means_us for key, batches in by_key.items() if batches.means_us},
            {key: batches.instrument for key, batches in by_key.items()},
            wrong={key: batches.wrong for key, batches in by_key.items() if batches.wrong},
        )

    @property
    def dropped(self) -> set[str]:
        """Keys of the cases that a race has shown to be slower than the fastest."""
        return self.instruments.keys() - self.batches_us.keys() - self.wrong.keys()

    def to_record(self) -> dict[str, object]:
        """Return the paired rounds as JSON-ready values."""
        return dict(vars(self))

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Parse a record written by ``to_record``. Unknown fields are left out.

        Raises one of UNREADABLE if it is malformed: a value has the wrong type, a case has no known instrument, or not
        as many batches as the others.
        """
        values = {name: record[name] for name in cls.__dataclass_fields__}
        check(cls, values)
        rounds = cls(**values)
        lengths = {len(batches) for batches in rounds.batches_us.values()}
        instruments = {rounds.instruments[key] for key in rounds.batches_us}
        if len(lengths) > 1 or lengths & {0, 1} or not instruments <= {*INSTRUMENTS.split(" | ")}:
            raise ValueError("a case has no known instrument, or not as many batches as the others")
        if not all(is_plausible_us(us) for batches in rounds.batches_us.values() for us in batches):
            raise ValueError("a time that no clock reads")
        return rounds
