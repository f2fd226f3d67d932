"""``runner show``: the table of a past run again, some of it, in another order or format; ``table.md``."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from runner import cli
from runner.cli import show as command
from runner.cli.run import conclude
from runner.device.processes import environment
from runner.records.case import Choice
from runner.records.columns import STATUSES, TERMS, VERDICTS
from runner.records.paired_rounds import PairedRounds
from runner.records.plan import Plan
from runner.report import flat_formats
from runner.report.flat_formats import RECORDS
from runner.report.table import WRITERS
from runner.store import journal, run_folder
from runner.store.session import Session


@pytest.fixture
def show(capsys):
    """``show("last", "--fastest")``: what it prints; with an exit ``code`` other than 0 what it prints on stderr."""

    def call(*words, code=0):
        assert cli.main(["show", *map(str, words)]) == code
        printed = capsys.readouterr()
        return printed.err if code else printed.out

    return call


def race(made, winners, dtype="float32", others=("torch",)):
    """Rows and paired rounds of ``{cols: {impl: us}}``; ``others`` are in each."""
    rows = [
        made.timed(
            made.case("gelu", impl, {"cols": cols, "dtype": dtype}), us, samples=20, converged=True, interval_pct=0.1
        )
        for cols, times in winners.items()
        for impl, us in times.items()
    ]
    problems = {}
    for row in rows:
        problems.setdefault(row.case.problem, []).append(row)
    wave = (1.0, 1.001) * 5
    rounds = [
        PairedRounds(
            {row.case.key: [row.time_us * one for one in wave] for row in some},
            {row.case.key: "graph_timestamps" for row in some},
        )
        for some in problems.values()
    ]
    return rows, rounds


@pytest.fixture
def raced(made, tmp_path):
    """``raced({64: {"torch": 2.0, "triton": 1.0}})``: the folder of such a run."""

    def build(*races, name="race"):
        found = [race(made, one) if isinstance(one, dict) else race(made, *one) for one in races]
        folder = made.finished(
            tmp_path / "outputs" / "2025-02-01" / f"00-00-00-{name}", [r for rows, _ in found for r in rows]
        )
        with journal.Journal(folder) as file:
            for _, rounds in found:
                for one in rounds:
                    file.rounds(one)
        return folder

    return build


H200 = {"name": "NVIDIA H200", "sms": 132, "max_memory_clock_mhz": 3201, "memory_bus_bits": 6144}


def test_properties_of_the_device_are_columns_where_they_are_asked_for(show, made, tmp_path):
    """Each row has those of its own GPU, and one of a CPU those of the CPU."""
    gpus = {"GPU-1": H200, "GPU-2": {"name": "NVIDIA H100", "sms": 114}}
    rows = [
        replace(made.timed(made.case("gelu", impl, {"cols": 8}), 2.0, gpu_uuid=uuid), device=device)
        for impl, device, uuid in (
            ("naive", "NVIDIA H200", "GPU-1"),
            ("torch", "NVIDIA H100", "GPU-2"),
            ("compiled", "cpu", ""),
            ("triton", "NVIDIA H20", "GPU-3"),
        )
    ]
    folder = made.finished(tmp_path / "outputs" / "2025-02-01" / "00-00-00-gpus", rows)
    cpu = {"gpu": None, "cpu_cores": 8, "cpu_l2_bytes": 2**21}
    run_folder.write_environment(
        folder, {"worker": cpu, "workers": {uuid: {"gpu": gpu, "cpu_cores": 9} for uuid, gpu in gpus.items()}}
    )
    text = show(folder, "columns=sms,memory_bus_gbps,cores,l2_bytes", "--format", "csv")
    cells = {
        line["impl"]: [line[name] for name in ("sms", "cores", "l2_bytes")]
        for line in csv.DictReader(io.StringIO(text))
    }
    assert cells == {
        "naive": ["132", "", ""],
        "torch": ["114", "", ""],
        "compiled": ["", "8", str(2**21)],
        "triton": ["", "", ""],
    }
    assert "4.917 TB/s" in show(folder, "columns=sms,memory_bus_gbps")
    assert "sms" not in show(folder, "--format", "csv")
    assert "no such column 'smss'; did you mean sms? docs/columns.md" in show(folder, "columns=smss", code=2)


def heads(text):
    return next(line.split() for line in text.splitlines() if line.startswith(" implementation"))


def order(text):
    """The first word of each line between the rule and the footnotes, without marks."""
    lines = text.split("──\n")[1].split("\n\n")[0].splitlines()
    return [line.strip().removeprefix("★ ").removeprefix("≈ ").split("   ")[0] for line in lines]


def test_it_is_what_the_run_printed_at_its_end_and_table_md_has_the_same_cells(made, tmp_path, capsys, show):
    rows = [row for row in made.sweep() if row.case.impl.name != "compiled"]
    plan = Plan(
        cases=(
            *(row.case for row in rows),
            made.case("gelu", "torch", {"rows": 8, "cols": 5, "dtype": "float32", "tf32": False}),
        ),
        name="both",
        baseline="naive",
        output_dir=str(tmp_path / "outputs"),
        launcher=Choice("local", {}),
        log=(),
    )
    with Session(plan, ["workload=x"], lambda: None) as session:
        for row in reversed(rows):  # as several GPUs end in an order of their own
            session.done(row)
        conclude(session, {})
    at_the_end = capsys.readouterr().out
    assert "13 cases: 11 ok, 1 wrong, 1 not run." in at_the_end
    assert show("last", f"output_dir={tmp_path}/outputs") == show(session.folder) == at_the_end
    written = (session.folder / "table.md").read_text()
    assert show(session.folder, "--format", "md") == written
    in_markdown = [line[2:-2].replace("**", "").split(" | ") for line in written.splitlines() if line[:1] == "|"]
    for line in (line for line in at_the_end.splitlines() if line.endswith(("  ok", "  wrong"))):
        assert line.split() in [" ".join(cells[1:]).split() for cells in in_markdown]
    assert "- gelu cols=1000 naive: wrong: 3 of 8192 elements beyond tolerance" in written


def test_columns_are_those_of_a_run_and_checked_like_them(folder, show):
    assert heads(show(folder, "columns=samples,time_us")) == ["implementation", "samples", "time_us", "verdict"]
    near = "did you mean gpu_us or gap_us or ncu_gpu_us? docs/columns.md lists them all"
    assert show(folder, "columns=gpu_uss", code=2) == f"runner: columns: no such column 'gpu_uss'; {near}\n"
    assert "did you mean samples? " in show(folder, "columns=samplez", code=2)  # of the rows and declared: named once
    assert show(folder, "columns=n", code=2).endswith("no such column 'n'; docs/columns.md lists them all\n")
    near = "did you mean columns=? One of: --columns, "
    assert show(folder, "colums=a", code=2).startswith(f"runner: colums: not an argument of show; {near}")
    assert heads(show(folder, "--columns", "samples,time_us")) == heads(show(folder, "columns=samples,time_us"))
    journal_file = folder / "rows.jsonl"
    journal_file.write_text(journal_file.read_text().replace('"samples":', '"of_a_newer_version":'))
    assert "of_a_newer_version" in heads(show(folder, "columns=of_a_newer_version"))


@pytest.mark.parametrize(
    ("conditions", "labels"),
    [
        (["workload=matmul,size=64"], ["matmul size=64", "naive", "torch", "compiled"]),
        (["workload.size=64", "--where", "impl=torch"], ["matmul size=64", "torch"]),
        (["cols=1000,256,impl=torch"], ["gelu cols=256", "torch", "gelu cols=1000", "torch"]),
        (["cols=4k,fastest=yes"], ["gelu cols=4096", "compiled"]),
        (["status=wrong,error"], ["gelu cols=1000", "naive", "matmul size=1024", "compiled"]),
        (
            ["tf32=true,impl=c*"],
            ["matmul size=64", "compiled", "matmul size=1024", "compiled", "matmul size=128", "compiled"],
        ),
        (["size=null,impl=compiled,cols=256"], ["gelu cols=256", "compiled"]),
    ],
)
def test_where_chooses_rows_by_any_column(folder, show, conditions, labels):
    text = show(folder, "--where", *conditions)
    assert order(text) == labels
    assert f"{sum(' ' not in label for label in labels)} of 18 cases: " in text


def test_where_takes_a_list_as_it_is_typed(made, tmp_path, show):
    lists = [made.timed(made.case("own", "torch", {"dims": dims}), 10.0) for dims in ((8, 16), (32, 64))]
    made.finished(tmp_path / "o" / "2026-01-31" / "10-11-12-x", lists)
    text = show(tmp_path / "o" / "2026-01-31" / "10-11-12-x", "--where", "dims=[8,16]")
    assert "dims=[8,16]" in text
    assert "dims=[32,64]" not in text


def test_where_takes_a_revision_as_it_was_typed(made, tmp_path, show):
    revisions = {"rev": f"v1@{40 * 'a'}"}, {}
    revised = [made.timed(made.case("gelu", "triton", {"cols": 8}, **revision), 1.0) for revision in revisions]
    folder = made.finished(tmp_path / "outputs" / "2025-01-31" / "10-11-12-gelu", revised)
    for name in ("v1", "worktree"):
        assert order(show(folder, "--where", f"rev={name}")) == ["gelu", f"triton@{name}"]


def test_a_speed_up_is_still_that_of_the_whole_run(folder, show):
    whole, some = (show(folder, *words) for words in ([], ["--where", "impl=compiled,cols=256"]))
    (line,) = [line.split() for line in some.splitlines() if "★" in line]
    assert line in [one.split() for one in whole.splitlines()]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--where", "dtyp=float32"],
            "--where dtyp: no such column; did you mean dtype or dirty? rows.csv has them all",
        ),
        (["--where", "impl=tritn"], "--where impl=tritn: no row has it; one of: compiled, naive, torch"),
        (["--where", "impl=nave"], "--where impl=nave: no row has it; did you mean naive? One of: "),
        (["--where", "workload=matmul,cols=256"], "--where workload=matmul,cols=256: no row fulfils all of it"),
        (["--where", "gelu"], "--where gelu: no condition; write --where workload=gelu,dtype=bfloat16"),
        (["--sort", "time_use"], "--sort time_use: no such column; did you mean time_us"),
        (["--format", "html"], "argument --format: invalid choice: 'html'"),
        (["--format", "parquet"], "--format parquet is not text; add --output PATH"),
    ],
)
def test_a_mistake_is_one_line(folder, show, words, said):
    error = show(folder, *words, code=2)
    assert error.startswith(f"runner: {said}")
    assert error.count("\n") == 1


def test_sort_is_within_problems_or_of_the_problems(folder, show):
    slowest_first = order(show(folder, "--where", "size=64", "--sort", "-time_us"))
    assert slowest_first == ["matmul size=64", "naive", "compiled", "torch"]
    by_size = order(show("--sort=size", folder, "--where", "impl=torch"))
    sizes = ["matmul size=64", "matmul size=128", "matmul size=1024"]
    assert by_size[::2] == [
        *sizes,
        "gelu cols=4096",
        "gelu cols=256",
        "gelu cols=1000",
    ]  # those without a size are last
    failed_last = order(show(folder, "--where", "size=1024", "--sort", "time_us"))
    assert failed_last == ["matmul size=1024", "torch", "naive", "compiled"]


def test_fastest_is_a_line_per_problem_with_the_lead_and_where_it_changes_hands(raced, show):
    sizes = {64: (2.0, 1.0), 128: (2.0, 1.5), 256: (2.0, 2.0005), 512: (2.0, 4.0)}
    times = {cols: {"torch": torch, "triton": triton, "naive": 9.0} for cols, (torch, triton) in sizes.items()}
    folder = raced(times, ({64: {"torch": 1.0, "triton": 3.0}, 128: {"torch": 1.0, "triton": 3.0}}, "float16"))
    text = show(folder, "--fastest")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    (first,) = [line for line in lines if line.startswith("gelu cols=64 dtype=float32")]
    assert re.fullmatch(r".* ★ triton 1 us 2\.000x 1\.9\d\dx to 2\.0\d\dx torch faster", first)
    (equal,) = [line for line in lines if line.startswith("gelu cols=256 dtype=float32")]
    assert " ≈ torch, triton 2.001 us 1.000x " in equal
    assert equal.endswith(" triton same")
    assert lines[-2:] == [
        "gelu cols (dtype=float32): triton up to 256, torch from 512",
        "gelu cols (dtype=float16): torch from 64 to 128",
    ]
    table = list(csv.DictReader(io.StringIO(show(folder, "--fastest", "--format", "csv"))))
    assert (table[0]["fastest"], table[0]["next"], table[0]["conclusion"]) == ("triton", "torch", "faster")
    assert float(table[0]["ahead_by"]) == pytest.approx(2.0)
    assert "| gelu cols=64 dtype=float32 | ★ triton | 1 us |" in show(folder, "--fastest", "--format", "md")


def test_a_size_without_a_rival_is_in_no_range_of_a_winner(raced, made, tmp_path, show):
    rows = {cols: {"torch": 2.0, "triton": 1.0} for cols in (64, 128, 512)} | {256: {"triton": 1.0}}
    assert show(raced(rows), "--fastest").endswith("\ngelu cols: triton up to 128, triton from 512\n")
    lone = [made.timed(made.case("gelu", "torch", {"cols": cols}), 2.0) for cols in (64, 128, 256)]
    assert "gelu cols:" not in show(made.finished(tmp_path / "d" / "00-00-00-lone", lone), "--fastest")


def test_words_for_people_and_a_choice_of_its_own_are_refused_where_they_do_not_fit(folder, show):
    assert "leave it out with --format csv" in show(folder, "--explain", "--format", "csv", code=2)
    assert "leave out columns=" in show(folder, "--fastest", "columns=time_us", code=2)


def test_explain_says_what_heads_verdicts_marks_and_other_words_mean(folder, show):
    text = show(folder, "--explain")
    assert "FLOP/s: the workload's own operations over the time" in text
    for word in ("wrong", "unsupported", "error"):
        assert f"{word}: {STATUSES[word]}" in text
    assert f"ok: {VERDICTS['ok']}" in text
    assert "oom:" not in text  # it is not in the table
    markdown = show(folder, "--explain", "--format", "md")
    assert f"- certificate: {TERMS['certificate']}" in markdown
    assert "not allowed with argument" in show(folder, "--explain", "--fastest", code=2)


def test_without_a_time_none_is_the_fastest_and_the_table_says_why(made, tmp_path, show):
    failed = [row for row in made.sweep() if row.status == "error"]
    folder = made.finished(tmp_path / "d" / "00-00-00-x", failed)
    assert show(folder, "--fastest", code=2) == (
        f"runner: {folder}: no case is correct and timed, so none is the fastest; runner show says why\n"
    )
    assert "1 case: 1 error." in show(folder)
    nothing = made.finished(tmp_path / "d" / "00-00-01-x", [])
    (nothing / journal.NAME).write_text("")
    assert show(nothing) == f"0 cases: no case done. Results: {nothing}\n"
    assert show(nothing, "--where", "impl=torch", "--sort", "time_us").startswith("0 cases")


def test_csv_and_json_have_all_that_rows_csv_has_and_several_runs_a_column(folder, raced, show):
    other = raced({64: {"torch": 2.0, "triton": 1.0}})
    table = list(csv.DictReader(io.StringIO(show(folder, "--format", "csv"))))
    records = json.loads(show(folder, "--format", "json"))
    assert len(table) == len(records) == 18
    assert {"workload.cols", "impl", "speedup", "key", "wall_us"} <= records[0].keys() <= table[0].keys()
    assert [float(row["time_us"]) for row in table if row["time_us"]] == [
        row["time_us"] for row in records if row["time_us"]
    ]
    both = list(csv.DictReader(io.StringIO(show(folder, other, "--format=csv", "columns=speedup"))))
    assert next(iter(both[0])) == "run"
    assert [row["run"] for row in both] == ["2025-01-31/10-11-12-both"] * 18 + ["2025-02-01/00-00-00-race"] * 2
    assert not {"time_us", "key"} & both[0].keys()
    text = show(folder, other)
    assert text.index("18 cases: ") < text.index("2 cases: ")
    text = show(folder, other, "--where", "impl=naive")
    assert text.index("6 of 18 cases: ") < text.index("\n0 of 2 cases. Results: ")


def test_every_record_of_json_has_the_same_keys_and_each_column_that_is_asked_for(folder, show):
    records = json.loads(show(folder, "--format", "json"))
    assert len({tuple(record) for record in records}) == 1
    assert None in [record["speedup"] for record in records]
    chosen = json.loads(show(folder, "--format", "json", "columns=time_us,power_w"))
    assert all({"time_us", "power_w", "status"} <= record.keys() for record in chosen)
    assert {record["power_w"] for record in chosen} == {None}


def test_text_of_a_run_is_no_markup_of_markdown_or_latex(made, tmp_path, show):
    odd = r"a|b*c_<d> ~[e]\f&g$h%i#j{k}^"
    rows = [made.timed(made.case("gelu", "torch", {"data": odd, "rows": rows}), 1.0) for rows in (1, 2)]
    folder = made.finished(tmp_path / "d" / "00-00-00-x", rows)
    assert r"data=a\|b\*c\_\<d\> \~\[e\]\\f&amp;g$h%i#j{k}^" in show(folder, "--format", "md")
    latex = show(folder, "--format", "latex")
    assert r"a\textbar{}b*c\_\textless{}d\textgreater{} \textasciitilde{}[e]\textbackslash{}f\&g\$h\%i\#j\{k\}" in latex
    assert latex.count(r"\begin{tabular}{l") == latex.count(r"\end{table}") == 1
    assert r"\textbf{gelu rows=1}" in latex
    widths = {line.count(" & ") for line in latex.splitlines() if line.endswith(r"\\") and "multicolumn" not in line}
    assert len(widths) == 1


def test_a_file_is_written_in_the_format_of_its_name_and_never_over_one_of_the_run(folder, tmp_path, show, monkeypatch):
    for name, begin in {
        "a.md": "### both",
        "a.tex": "% ",
        "a.csv": "workload,",
        "a.json": "[",
        "a.txt": "both on cpu",
    }.items():
        assert show(folder, "--output", tmp_path / name) == ""
        assert (tmp_path / name).read_text().startswith(begin)
    before = sorted((path.name, path.read_bytes()) for path in folder.iterdir())
    inside = show(folder, "--output", folder / "table.md", code=2)
    assert inside.endswith("table.md: the run has written it; give another path\n")
    for name in (".logged", "files", "files/x/profile/kernels.csv", "files/x/../a.md"):
        assert "the run has written it" in show(folder, "--output", folder / name, "--format", "md", code=2)
    assert sorted((path.name, path.read_bytes()) for path in folder.iterdir()) == before
    assert show(folder, "--output", tmp_path / "made" / "a.md") == ""
    assert (tmp_path / "made" / "a.md").read_text() == (tmp_path / "a.md").read_text()
    in_the_way = show(folder, "--output", tmp_path / "a.md" / "b.md", code=2)
    assert re.search(r"b\.md: cannot be written: .*; give --output PATH elsewhere\n$", in_the_way)
    for place in ("", tmp_path):
        assert "cannot be written: Is a directory; give --output PATH" in show(folder, "--output", place, code=2)
    image = show(folder, "--output", tmp_path / "a.png", code=2)
    assert image.endswith("a.png: show writes table, md, latex, csv, json, parquet; give another ending\n")


def test_parquet_has_one_type_a_column_or_says_what_to_install(folder, tmp_path, show, monkeypatch):
    path = tmp_path / "rows.parquet"
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert (
        show(folder, "--output", path, code=2)
        == "runner: --format parquet needs pyarrow; pip install 'kernel-runner[parquet]'\n"
    )
    monkeypatch.undo()
    parquet = pytest.importorskip("pyarrow.parquet")
    show(folder, "--output", path)
    table = parquet.read_table(path)
    assert (table.num_rows, str(table.schema.field("time_us").type)) == (18, "double")
    assert flat_formats.parquet([{"a": 1}, {"a": "x"}, {"b": True}])[:4] == b"PAR1"


def test_damage_is_counted_and_a_newer_format_refused(folder, show, capsys):
    path = folder / journal.NAME
    whole = path.read_text()
    path.write_text(whole[: len(whole) * 2 // 3])
    assert cli.main(["show", str(folder)]) == 0
    printed = capsys.readouterr()
    assert printed.err == (f"runner: {folder}: 1 record of its journal cannot be read: damaged or cut off\n")
    assert " not run. Results: " in printed.out
    path.write_text(whole.replace(f'"format":{journal.FORMAT}', f'"format":{journal.FORMAT + 1}'))
    error = show(folder, code=2)
    assert error.startswith(f"runner: {folder}: this run has format {journal.FORMAT + 1}, ")
    assert "; give " in show(folder.parent / "nowhere", code=2)


def test_a_terminal_without_these_signs_gets_plain_ones(folder):
    words = [sys.executable, "-m", "runner", "show", folder, "--fastest", "--format"]
    plain = environment() | {"PYTHONIOENCODING": "ascii", "COLD": "1"}
    for form in ("md", "table"):
        done = subprocess.run([*words, form], env=plain, capture_output=True, text=True, check=True)
        assert "* compiled" in done.stdout
        assert "?" not in done.stdout


def test_nothing_heavy_is_imported(folder):
    probe = (
        f"import sys; from runner import cli; assert cli.main(['show', {str(folder)!r}, '--sort', 'time_us']) == 0; "
        "print([name for name in ('torch', 'pandas', 'hydra', 'omegaconf', 'wandb') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", probe], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_formats_are_those_that_exist():
    assert {*command.FORMATS} == {*WRITERS, *RECORDS}
