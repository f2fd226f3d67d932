"""Choose lines of past runs: ``--where``, ``--sort``."""

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from ..measure.columns import known_columns, meant
from ..records.bad_input import BadInput, choices
from ..records.figures import as_typed
from ..records.grouping import grouped
from ..records.schema import size
from .flat import Records, flat_records
from .lines import Line
from .run import Run

PREFIXES = ("", "workload.", "impl.")
COMMA = re.compile(r",(?![^(\[]*[)\]])")  # not within compiled(of=naive, mode=default) and [a,b]
MOST_NAMED = 12  # values in a message
EMPTY = ("", "null", "none")


def where(records: Records, conditions: Sequence[str], only: Sequence[str] = (), option: str = "--where ") -> list[int]:
    """Return the places of the ``records`` that fulfil ``conditions``, each ``name=value,name=value1,value2``.

    Several values of a name are alternatives. Names are those of rows, or ``only`` those if they are given. A message
    names the ``option``, which stands before each condition.

    Raises:
        BadInput: a name is unknown, a condition has no ``=``, or no record fulfils all of them.

    """
    wanted = _parsed(conditions, option)
    if not records:  # a run without rows has no known columns
        return []
    if unknown := [name for name in wanted if only and name not in only]:
        raise BadInput(f"{option}{unknown[0]}: no such column; {choices(unknown[0], only)}")
    names = {name: name if only else _column(records, name, f"{option}{name}") for name in wanted}
    places = [
        place
        for place, record in enumerate(records)
        if all(any(_is(record.get(names[name]), value) for value in values) for name, values in wanted.items())
    ]
    if not places:
        raise BadInput(option + _nothing(records, wanted, names))
    return places


def chosen_lines(runs: Sequence[Run], conditions: Sequence[str], sort: str | None = None) -> list[list[Line]]:
    """Return the lines of each run that fulfil ``conditions``, in the order of the column ``sort``. Raises BadInput."""
    if not (conditions or sort):
        return [run.lines for run in runs]
    entries = [
        (run, line, record | {"impl.rev": line.case.flat["impl.rev"]})  # as it was typed, without the commit
        for run in runs
        for line, record in zip(run.lines, flat_records(run.lines), strict=True)
    ]
    if conditions:
        entries = [entries[place] for place in where([record for *_, record in entries], conditions)]
    chosen = []
    for run in runs:
        lines, records = [line for of, line, _ in entries if of is run], [each for of, _, each in entries if of is run]
        order = _order(records, [line.case.problem for line in lines], sort) if sort else range(len(lines))
        chosen.append([lines[place] for place in order])
    return chosen


def _parsed(conditions: Iterable[str], option: str) -> dict[str, list[str]]:
    """Return the values of each name. A word without ``=`` is another value of the name before it."""
    wanted: dict[str, list[str]] = {}
    name = ""
    for word in (word.strip() for text in conditions for word in COMMA.split(text)):
        before, equals, value = word.partition("=")
        if equals and before.replace(".", "").replace("_", "").isalnum():
            name, word = before, value
        elif not name:
            raise BadInput(f"{option}{word}: no condition; write {option}workload=gelu,dtype=bfloat16")
        wanted.setdefault(name, []).append(word)
    return wanted


def _nothing(records: Records, wanted: Mapping[str, Sequence[str]], names: Mapping[str, str]) -> str:
    """Return the reason why no record fulfils the conditions ``wanted``."""
    for name, values in wanted.items():
        there = list(dict.fromkeys(_text(record.get(names[name])) for record in records))
        if not any(_is(record.get(names[name]), value) for record in records for value in values):
            near = there if len(there) <= MOST_NAMED else get_close_matches(values[0], there, 3) or there[:3]
            return f"{name}={','.join(values)}: no row has it; {choices(values[0], near)}"
    conditions = ",".join(f"{name}={','.join(values)}" for name, values in wanted.items())
    return f"{conditions}: no row fulfils all of it; leave out one of the conditions"


def _text(value: object) -> str:
    return as_typed(None if value == "" else value)


def _is(value: object, word: str) -> bool:
    """Return whether ``word``, as typed, means ``value``: a word may be a pattern, such as ``*H200*``."""
    if value is None or value == "":
        return word.lower() in EMPTY
    if isinstance(value, bool):
        return word.lower() == _text(value)
    if isinstance(value, int | float):
        try:
            return float(word) == value
        except ValueError:
            return size(word) == value
    return word == _text(value) or fnmatchcase(str(value), word)


def _column(records: Records, name: str, option: str) -> str:
    """Return the column that ``name`` means; ``workload.`` and ``impl.`` may be left out. Raises BadInput."""
    there = {key for record in records for key in record}
    names = [prefix + name for prefix in PREFIXES if prefix + name in there]
    if names[:1] == [name] or len(names) == 1:
        return names[0]
    if names:
        raise BadInput(f"{option}: there are {' and '.join(names)}; write one of them")
    columns = known_columns()
    if name in columns:
        return name  # which no row has
    short = {key.partition(".")[2] if key.startswith(PREFIXES[1:]) else key for key in there} | {*columns}
    raise BadInput(f"{option}: no such column; {meant(name, sorted(short))}rows.csv has them all")


def _order(records: Records, problems: Sequence[str], by: str) -> list[int]:
    """Return the places of ``records`` in the order of the column ``by``, ``-column`` for the highest first.

    Records of one of ``problems`` stay together. Problems are sorted if the column is the same in all records of each,
    else the records within each problem. Records without a value come last. Raises BadInput.
    """
    name = _column(records, by.removeprefix("-"), f"--sort {by}") if records else ""
    groups = grouped(range(len(problems)), lambda place: problems[place])

    def sort(places: Iterable[int]) -> list[int]:
        known = [place for place in places if records[place].get(name) not in (None, "")]
        ranked = sorted(known, key=lambda place: _rank(records[place][name]), reverse=by.startswith("-"))
        return [*ranked, *(place for place in places if place not in {*known})]

    if all(len({_text(records[place].get(name)) for place in places}) == 1 for places in groups.values()):
        first = {places[0]: places for places in groups.values()}
        return [place for head in sort(list(first)) for place in first[head]]
    return [place for places in groups.values() for place in sort(places)]


def _rank(value: object) -> tuple[int, Any]:
    """Return a sort key: numbers by their values, before words."""
    return (0, value) if isinstance(value, int | float) else (1, str(value))
