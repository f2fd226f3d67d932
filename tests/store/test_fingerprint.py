"""What changes the fingerprint of a case, and what does not."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import pytest

from runner.experiment.case import CaseRecord, Choice
from runner.store import fingerprint
from runner.store.fingerprint import MEASURE, Fingerprints, difference

KERNEL = '''"""A kernel."""
import torch
from helper import scale

# how it is done
def f(x):
    """Twice."""
    return scale(x) * 2  # two
'''
HELPER = "def scale(x):\n    return x\n"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A user's folder with a file and its helper."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(KERNEL)
    (tmp_path / "helper.py").write_text(HELPER)
    return tmp_path


def case(impl="file", **fields):
    fields = {"path": "mine.py:f"} | fields if impl == "file" else fields
    return CaseRecord(Choice("gelu", {"rows": 8}), Choice(impl, fields), (), "cpu", 0)


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
    (here / "mine.py").write_text('with needs("orjson", extra="a"), needs("no-such", extra="b"):\n    import orjson\n')
    found = now()
    assert found["orjson"].startswith("3.")
    assert found["no-such"] == ""
    assert difference(found | {"orjson": "4.0"}, found) == f"orjson {found['orjson']} is now 4.0"
    assert difference(found | {"orjson": "4.0"}, found, ["versions"]) == ""


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
    assert difference(now(), before, ("sources",)) == ""


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


def test_native_sources_count_by_their_bytes_if_python_names_any(here):
    (here / "mine.py").write_text(KERNEL + "SOURCE = 'fast.cu'\n")
    (here / "fast.cu").write_text('#include "deep/more.h"\n__global__ void f() {}\n')
    (here / "deep").mkdir()
    (here / "deep" / "more.h").write_text("#define N 1\n")
    before = now()
    assert {"fast.cu", "deep/more.h"} <= set(before)
    (here / "deep" / "more.h").write_text("#define N 1 // one\n")
    assert difference(now(), before) == "deep/more.h has changed"


def test_versions_and_measurement_can_be_ignored_separately():
    was = {**now(), "torch": "2.9.0", MEASURE: "0" * 12}
    this = now()
    assert difference(this, was) == f"torch 2.9.0 is now {this['torch']}"
    assert difference(this, was, ("versions",)) == "runner/measure has changed"
    assert difference(this, was, ("versions", "measure")) == ""


def test_a_row_without_a_fingerprint_counts_only_if_every_part_is_ignored():
    assert difference(now(), {}).startswith("python none is now 3.")
    assert difference(now(), {}, ("sources", "versions", "measure")) == ""


def test_a_file_edited_while_it_runs_is_neither_old_nor_new(here):
    prints = Fingerprints()
    first = prints.of(case())
    assert prints.of_row(case()) == first
    (here / "helper.py").write_text(HELPER + "y = 1\n")
    os.utime(here / "helper.py", ns=(1, 1))
    row = prints.of_row(case())
    assert {name for name in row if row[name] != first[name]} == {"helper.py"}
    assert difference(now(), row) == "helper.py was edited while it ran"
    (here / "helper.py").write_text(HELPER)
    assert difference(now(), row) == "helper.py was edited while it ran"


def test_a_file_that_is_missing_when_its_row_arrives_is_marked(here):
    (here / "mine.py").write_text(KERNEL + "SOURCE = 'fast.cu'\n")
    prints = Fingerprints()
    first = prints.of(case())
    (here / "mine.py").rename(here / "mine.py~")  # some editors save so
    assert prints.of_row(case())["mine.py"] == fingerprint.MISSING + fingerprint.EDITED
    (here / "mine.py~").rename(here / "mine.py")
    assert prints.of_row(case()) == first


def test_a_folder_that_is_missing_when_its_row_arrives_is_marked(here):
    (here / "sub").mkdir()
    (here / "sub" / "helper.py").write_text(HELPER)
    (here / "mine.py").write_text(KERNEL.replace("helper", "sub.helper") + "SOURCE = 'fast.cu'\n")
    prints = Fingerprints()
    assert "sub/helper.py" in prints.of(case())
    (here / "sub").rename(here / "elsewhere")
    assert prints.of_row(case())["sub/helper.py"] == fingerprint.MISSING + fingerprint.EDITED


def test_a_missing_kernel_file_has_a_digest(here):
    (here / "mine.py").write_text(KERNEL + "SOURCE = 'fast.cu'\n")
    before = now(impl="nothing_of_that_name")
    assert before["kernels/gelu/nothing_of_that_name.py"] == fingerprint.MISSING


def test_a_measurement_with_its_own_folder_counts_only_for_cases_that_use_it():
    plain = case()
    looked_at = replace(plain, measures=(*plain.measures, Choice("profile", {})))
    one, other = (Fingerprints().of(each) for each in (plain, looked_at))
    assert one[MEASURE] != other[MEASURE]
    assert {**one, MEASURE: ""} == {**other, MEASURE: ""}
