"""Settings of a timer."""

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from ..records.options import CONF
from ..records.schema import build

LINE = re.compile(r"^(\w+): *([^\s#]+)", re.MULTILINE)  # of a YAML file: a field and its value


@dataclass(frozen=True)
class TimingSettings:
    """Settings of a timer: the fields of ``conf/measure/benchmark.yaml``, which explains them."""

    cold_l2: bool
    instrument: Literal["auto", "graph_timestamps", "stream_timestamps", "cuda_events"]
    captures: Annotated[int, "at least 1"]
    buffer_sets: Annotated[int, "at least 1"]
    cupti_check: bool
    measured_peak: bool
    warmup_s: Annotated[float, "at least 0"]
    samples: Annotated[int, "at least 20"]
    max_s: Annotated[float, "above 0"]
    paired_rounds: Annotated[int, "at least 0"]
    race: bool
    sustained_s: Annotated[float, "at least 0"]
    keep_samples: bool
    target_pct: Annotated[float, "above 0"]
    target_cpu_pct: Annotated[float, "above 0"]


T = TypeVar("T", bound=TimingSettings)


def default_settings(cls: type[T]) -> T:
    """Return the defaults in ``conf/measure/benchmark.yaml``, without a package for YAML. Raises OSError, BadInput."""
    text = (CONF / "measure" / "benchmark.yaml").read_text(encoding="utf-8")
    values: dict[str, Any] = {name: value for name, value in LINE.findall(text) if name in get_type_hints(cls)}
    for name, value in values.items():
        with suppress(ValueError):  # a word
            values[name] = json.loads(value)
    return build(cls, values, "measure.benchmark")
