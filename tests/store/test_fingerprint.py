"""What changes the fingerprint of a case, and what does not."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from runner.device.used_paths import ABSENT, ALL, FILES, stamp
from runner.records.case import CaseRecord, Choice
from runner.records.row import Row
from runner.records.settings import Settings
from runner.store import fingerprint
from runner.store.fingerprint import EDITED, MEASURE, NOT_WATCHED, Fingerprints, difference, differences

KERNEL = '''"""A kernel."""
import torch
from helper import scale

# how it is done
def f(x):
    """Twice."""
    return scale(x) * 2  # two
'''
HELPER = "def scale(x):\n    return x\n"


@pytest.fixture(scope="module")
def read():
    """A reader of sources that reads the files of the package, which no test edits, once."""
    once = cache(fingerprint._read)
    every_time = fingerprint._read
    return lambda path, *rest: (once if path.is_relative_to(fingerprint.PACKAGE) else every_time)(path, *rest)


@pytest.fixture(autouse=True)
def here(read, tmp_path, monkeypatch):
    """A user's folder with a file and its helper."""
    monkeypatch.setattr(fingerprint, "_read", read)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(KERNEL)
    (tmp_path / "helper.py").write_text(HELPER)
    return tmp_path


def case(impl="file", **fields):
    fields = {"path": "mine.py:f"} | fields if impl == "file" else fields
    return CaseRecord(Choice("gelu", {"rows": 8}), Choice(impl, fields), (), Settings("cpu", 0))


def row(status="ok", **files):
    """A row as a worker sends it, with the files that its case has used."""
    reason = "" if status == "ok" else "why"
    return Row(case=case(), status=status, reason=reason, fingerprint={FILES: ALL} | files.pop("files", {}))


def now(**kwargs):
    return Fingerprints().of(case(**kwargs))


def test_a_case_depends_on_its_files_what_they_import_and_on_versions():
    found = now()
    assert {"mine.py", "helper.py", "runner/implementations/file.py", "models/gelu.py", "models/workload.py"} <= set(
        found
    )
    assert found["python"] == f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert found["torch"].startswith("2.")
    assert MEASURE in found
    kernels = {name for name in found if name.startswith("kernels/")}
    assert kernels <= {"kernels/unsupported.py", "kernels/spans.py"}  # what models import
    assert not any("site-packages" in name for name in found)


def test_a_package_of_the_users_that_is_called_runner_counts(here):
    (here / "runner").mkdir()
    (here / "runner" / "__init__.py").write_text("")
    (here / "runner" / "deep.py").write_text(HELPER)
    (here / "mine.py").write_text("from runner.deep import scale\nfrom kernel_runner.kernels import spans\nf = scale\n")
    before = now()
    assert {"runner/__init__.py", "runner/deep.py", "kernels/spans.py"} <= set(before)
    (here / "runner" / "deep.py").write_text("def scale(x):\n    return 2 * x\n")
    assert difference(now(), before) == "runner/deep.py has changed"


