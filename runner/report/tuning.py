"""The results of ``runner tune`` as text, and as an experiment's YAML."""

from __future__ import annotations

import math
from operator import itemgetter

import yaml

from ..findings.names import Names
from ..findings.ratios import bounds, doubt, inverse
from ..findings.tuning import Contest
from ..records.case import ARGS, CaseRecord
from ..records.grouping import grouped
from ..records.plain_text import printable


def describe(contest: Contest, names: Names) -> list[str]:
    """Return what the terminal prints about ``contest``, without the command that runs the fastest."""
    reasons = grouped(contest.failed, itemgetter(1))
    if contest.fastest is None:
        reason = max(reasons, key=lambda reason: len(reasons[reason]), default="not measured")
        return [printable(f"tune: {names.heading(contest.default)}: no candidate has a time: {reason}")]
    name = names.impl(contest.fastest)
    tied = [names.impl(case) for case in contest.left if case.key != contest.fastest.key]
    rank = "among the fastest" if tied else "the fastest"
    lines = [f"tune: {names.heading(contest.default)}: {name}, {rank} of {len(contest.cases)}"]
    lines.append(f"  {_gain(contest, names)}")
    if tied:
        lines.append(f"  cannot be told from it: {', '.join(tied)}")
    for reason, failed in reasons.items():
        lines.append(f"  left out: {', '.join(names.impl(case) for case, _ in failed)}: {reason}")
    again = f", and {contest.calls_again:,} to confirm it" if contest.calls_again else ""
    lines.append(f"  sampled {contest.calls:,} calls to choose{again}")
    return list(map(printable, lines))


def _gain(contest: Contest, names: Names) -> str:
    """Return what the fastest gains over the default, in words."""
    fastest, default = contest.fastest, names.impl(contest.default)
    if fastest is None or fastest.key == contest.default.key:
        return "that is its default: there is nothing to pin"
    if any(case.key == contest.default.key for case, _ in contest.failed):
        return f"{default} has no time to compare with"
    if contest.gain is None:
        return f"not compared with {default} in paired rounds: too slow for measure.benchmark.max_s, or it failed"
    low_high = bounds(inverse(contest.gain))
    around = f"{low_high[0]:.3f} to {low_high[1]:.3f}" if low_high else "no interval"
    speedup = f"{math.exp(-contest.gain.log):.3f}x ({around}) the speed of {default}, measured again"
    return speedup if contest.gain.word == "faster" else f"{speedup}: {doubt(contest.gain) or 'not shown to be faster'}"


def experiment(case: CaseRecord, name: str, about: str, folder: str) -> str:
    """Return the YAML of an experiment that runs ``case``. ``folder`` is for ``--config-dir``."""
    fields = {key: value for key, value in case.impl.options.items() if not key.startswith(ARGS)}
    if case.impl.commit:
        fields["rev"] = case.impl.commit
    group = "file" if "path" in fields else case.impl.name
    name_if_file = {"name": case.impl.name} if group != case.impl.name else {}
    values = {
        "defaults": [{"override /workload": case.workload.name}, {"override /impl": group}],
        "name": name,
        "default_axes": False,
        "workload": dict(case.workload.fields),
        "impl": {**name_if_file, **fields, "args": case.impl.arguments},
    }
    head = f"# @package _global_\n# {printable(about)}\n#   python -m runner --config-dir {folder} +experiment={name}\n"
    return head + yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
