"""The documents say what the code does: pages are fresh, links lead somewhere, commands and examples work."""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from runner.records.columns import STATUSES, VERDICTS
from runner.records.options import has_option
from runner.records.row import Failed
from runner.report.case_table import usual_columns
from runner.timing.verdict import GRAVITY

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "benchmarks" / "README.md"])
WRITTEN = [page for page in PAGES if page.parent.name != "groups" and page.name != "CHANGELOG.md"]
QUICK = ["measure.benchmark.samples=20", "measure.benchmark.max_s=0.02", "measure.benchmark.warmup_s=0"]
COMMAND = "python -m runner"
README = (ROOT / "README.md").read_text(encoding="utf-8")
FIRST_HOUR, RUNS = ((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("first-hour", "runs"))

# Composes each line of stdin, and prints what became of it: null, or the message the user would see.
COMPOSE = """
import contextlib, gc, io, json, sys
from functools import cache
from runner import config
from runner.config import compose
from runner.device import gpus
from runner.records.schema import BadInput
gc.disable()
compose.Composer = cache(compose.Composer)  # what it has loaded serves all of them
gpus.visible = cache(gpus.visible)
for line in sys.stdin:
    message = None
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            config.plan(json.loads(line))
    except BadInput as error:
        message = f"runner: {error}"
    except SystemExit as error:
        message = f"exit {error.code}" if error.code else None
    print(json.dumps(message))
"""


def code(page: str) -> list[str]:
    """The lines of a page's code blocks, fenced and indented, and its inline code."""
    blocks = re.findall(r"^ *```\w*\n(.*?)^ *```", page, re.DOTALL | re.MULTILINE)
    prose = re.sub(r"^ *```.*?^ *```", "", page, flags=re.DOTALL | re.MULTILINE)
    indented = re.findall(r"^    (.*)$", prose, re.MULTILINE)
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^    .*$", "", prose, flags=re.MULTILINE))
    return [*"\n".join(blocks).splitlines(), *indented, "", *inline]


def commands(page: str) -> list[tuple[str, str | None]]:
    """Each command of the page, with the one-line refusal printed below it, if there is one."""
    found, lines = [], code(page.replace("\\\n", " "))
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        text = re.sub(r"\\\|", "|", line).strip().removeprefix("$ ")
        if re.match(rf"(?:[A-Z_]+=\S+ )*{COMMAND}", text) and not is_subcommand(text):
            found.append((text, below.strip() if below.strip().startswith("runner: ") else None))
    return found


def is_subcommand(command: str) -> bool:
    """``python -m runner verify`` has arguments of its own; ``resume=last`` alone wants a run that is there."""
    first = next(iter(words(command)), "")
    return has_option("cli", first) or first.startswith("resume=")


def words(command: str) -> list[str]:
    """The arguments after ``python -m runner``, as a shell would split them."""
    return shlex.split(command.partition(COMMAND)[2], comments=True)


ALL = {
    f"{page.relative_to(ROOT)}: {command}": (command, refusal)
    for page in PAGES
    for command, refusal in commands(page.read_text(encoding="utf-8"))
}


@pytest.fixture(scope="module")
def answers(project) -> dict[str, str | None]:
    """What each command comes to, all composed in one process."""
    asked = list(dict.fromkeys([command for command, _ in ALL.values()]))
    done = project.program(COMPOSE, stdin="".join(json.dumps(words(command)) + "\n" for command in asked))
    assert done.returncode == 0, done.stderr
    return dict(zip(asked, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize(("command", "refusal"), ALL.values(), ids=ALL.keys())
def test_every_command_of_the_documents_composes_or_is_refused_as_printed(answers, command, refusal):
    assert answers[command] == refusal


def test_a_bad_command_would_be_noticed(project):
    bad = ["workload=mlp workload.cols=3", "workload=softmx -m", "workload=gelu impl=naive,torch", "--bogus"]
    page = "".join(f"```bash\n{COMMAND} {line}\n```\n" for line in bad)
    asked = [words(command) for command, _ in commands(page)]
    assert len(asked) == len(bad)
    done = project.program(COMPOSE, stdin="".join(json.dumps(line) + "\n" for line in asked))
    assert all(json.loads(line) for line in done.stdout.splitlines()), done.stdout
    assert len(done.stdout.splitlines()) == len(bad)


def test_the_readme_has_the_commands_it_promises():
    found = {command for command, _ in commands(README)}
    assert {
        "python -m runner workload=mlp impl=compiled -m",
        "python -m runner workload=gelu impl=naive,torch,compiled,triton -m",
        "python -m runner workload=matmul workload.size=1024,2048,4096 impl=torch workload.dtype=float32,bfloat16 -m",
        "python -m runner workload=mlp workload.layers=2,3,4,5 workload.batch=256 impl=naive,compiled -m",
        "python -m runner workload=softmax workload.rows=4096 workload.cols=1000 impl=torch",
    } <= found


def test_no_page_has_an_empty_block():
    assert not [page for page in (ROOT / "docs").rglob("*.md") if "```text\n\n```" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("script", ["docs/generate.py", "docs/chart.py"])
def test_what_is_generated_is_up_to_date(script):
    check = [sys.executable, script, "--check"]
    done = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_stale_page_is_named(project):
    (project.root / "docs").mkdir()
    (project.root / "docs" / "generate.py").write_text((ROOT / "docs" / "generate.py").read_text())
    assert project.python("docs/generate.py").returncode == 0
    page = project.root / "docs" / "groups" / "impl.md"
    page.write_text(page.read_text() + "more\n")
    done = project.python("docs/generate.py", "--check")
    assert done.returncode == 1
    assert done.stderr == "docs/groups/impl.md is stale; run: python docs/generate.py\n"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        assert other.exists(), f"{page.name} links to {target}"
        assert other.is_relative_to(ROOT), f"{page.name} links to {target}, outside the project"
        if anchor:
            titles = re.findall(r"^#+ (.*)$", other.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 220


@pytest.mark.parametrize("page", [README, FIRST_HOUR], ids=["README", "first-hour"])
def test_a_printed_table_has_the_columns_of_today(page):
    headings = re.findall(r"^ +implementation   .*$", page, re.MULTILINE)
    known = {"implementation", "verdict", *(column.title for column in usual_columns().values())}
    assert headings
    assert {title for line in headings for title in re.split(r" {3,}", line.strip())} <= known


def test_the_first_hours_softmax_is_wrong_at_first_and_then_right(project):
    names = ("first.py", "second.py")
    printed = re.findall(r"```python\n(import torch.*?)```", FIRST_HOUR, re.DOTALL)
    for name, text in zip(names, printed, strict=True):
        (project.root / name).write_text(text, encoding="utf-8")
    paths = "impl.path=" + ",".join(f"{name}:softmax" for name in names)
    rows = project.rows(
        "workload=softmax", "impl=file", paths, "workload.cols=100", "workload.rows=33", *QUICK, "-m", code=1
    )
    assert [row["status"] for row in rows] == ["wrong", "ok"]


def test_the_first_hours_own_operation_finds_the_mistake_in_it(project):
    words = ("workload=layer_norm.py", "impl=reference,fused,one_pass", "workload.shape=[33,64]", *QUICK, "-m")
    assert [row["status"] for row in project.rows(*words, code=1)] == ["ok", "ok", "wrong"]


def test_the_pages_own_yaml_gives_a_kernel_its_name(project):
    grid = ["--config-dir", "mine", "workload=small", "impl=torch,my_softmax", "workload.cols=100", "-m"]
    rows = project.rows(*grid, *QUICK)
    assert [(row["case"]["impl"]["name"], row["status"]) for row in rows] == [("torch", "ok"), ("my_softmax", "ok")]


def test_the_pages_own_workload_runs_and_a_wrong_kernel_for_it_is_found_out(project):
    """Over its own sweep; and its tolerance is narrower than the error of leaving one element out."""
    (project.root / "kernels" / "row_sum" / "leaves_one_out.py").write_text("def row_sum(x): return x[:, 1:].sum(-1)\n")
    rows = project.rows("workload=row_sum", "impl=torch,leaves_one_out", "workload.rows=33", *QUICK, "-m", code=1)
    found = {(row["case"]["impl"]["name"], row["case"]["workload"]["cols"]): row["status"] for row in rows}
    assert found == {
        (name, cols): status
        for name, status in {"torch": "ok", "leaves_one_out": "wrong"}.items()
        for cols in (256, 1024, 4096)
    }


@pytest.fixture(scope="module")
def two_variants(project) -> Path:
    """The folder of a run of two variants of one implementation, at two sizes."""
    (project.root / "other.py").write_text((project.root / "my_softmax.py").read_text())
    sizes = ["workload=softmax", "workload.rows=33", "workload.cols=100,200"]
    return project.run(*sizes, "impl=file", "impl.path=my_softmax.py:softmax,other.py:softmax", *QUICK, "-m")


def test_the_pages_own_lines_of_pandas_tell_variants_apart(project, two_variants):
    text, short = (re.findall(r"```python\n(import runner\n.*?)```", page, re.DOTALL)[0] for page in (RUNS, README))
    assert text.startswith(short)
    for day in ("2025-01-30", "2025-01-31"):
        shutil.copytree(two_variants, project.root / "outputs" / day / "12-00-00-gelu")
    shown = re.sub(r"^(\w+\.pivot.*)$", r"print(\1.to_csv(sep=';'))", text, flags=re.MULTILINE)
    done = project.program(shown)
    assert done.returncode == 0, done.stderr
    variants, runs = ([line.split(";") for line in table.splitlines()] for table in done.stdout.split("\n\n")[:2])
    assert variants[0] == ["workload.cols", "file(my_softmax.py:softmax)", "file(other.py:softmax)"]
    assert [line[0] for line in variants[1:]] == ["100", "200"]
    assert runs[0] == ["workload.cols", "implementation", "2025-01-30/12-00-00-gelu", "2025-01-31/12-00-00-gelu"]
    assert [line[:2] for line in runs[1:]] == [[size, name] for size in ("100", "200") for name in variants[0][1:]]
    times = [us for line in variants[1:] for us in line[1:]]
    assert [line[2] for line in runs[1:]] == [line[3] for line in runs[1:]] == times


PYTHON = [line for page in PAGES for line in code(page.read_text(encoding="utf-8")) if line.startswith("python -c")]


@pytest.fixture(scope="module")
def failed(project) -> Path:
    """The folder of a run whose one case raises."""
    (project.root / "raises.py").write_text("def gelu(x): raise ValueError('my own')\n")
    small = ["workload.rows=8", "workload.cols=8"]
    return project.run("impl=file", "impl.path=raises.py:gelu", *small, *QUICK, code=1)


@pytest.mark.parametrize("command", PYTHON)
def test_a_line_of_python_reads_the_folder_of_a_run_from_within_it(project, failed, command):
    done = replace(project, root=failed).python(*shlex.split(command)[1:])
    assert done.returncode == 0, done.stderr
    assert "ValueError: my own" in done.stdout


def test_there_is_such_a_line():
    assert PYTHON


def test_the_pages_own_measurement_gives_its_figure(project):
    """Beside the benchmark's: of normal numbers GELU leaves some next to 0, and fewer are nearer still."""
    gelu = ["workload=gelu", "workload.rows=33", "workload.cols=100", "measure=[benchmark,sparsity]", *QUICK]
    row, least = project.rows(*gelu, "measure.sparsity.below=0.1,1e-300", "-m")
    assert row["status"] == least["status"] == "ok"
    assert row["metrics"].keys() & {"wall_us", "gpu_us"}
    assert 100 > row["metrics"]["small_pct"] > least["metrics"]["small_pct"]


@pytest.mark.long
def test_the_pages_own_workload_and_a_naive_kernel_need_no_edit_of_a_test(project):
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("conftest.py", "made_runs.py", "preloaded.py", "config", "records", "kernels", "worker"):
        copy = shutil.copytree if (ROOT / "tests" / name).is_dir() else shutil.copy
        options = {"ignore": ignored} if copy is shutil.copytree else {}
        (project.root / "tests").mkdir(exist_ok=True)
        copy(ROOT / "tests" / name, project.root / "tests" / name, **options)
    shutil.copy(ROOT / "pyproject.toml", project.root)
    kernel = "def row_sum(x, *, dim=-1):\n    return x.sum(dim)\n"
    (project.root / "kernels" / "row_sum" / "naive.py").write_text(kernel, encoding="utf-8")
    tests = ["tests/kernels/test_every_kernel.py", "tests/config/test_mistakes.py", "tests/records/test_options.py"]
    chosen = "row_sum or every_workload or another_workload or several_other or file_name"
    done = project.python("-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", *tests, "-k", chosen)
    assert done.returncode == 0, done.stdout + done.stderr
    for dtype in ("float32", "bfloat16"):
        assert re.search(rf"PASSED .*\[cpu-row_sum-naive-{dtype}\]", done.stdout), done.stdout


def test_a_measurement_that_is_no_dataclass_is_one_sentence(project):
    source = (project.root / "runner" / "measure" / "sparsity.py").read_text(encoding="utf-8")
    plain = source.replace("@dataclass(frozen=True)\n", "").replace("Sparsity", "Plain")
    (project.root / "runner" / "measure" / "plain.py").write_text(plain, encoding="utf-8")
    (project.root / "conf" / "measure" / "plain.yaml").write_text("# @package measure.plain\nname: plain\n")
    done = project.python("-m", "runner", "log=none", "measure=[benchmark,plain]")
    assert (done.returncode, done.stderr) == (
        2,
        "runner: measure=plain: class Plain in runner/measure/plain.py must be a dataclass "
        "whose fields are those of its YAML\n",
    )


def test_every_verdict_and_every_status_is_explained():
    assert tuple(VERDICTS) == GRAVITY
    assert {*STATUSES} == {"ok", "unsupported", "skipped", *get_args(Failed)}


def test_each_row_of_the_lectures_has_a_command():
    text = (ROOT / "docs" / "lecture.md").read_text(encoding="utf-8")
    rows = [
        line.split(" | ") for line in text.splitlines() if re.match(r"\| (?!---|the (?:lectures|assignment))", line)
    ]
    assert len(rows) >= 42
    assert not [typed for _, typed, *_ in rows if not typed.startswith(f"`{COMMAND} ")]


LECTURE = (ROOT / "docs" / "lecture.md").read_text(encoding="utf-8")
ASSIGNMENT = [
    command for command, _ in commands(LECTURE.partition("## The course's assignment")[2].partition("\n## ")[0])
]


def smaller(size: int) -> int:
    """A size that is as small as a CPU wants it, and another for another."""
    return min(size, 3 + size // 64, 3 + math.isqrt(size))


def two_of(word: str) -> str:
    """An override with the first and the last of its sizes, which fill the same columns as those between them."""
    return re.sub(r"=(\d+),(?:\d+,)+(\d+)$", r"=\1,\2", word)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=[pytest.mark.long] if re.search("by_hand|compiled", command) else [])
        for command in ASSIGNMENT
    ],
)
def test_each_command_of_the_assignment_fills_the_columns_that_it_asks_for(project, command, monkeypatch):
    if "by_hand" in command:
        monkeypatch.setenv("COLD", "1")  # its script in a process that is forked does not end
    tiny = [
        re.sub(r"\b\d+\b", lambda number: str(smaller(int(number[0]))), two_of(word))
        if word.startswith("workload.")
        else word
        for word in words(command)
    ]
    short = ["measure.benchmark.max_s=0.01", "measure.benchmark.paired_rounds=0"]
    timed = "measure=" not in command or "benchmark" in command
    rows = project.rows(*tiny, "device=cpu", "quick=true", "log=none", *(short if timed else []))
    columns = [name for word in tiny if word.startswith("columns=") for name in word[8:].split(",")]
    assert {row["status"] for row in rows} == {"ok"}
    for column in columns:
        assert any(row["metrics"].get(column) is not None for row in rows) or column in DERIVED


DERIVED = {"time_us", "tflops"}  # by a reader of rows


def test_the_glossary_is_alphabetical():
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    terms = [term.lower() for term in re.findall(r"^\*\*`?(.+?)`?[.,*]", text, re.MULTILINE)]
    assert terms == sorted(set(terms))


OWN = {"gpu_sum_us", "gpu_busy_us", "gpu_span_us"}  # columns of a file, not of a row
OWN |= {"warm_us", "paired_us"}  # fields of ``runner.Timing`` and of a comparison


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_every_figure_and_field_that_a_page_names_is_there(page):
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"`(?:\w+\.)*(\w+_(?:us|pct|s|bytes|slowdown|breaks|measured|kernels|repeatable))`", text))
    known = "\n".join(
        place.read_text(encoding="utf-8") for place in [*ROOT.glob("conf/**/*.yaml"), ROOT / "docs/columns.md"]
    )
    assert named <= OWN | set(re.findall(r"\w+", known))


@pytest.mark.parametrize("page", [*PAGES, ROOT / "LICENSE"], ids=lambda page: page.name)
def test_no_document_names_a_path_of_one_machine(page):
    assert not re.search(r"(?<![\w.])/(?:home|work|root|tmp|Users)/", page.read_text(encoding="utf-8"))
