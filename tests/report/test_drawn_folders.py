"""Folders of runs that are damaged at random: every reader of them answers in a sentence, and soon."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import warnings
from contextlib import suppress

import pytest

from runner import cli
from runner.api import frame
from runner.findings.kept_files import read_kept
from runner.records.bad_input import BadInput
from runner.records.paired_rounds import PairedRounds
from runner.records.untrusted import STEERS
from runner.store import journal, run_folder

DRAWS, LIMIT_S = 12, 60  # the limit is for a reader that would never end, on a busy machine too
FILES = (*[journal.NAME] * 3, *[run_folder.PLAN] * 2, run_folder.ENVIRONMENT, "files/x/profile/summary.txt")
NUMBERS = (-1, 0, -0.0, 5e-324, 1e300, float("nan"), float("inf"), 2**63, 10**30, 10**400)
FAR = "9999-12-31T23:59:59+9959"  # no clock has it
WORDS = ("", "fast", "ok", "\x1b[31m\u202e", "x" * 5000, "\ud800", "a\nb", "../../x", "/dev/zero", "=1+1", FAR)
OTHERS = (None, True, [], {}, [[[[1]]]], {"a": {"b": [None]}}, {"name": "torch", "fields": {}}, [None] * 50)
BYTES = (b"\xff\xfe", b"\0" * 100, b"\x1b[31m", b"[" * 100_000, b'{"a":' * 50_000, b"9" * 99_999, b"\n" * 500, b"1e9")
NAMES = ("10-11-12-\x1b[31mred", "10-11-12-\x9bx", "x", "99-99-99-x", "10-11-12-" + "y" * 200, "10-11-12-@team")


def places(value, path=()):
    """The path of every value within ``value``."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(inner, (*path, key))


def with_odd_values(text, draw):
    """A JSON record with some of its values replaced or left out."""
    record = json.loads(text)
    for path in draw.sample(list(places(record)), k=1):
        inner = record
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = draw.choice(draw.choice((NUMBERS, WORDS, OTHERS)))
        if draw.random() < 0.1:
            del inner[path[-1]]
    return json.dumps(record).encode()


def with_odd_records(path, draw):
    lines = [path.read_bytes()] if path.suffix == ".json" else path.read_bytes().splitlines()
    for place in draw.sample(range(len(lines)), k=min(len(lines), draw.choice((1, 3)))):
        lines[place] = with_odd_values(lines[place], draw)
    path.write_bytes(b"\n".join(lines) + b"\n")


def with_odd_bytes(path, draw):
    content, place = path.read_bytes(), draw.randrange(1, path.stat().st_size)
    path.write_bytes(content[:place] + draw.choice((b"", draw.choice(BYTES) + content[place:])))


def in_another_order(path, draw):
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(draw.choices(lines, k=draw.choice((1, len(lines), 20 * len(lines))))))


def of_another_kind(path, draw):
    path.unlink()
    kinds = (
        lambda: os.mkfifo(path),
        lambda: path.symlink_to(path.name),
        lambda: path.symlink_to("/dev/zero"),
        path.mkdir,
        lambda: (path.touch(), os.truncate(path, 2**31)),
        lambda: path.write_bytes(b"\n" * 300_000),
        lambda: None,
    )
    draw.choice(kinds)()


def of_another_format(path, draw):
    first, *others = path.read_bytes().splitlines()
    changed = json.dumps(json.loads(first) | {"format": draw.choice((*NUMBERS, *OTHERS, 2, "1", "x"))}).encode()
    path.write_bytes(b"\n".join([changed, *others]) + b"\n")


DAMAGES = (with_odd_records, with_odd_records, with_odd_bytes, in_another_order, of_another_kind, of_another_format)


@pytest.fixture
def good(made, tmp_path):
    """The folder of a run of two workloads, with paired rounds and a summary."""
    name = "files/x/profile/summary.txt"
    rows = [row for row in made.sweep() if row.case.workload.fields.get("cols") != 256]
    folder = made.finished(tmp_path / "good" / "2025-01-30" / "10-11-12-good", rows)
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text("a summary\n")
    pair = [row.case.key for row in rows[:2]]
    with journal.Journal(folder) as file:
        file.rounds(PairedRounds({key: [1.0, 1.1] * 5 for key in pair}, dict.fromkeys(pair, "perf_counter")))
    lines = (folder / journal.NAME).read_bytes().replace(b'"files":[]', f'"files":["{name}"]'.encode())
    session = b'{"record":"session","pid":1,"host":"x","started":"2025-01-30T10:11:12+0900","format":1}\n'
    (folder / journal.NAME).write_bytes(session + lines)
    return folder


def commands(good, folder, outputs, draw):
    yield "show", folder
    yield "show", folder, "--fastest"
    yield "show", folder, "--format", draw.choice(("csv", "json", "md", "latex"))
    yield "list", f"output_dir={outputs}"
    yield "history", f"output_dir={outputs}"
    yield "compare", good, folder
    yield "compare", folder, "--by", draw.choice(("cols", "impl", "dtype"))
    yield "gate", "--baseline", folder, good
    yield "report", draw.choice(("md", "html")), folder, "--output", outputs / "report"
    yield "plan", f"resume={folder}"


@pytest.fixture
def in_time():
    """End the test with TimeoutError if a reader does not end."""

    def late(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    yield lambda: signal.alarm(LIMIT_S)
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


SEEDS = [3, 23, *(pytest.param(seed, marks=pytest.mark.long) for seed in (71, 5708))]


@pytest.mark.parametrize("seed", SEEDS)
def test_readers_of_a_damaged_folder_answer_in_a_sentence(good, tmp_path, capsys, in_time, seed):
    draw = random.Random(seed)
    codes = []
    for count in range(DRAWS):
        outputs = tmp_path / str(count)
        folder = outputs / "2025-01-31" / (draw.choice(NAMES) if draw.random() < 0.2 else "10-11-12-both")
        shutil.copytree(good, folder)
        damage, path = draw.choice(DAMAGES), folder / draw.choice(FILES)
        if damage is of_another_format or (damage is with_odd_records and path.suffix == ".txt"):
            path = folder / journal.NAME
        damage(path, draw)
        for words in commands(good, folder, outputs, draw):
            in_time()
            code = cli.main([*map(str, words)])
            out, err = capsys.readouterr()
            said = f"draw {count}: {damage.__name__} {path.name}: {words}: {err}"
            assert code in (0, 1, 3) or (code == 2 and err.startswith("runner: ")), said
            assert not STEERS.search(out + err), said
            codes.append(code)
        with suppress(BadInput), warnings.catch_warnings(action="ignore"):
            frame.load(folder)
    assert {0, 2} <= {*codes}


def test_of_a_text_of_gigabytes_the_beginning_is_read(tmp_path):
    path = tmp_path / "summary.txt"
    path.write_text("begin\n")
    os.truncate(path, 2**33)
    assert read_kept(path, 8) == "begin\n\0\0"