def test_a_file_outside_the_current_folder_depends_on_the_modules_beside_it(here, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (here / "models").mkdir()
    (here / "models" / "__init__.py").write_text("")
    (here / "mine.py").write_text(KERNEL + "import models\n")
    found = now(path=str(here / "mine.py:f"))
    assert str(here / "helper.py") in found
    assert str(here / "models/__init__.py") in found  # this project's is called runner.models


@pytest.mark.parametrize("spelling", ["mine/a.py:f", "{0}/mine/a.py:f"])
def test_a_file_within_the_checkout_depends_on_the_modules_beside_it(here, tmp_path, monkeypatch, spelling):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.py").write_text(KERNEL)
    (tmp_path / "mine" / "helper.py").write_text(HELPER)
    (tmp_path / "mine" / "__init__.py").write_text("")
    (tmp_path / "helper.py").unlink()
    monkeypatch.setattr(fingerprint, "ROOT", tmp_path)
    found = now(path=spelling.format(tmp_path))
    assert "mine/helper.py" in found
    assert "mine/__init__.py" not in found  # it is run as a file, and not as a module of a package


def test_the_version_of_a_package_that_a_file_needs_counts(here):
    assert "orjson" not in now()
    (here / "mine.py").write_text(
        'with needs("orjson", extra="a"), needs("no-such", extra="b"):\n    import orjson\ndef f(x): return x\n'
    )
    found = now()
    assert found["orjson"].startswith("3.")
    assert found["no-such"] == ""
    assert difference(found | {"orjson": "4.0"}, found) == f"orjson {found['orjson']} is now 4.0"
    assert differences(found | {"orjson": "4.0"}, found).keys() == {"versions"}


def test_a_relative_import_is_followed_and_an_installed_package_is_not(here):
    (here / "torch.py").write_text("")
    (here / "mine.py").write_text(KERNEL.replace("from helper", "from .helper"))
    found = now()
    assert "helper.py" in found
    assert "torch.py" not in found  # an installed package wins over a module beside the file


def test_a_kernel_depends_on_its_own_file_and_helpers_and_on_no_other_kernel():
    found = now(impl="triton")
    assert {"kernels/gelu/triton.py", "kernels/triton_device.py", "kernels/unsupported.py"} <= set(found)
    assert "kernels/gelu/torch.py" not in found


def test_the_compiled_function_counts():
    fields = {"mode": "default", "dynamic": None, "fullgraph": False, "cold": False}
    found = now(impl="compiled", of="naive", **fields)
    assert {"kernels/gelu/naive.py", "runner/implementations/compiled.py"} <= set(found)
    assert {"mine.py", "helper.py"} <= set(now(impl="compiled", of="mine.py:f", **fields))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# how it is done\n", "# how it was done\n\n\n"),
        ('"""Twice."""', '"""Doubled."""'),
        ('"""Twice."""\n    ', ""),
        ('"""A kernel."""\n', ""),
        ("scale(x) * 2  # two", "(scale( x )\n        * 2)"),
    ],
)
def test_comments_docstrings_and_layout_do_not_count(here, old, new):
    before = now()
    assert old in KERNEL
    (here / "mine.py").write_text(KERNEL.replace(old, new))
    assert now() == before


@pytest.mark.parametrize(("old", "new"), [("* 2", "* 3"), ("* 2", "* 2.0"), ("def f(x)", "def f(x, *, form='tanh')")])
def test_code_counts(here, old, new):
    before = now()
    (here / "mine.py").write_text(KERNEL.replace(old, new))
    assert difference(now(), before) == "mine.py has changed"
    assert differences(now(), before).keys() == {"sources"}


def test_an_edited_helper_counts_and_one_that_is_not_imported_does_not(here):
    before = now()
    (here / "other.py").write_text("x = 1")
    assert now() == before
    (here / "helper.py").write_text(HELPER.replace("return x", "return x + 0"))
    assert difference(now(), before) == "helper.py has changed"


def test_a_file_that_does_not_parse_counts_by_its_bytes(here):
    (here / "mine.py").write_text("def f(x:\n")
    before = now()
    (here / "mine.py").write_text("def f(x:\n\n")
    assert difference(now(), before) == "mine.py has changed"


def test_the_reason_names_an_added_or_removed_file():
    assert difference({"a.py": "1", "b.py": "2"}, {"a.py": "1"}) == "b.py has been added"
    assert difference({"a.py": "1"}, {"a.py": "1", "b.py": "2"}) == "b.py is not used any more"


def test_versions_and_measurement_can_be_ignored_separately():
    was = {**now(), "torch": "2.9.0", MEASURE: "0" * 12}
    this = now()
    assert difference(this, was) == f"torch 2.9.0 is now {this['torch']}"
    measure = "runner/measure has changed"
    assert differences(this, was) == {"versions": difference(this, was), "measure": measure}


def test_a_row_without_a_fingerprint_counts_only_if_every_part_is_ignored():
    assert difference(now(), {}).startswith("python none is now 3.")
    assert differences(now(), {}).keys() == {"sources", "versions", "measure"}


def test_a_file_edited_while_it_runs_is_neither_old_nor_new(here):
    prints = Fingerprints()
    first = prints.of(case())
    assert prints.of_row(row()) == first
    (here / "helper.py").write_text(HELPER + "y = 1\n")
    os.utime(here / "helper.py", ns=(1, 1))
    edited = prints.of_row(row())
    assert {name for name in edited if edited[name] != first[name]} == {"helper.py"}
    assert difference(now(), edited) == "helper.py was edited while it ran"
    (here / "helper.py").write_text(HELPER)
    assert difference(now(), edited) == "helper.py was edited while it ran"


def recorded(prints, used):
    """The row of a case that has used these paths, which have been seen with these stamps."""
    seen = row(files=used)
    return replace(seen, fingerprint=prints.of_row(seen))


