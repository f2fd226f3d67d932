"""The decision of ``runner gate`` as text, for a terminal and for a pull request."""

import math
from collections import Counter
from collections.abc import Sequence

from ..findings.gate import FAIL, JUDGED, GateDecision, Sides, Word, exit_code
from ..records.grouping import grouped
from ..records.plain_text import printable
from .table import Table, code, escaped, markdown_rows


def decision_line(decisions: Sequence[GateDecision], sides: Sides, max_slowdown: float) -> str:
    """Return the decision in one line."""
    counts = Counter[str](decision.word for decision in decisions)
    share = f"{100 * max_slowdown:.3g} %"
    judged = sum(counts[word] for word in JUDGED)
    measured = f"{judged} compared with {sides.before}"
    if skipped := counts["skipped"]:
        measured += f", {skipped} skipped"
    if ended := exit_code(decisions):
        texts = {"slower": f"slower by more than {share}", **{word: word for word in ("wrong", "failing", "unclear")}}
        parts = ", ".join(f"{counts[word]} {text}" for word, text in texts.items() if counts[word])
        return f"{'FAIL' if ended == FAIL else 'UNCLEAR'}: {parts or 'nothing could be compared'} ({measured})"
    if counts.keys() == {"skipped"}:
        return f"PASS: nothing that these cases run has changed ({measured})"
    return f"PASS: nothing is slower by more than {share} ({measured})"


ORDER: tuple[Word, ...] = ("wrong", "failing", "slower", "unclear", "removed", "new", "not judged", "ok", "skipped")


def terminal_lines(decisions: Sequence[GateDecision], sides: Sides, max_slowdown: float) -> list[str]:
    """Return the lines to print: one for each problem that is not ok, counts of the others, the decision."""
    by_word = grouped(decisions, lambda decision: decision.word)
    lines = [f"gate: {sides.after} against {sides.before}"]
    for decision in (decision for word in ORDER[:-2] for decision in by_word.get(word, ())):
        text = "; ".join(filter(None, (decision.change, decision.reason)))
        lines.append(printable(f"  {decision.word}: {decision.pair.name}: {text}"))
    if passed := by_word.get("ok"):
        near = max(passed, key=lambda decision: decision.pair.ratio.log if decision.pair.ratio else -math.inf)
        lines.append(printable(f"  ok: {len(passed)}; nearest to the limit: {near.pair.name}, time {near.change}"))
    skipped = Counter(decision.reason for decision in by_word.get("skipped", ()))
    lines += [f"  skipped: {count}, {reason}" for reason, count in skipped.items()]
    return [*lines, decision_line(decisions, sides, max_slowdown)]


def comment(decisions: Sequence[GateDecision], sides: Sides, max_slowdown: float, command: str = "") -> str:
    """Return the summary as Markdown: the decision, then what caused it as a table, then all the rest, folded."""
    ordered = sorted(decisions, key=lambda decision: ORDER.index(decision.word))
    shown = [decision for decision in ordered if decision.word in ORDER[:4]]
    rest = ordered[len(shown) :]
    head, _, text = decision_line(decisions, sides, max_slowdown).partition(": ")
    parts = [f"**{head}**: {escaped(text)}", *([_table(shown)] if shown else [])]
    if rest:
        parts.append(f"<details><summary>{len(rest)} more</summary>\n\n{_table(rest)}\n\n</details>")
    about = f"Time of {code(sides.after)} over {code(sides.before)}, minus 1 or as a factor, with its 95 % interval."
    return "\n\n".join([*parts, about + (f" Command: {code(command)}" if command else "")]) + "\n"


def _table(decisions: Sequence[GateDecision]) -> str:
    rows = [[each.word, each.pair.name, each.change, printable(each.reason)] for each in decisions]
    heads = ["", "problem", "change of time", ""]
    table = Table("", heads, [("", rows)], left=frozenset({0, 1, 3}), code=frozenset({1}))
    return "\n".join(markdown_rows(table))
