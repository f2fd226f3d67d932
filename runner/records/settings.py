"""Settings: what a case is run under besides its workload, implementation and measurements."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Self

from .debugging import Aid, Device
from .schema import check

IDENTIFIES = {"identifies": True}  # metadata of a field: cases that differ in it are different problems in any two runs


@dataclass(frozen=True)
class Settings:
    """The fields of config.yaml that every case has. Their defaults stand there; here a missing flag is off."""

    device: Device = field(metadata=IDENTIFIES)
    seed: Annotated[int, "at least 0"] = field(metadata=IDENTIFIES)  # random seed of the inputs
    debug: Aid | None = field(default=None, metadata=IDENTIFIES)  # a debugging mode
    time_wrong: bool = False  # measure even if the result is wrong
    quick: bool = False  # measured in a tenth of the time
    # under torch.use_deterministic_algorithms(True)
    deterministic_algorithms: bool = field(default=False, metadata=IDENTIFIES)

    @property
    def identity(self) -> Self:
        """The settings that identify a problem in all runs; the others are neutral."""
        return self.without(EXACTNESS)

    def without(self, names: Collection[str]) -> Self:
        """Return the settings with ``names`` neutral, so that cases that differ in these alone become equal."""
        return replace(self, **{name: getattr(NEUTRAL, name) for name in NAMES if name in names})

    def to_record(self) -> dict[str, Any]:
        """Return JSON-ready values. Flags that a key of a case does not need are left out if they are off."""
        return {name: value for name, value in vars(self).items() if value or name not in UNWRITTEN}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Parse a record written by ``to_record``. Raises one of UNREADABLE if it is malformed."""
        check(cls, record)
        return cls(**record)


NEUTRAL = Settings("auto", 0)
NAMES = tuple(setting.name for setting in fields(Settings))
EXACTNESS = tuple(setting.name for setting in fields(Settings) if not setting.metadata)  # how, not what, is measured
UNWRITTEN = ("quick", "deterministic_algorithms")