@pytest.mark.parametrize(
    ("path", "change", "why"),
    [
        ("tuned.json", lambda path: path.write_text("2"), "tuned.json has changed"),
        ("N", lambda path: path.write_text("2"), "./N has changed"),
        ("tuned.json", lambda path: path.unlink(), "tuned.json has been removed"),
        ("new.json", lambda path: path.write_text("2"), "new.json has been added"),
        ("new.*", lambda path: path.with_name("new.py").write_text(""), "new.* has been added"),
        ("new.*", lambda path: path.with_name("new").mkdir(), "new.* has been added"),
        ("folder/", lambda path: (path / "b").write_text(""), "folder/ has changed"),
        ("kernels/x.json", lambda path: path.write_text("2"), "/kernels/x.json has changed"),
    ],
)
def test_what_a_case_has_used_counts_for_its_row(here, path, change, why):
    for name in ("folder", "kernels"):
        (here / name).mkdir()
    for name in ("tuned.json", "N", "folder/a", "kernels/x.json"):
        (here / name).write_text("1")
    used = f"{here}/{path}"
    before = recorded(Fingerprints(), {used: stamp(used)})
    assert difference(Fingerprints().now(before), before.fingerprint) == ""
    change(Path(used))
    assert difference(Fingerprints().now(before), before.fingerprint).endswith(why)
    assert differences(Fingerprints().now(before), before.fingerprint).keys() == {"sources"}


def test_a_file_that_changed_after_a_case_had_used_it_is_marked(here):
    (here / "tuned.json").write_text("1")
    used = f"{here}/tuned.json"
    seen = stamp(used)
    (here / "tuned.json").write_text("22")
    after = recorded(Fingerprints(), {used: seen})
    assert difference(Fingerprints().now(after), after.fingerprint) == "tuned.json was edited while it ran"


def test_names_are_those_from_the_top_of_the_repository(here, monkeypatch):
    (here / ".git").mkdir()
    (here / "below").mkdir()
    (here / "below" / "mine.py").write_text(KERNEL)
    monkeypatch.chdir(here / "below")
    used = f"{here}/tuned.json"
    assert {"below/mine.py", "helper.py", "tuned.json"} <= {*recorded(Fingerprints(), {used: stamp(used)}).fingerprint}


def test_a_row_without_a_list_counts_only_if_it_has_no_time(here):
    reason = "which files it uses is not known: "
    timed, prints = row(), Fingerprints()
    unknown = prints.of_row(row(files={FILES: "too many files were opened"}))
    assert difference(prints.now(timed), unknown) == f"{reason}too many files were opened"
    crashed = replace(row("crashed"), fingerprint={})
    crashed = replace(crashed, fingerprint=prints.of_row(crashed))
    assert difference(prints.now(crashed), crashed.fingerprint) == ""
    assert difference(prints.now(timed), prints.of_row(replace(timed, fingerprint={}))) == f"{reason}{NOT_WATCHED}"


def test_a_file_that_is_missing_when_its_row_arrives_is_marked(here):
    (here / "mine.py").write_text(KERNEL + "SOURCE = 'fast.cu'\n")
    prints = Fingerprints()
    first = prints.of(case())
    (here / "mine.py").rename(here / "mine.py~")  # some editors save so
    assert prints.of_row(row())["mine.py"] == ABSENT + EDITED
    (here / "mine.py~").rename(here / "mine.py")
    assert prints.of_row(row()) == first


def test_a_folder_that_is_missing_when_its_row_arrives_is_marked(here):
    (here / "sub").mkdir()
    (here / "sub" / "helper.py").write_text(HELPER)
    (here / "mine.py").write_text(KERNEL.replace("helper", "sub.helper") + "SOURCE = 'fast.cu'\n")
    prints = Fingerprints()
    assert "sub/helper.py" in prints.of(case())
    (here / "sub").rename(here / "elsewhere")
    assert prints.of_row(row())["sub/helper.py"] == ABSENT + EDITED


def test_a_missing_kernel_file_has_a_digest(here):
    (here / "mine.py").write_text(KERNEL + "SOURCE = 'fast.cu'\n")
    before = now(impl="nothing_of_that_name")
    assert before["kernels/gelu/nothing_of_that_name.py"] == ABSENT


def test_a_measurement_with_its_own_folder_counts_only_for_cases_that_use_it():
    plain = case()
    looked_at = replace(plain, measures=(*plain.measures, Choice("profile", {})))
    one, other = (Fingerprints().of(each) for each in (plain, looked_at))
    assert one[MEASURE] != other[MEASURE]
    assert {**one, MEASURE: ""} == {**other, MEASURE: ""}
