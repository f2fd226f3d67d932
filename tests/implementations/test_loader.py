"""Files as modules: once in a process, under their real names in packages, and without what a script changes."""

from __future__ import annotations

import builtins
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from runner.implementations import loader, scripts
from runner.implementations.file import File
from runner.worker.lookups import Lookups
from runner.worker.process_state import read_state


@pytest.fixture(autouse=True)
def _as_before():
    """What is loaded here is forgotten, since other tests have packages of the same names."""
    modules = {*sys.modules}
    yield
    for name in {*sys.modules} - modules:
        if not name.startswith(("torch", "triton", "numpy")):
            del sys.modules[name]
    loader._folders.clear()
    loader._imported.clear()
    loader.columns()


@pytest.fixture
def write(tmp_path, monkeypatch):
    """``write("pkg/k.py", text)`` writes below the current folder."""
    monkeypatch.chdir(tmp_path)

    def put(name: str, text: str = "") -> str:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return put


COUNTED = "import sys\nsys.counted = getattr(sys, 'counted', 0) + 1\n"


@pytest.fixture
def counted(monkeypatch):
    monkeypatch.setattr(sys, "counted", 0, raising=False)
    return lambda: sys.counted


def load(path):
    return File(path).load("gelu")


def test_a_file_is_run_once_for_all_its_functions_and_again_after_an_edit(write, counted):
    text = COUNTED + "def f(x): return x\ndef g(x): return 2 * x\n"
    path = write("k.py", text)
    assert [load(f"{path}:f")(3), load(f"{path}:g")(3), load("k.py:f")(3), counted()] == [3, 6, 3, 1]
    write("k.py", text.replace("2 * x", "3 * x"))
    assert [load(f"{path}:g")(3), counted()] == [9, 2]


def test_an_import_that_fails_is_not_tried_again(write, counted):
    write("k.py", COUNTED + "raise ValueError('no such')\ndef f(x): return x\n")
    for _ in range(2):
        with pytest.raises(ValueError, match="no such"):
            load("k.py:f")
    assert counted() == 1


def test_a_workload_shares_no_module_with_implementations_in_its_file(write):
    """One of them may change what it finds there."""
    path = write("k.py", "EPS = 1\ndef f(x):\n    global EPS\n    EPS = 2\ndef reference(x): return EPS\n")
    mine = loader.load_file(Path(path), functions=("reference",), apart="workload")
    load(f"{path}:f")(0)
    assert (mine.reference(0), loader.load_file(Path(path)).reference(0)) == (1, 2)


SCRIPT = """
import argparse, os, random, signal, sys, torch
parser = argparse.ArgumentParser()
parser.add_argument("--size", type=int, default=3)
SIZE = parser.parse_args().size
def f(x): return SIZE * x
torch.manual_seed(5)
random.seed(5)
torch.set_default_dtype(torch.float64)
torch.set_default_device("meta")
torch.set_grad_enabled(False)
torch.set_float32_matmul_precision("medium")
torch.backends.cudnn.benchmark = True
signal.signal(signal.SIGTERM, lambda *_: None)
signal.alarm(1000)
os.chdir("/")
"""


def test_what_a_script_changes_in_its_process_is_undone_and_named(write, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["pytest", "--no-such-option"])
    before, seeds, folder = read_state(), torch.get_rng_state(), os.getcwd()
    write("k.py", SCRIPT)
    assert load("k.py:f")(2) == 6
    assert read_state().changes_since(before) == []
    assert torch.equal(torch.get_rng_state(), seeds)
    assert (os.getcwd(), torch.get_float32_matmul_precision()) == (folder, "highest")
    assert (signal.getitimer(signal.ITIMER_REAL)[0], sys.argv[1]) == (0, "--no-such-option")
    note = loader.columns()["import_note"]
    for name in ("get_default_dtype", "get_default_device", "working folder", "handler of SIGTERM", "cudnn.benchmark"):
        assert name in note


ENDS = {
    "exits": ("sys.exit(3)", "SystemExit: 3"),
    "lacks a package for plots": ("import no_such_plots", "ModuleNotFoundError: No module named 'no_such_plots'"),
    "fails its own test": ("assert f(1) == 3, 'differs'", "AssertionError: differs"),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_script_may_end_badly_after_its_function_is_complete(write, name):
    line, what = ENDS[name]
    write("k.py", f"import sys\ndef two(x): return 2 * x\ndef f(x): return two(x)\n{line}\ny = two(1)\n")
    assert load("k.py:f")(2) == 4
    assert loader.columns()["import_note"] == f"importing k.py stopped in line 4, after f was defined: {what}"


def test_commands_of_an_exported_notebook_do_nothing(write):
    lines = "get_ipython().system('exit 1')\nget_ipython().run_line_magic('matplotlib', 'inline')\n"
    write("k.py", f"{lines}def f(x): return 2 * x\n")
    assert load("k.py:f")(2) == 4
    assert not hasattr(builtins, "get_ipython")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("raise ValueError('early')\ndef f(x): return x\n", ValueError),
        ("def f(x): return two(x)\nraise ValueError('before two')\ndef two(x): return x\n", ValueError),
        ("def f(x): return x\nraise ValueError('before it is decorated')\nf = abs\n", ValueError),
        ("def f(x): return x\nraise RuntimeError('CUDA error: illegal memory access')\n", RuntimeError),
        ("import sys\nsys.exit('no GPU')\ndef f(x): return x\n", ImportError),
    ],
)
def test_a_function_that_is_not_complete_is_not_used(write, text, error):
    write("k.py", text)
    with pytest.raises(error):
        load("k.py:f")


def test_time_in_its_own_code_is_worth_a_sentence_but_time_in_imports_is_not(write, monkeypatch):
    monkeypatch.setattr(sys, "ticks", 0, raising=False)
    monkeypatch.setattr(scripts, "time", SimpleNamespace(perf_counter=lambda: sys.ticks))
    write("slow_x.py", "import sys\nsys.ticks += 9\n")
    write("k.py", "import slow_x\ndef f(x): return x\n")
    write("s.py", "import sys\ndef f(x): return x\nsys.ticks += 6\n")
    load("k.py:f")
    assert loader.columns() == {"import_s": 9}
    load("s.py:f")
    assert loader.columns()["import_note"] == (
        "s.py ran for 6.0 s when it was imported, once in each worker; what it runs as a script belongs below "
        'if __name__ == "__main__":'
    )


@pytest.fixture
def package(write):
    """A package with a kernel in it, and files there that are called as modules of Python and of torch."""
    write("proj/pack_x/__init__.py")
    write("proj/pack_x/util.py", "def two(x): return 2 * x\n")
    write("proj/pack_x/sub/__init__.py")
    write("proj/pack_x/sub/beside_x.py", "VALUE = 7\n")
    for name in ("random", "torch", "numpy"):
        write(f"proj/pack_x/sub/{name}.py", "raise AssertionError\n")
    return write(
        "proj/pack_x/sub/k.py",
        "import random, torch, numpy\nimport beside_x\nfrom ..util import two\nfrom pack_x.util import two as same\n"
        "def f(x): return two(x)\ndef whole(x): return __name__, two is same, beside_x.VALUE, random.random() < 1\n",
    )


def test_a_kernel_in_a_package_is_imported_under_its_real_name(package):
    assert load(f"{package}:f")(2) == 4
    assert load(f"{package}:whole")(0) == ("pack_x.sub.k", True, 7, True)


def test_a_kernel_may_import_from_the_folder_above_without_any_init_file(write):
    write("not-a-name/util.py", "def two(x): return 2 * x\n")
    path = write(
        "not-a-name/sub/k.py", "from ..util import two\nfrom .here import ONE\ndef f(x): return two(x) + ONE\n"
    )
    write("not-a-name/sub/here.py", "ONE = 1\n")
    assert load(f"{path}:f")(3) == 7


def test_a_module_below_the_current_folder_may_be_named(package, write, monkeypatch):
    monkeypatch.chdir("proj")
    assert load("pack_x.sub.k:whole")(0)[0] == "pack_x.sub.k"
    write("proj/pack_x/__init__.py", "from .util import two\ndef name(x): return __name__, two(x)\n")
    assert load("pack_x:name")(2) == load("pack_x/__init__.py:name")(2) == ("pack_x", 4)
    with pytest.raises(ValueError, match=r"^path: there is no module pack_x\.gone with a source, installed or below"):
        File("pack_x.gone:f")


def test_an_installed_module_may_be_named_and_is_not_loaded_again():
    assert load("torch.nn.functional:softmax") is torch.nn.functional.softmax


def test_a_second_package_of_the_same_name_keeps_to_itself(package, write):
    load(f"{package}:f")
    write("other/pack_x/__init__.py")
    write("other/pack_x/util.py", "def two(x): return 20 * x\n")
    other = write(
        "other/pack_x/k.py",
        "from .util import two\nfrom pack_x.util import two as same\ndef f(x): return two(x), same(x)\n",
    )
    assert (load(f"{other}:f")(1), load(f"{package}:f")(1)) == ((20, 20), 2)


def test_a_file_whose_package_cannot_be_imported_is_loaded_without_it(write):
    write("pack_x/__init__.py", "import no_such_extension\n")
    write("pack_x/k.py", "def f(x): return 3 * x\n")
    write("pack_x/r.py", "from .k import f\n")
    assert load("pack_x/k.py:f")(1) == 3
    with pytest.raises(ModuleNotFoundError, match="no_such_extension"):
        load("pack_x/r.py:f")


def test_a_module_beside_the_file_wins_over_an_installed_one(write, monkeypatch, tmp_path):
    write("site/utils_x.py", "VALUE = 'installed'\n")
    write("mine/utils_x.py", "VALUE = 'own'\n")
    write("mine/k.py", "import utils_x\ndef f(x): return utils_x.VALUE\n")
    write("mine/utils_y.py", "from utils_y import VALUE\ndef f(x): return VALUE\n")  # it wraps the installed one
    write("site/utils_y.py", "VALUE = 'installed'\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert (load("mine/k.py:f")(0), load("mine/utils_y.py:f")(0)) == ("own", "installed")


def test_a_module_that_would_come_before_an_installed_one_is_looked_for(write, monkeypatch, tmp_path):
    """So that a row is out of date once it is there."""
    write("site/utils_z.py")
    path = write("mine/k.py", "import utils_z\ndef f(x): return x\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    lookups = Lookups()
    lookups.watch([])
    load(f"{path}:f")
    lookups.stop()
    assert str(tmp_path / "mine/utils_z.py") in lookups.paths


def test_a_file_that_is_named_in_two_ways_may_register_an_operator(write, monkeypatch):
    write("pack_x/__init__.py", "from .k import f\n")
    path = write("pack_x/k.py", "def define(name): pass\ndefine('here_x::one')\ndef f(x): return x\n")
    assert (load(f"{path}:f")(1), load("pack_x/k.py:f")(2), load("pack_x.k:f")(3)) == (1, 2, 3)


@pytest.mark.parametrize("beside", [True, False])
def test_a_file_that_is_looked_for_in_another_folder_is_named(tmp_path, beside):
    source = tmp_path / "reads.py"
    source.write_text("table = open('table_x.json').read()\ndef mine(x): return x\n")
    if beside:
        (tmp_path / "table_x.json").write_text("{}")
    for _ in range(2):
        with pytest.raises(FileNotFoundError, match=r"table_x\.json") as raised:
            loader.load_file(source, functions=("mine",))
        assert str(raised.value).count("one lies beside reads.py: open it below Path(__file__).parent") == beside


def test_each_import_of_a_file_draws_the_same_numbers(tmp_path):
    file = tmp_path / "layer.py"
    file.write_text(
        "import random, numpy, torch\n"
        "numbers = [random.random(), numpy.random.rand(), *torch.nn.Linear(2, 2).weight.flatten().tolist()]\n"
        "def f(x): return x\n"
    )
    torch.rand(1)  # as what else the process draws between the two
    reference = loader.load_file(file, functions=("f",), apart="workload")
    torch.rand(1)
    assert reference.numbers == loader.load_file(file, functions=("f",)).numbers


CLASSES = """
import enum, functools, torch, typing
from dataclasses import dataclass
WIDTH: int = 2 * 64
DEPTH = 1
Weights = dict[str, torch.Tensor | None]
T = typing.TypeVar("T")
class Act(enum.Enum):
    SILU = 1
@dataclass
class Config(typing.Generic[T]):
    act: Act = Act.SILU
    width: int = WIDTH
    weights: Weights | T = None
ACT = Act.SILU
def helper(x): return x
def deeper():
    global DEPTH
    DEPTH = 2
class Stack:
    def depth(self): return DEPTH
class Cache:
    def update(self, x): return helper(x)
class Layer(torch.nn.Module):
    def forward(self, x): return x
class Wide(Layer): pass
class Table:
    rows = {}
class Counter:
    def __init__(self): type(self).made = 1
class Root:
    @functools.cache
    def of(x): return x ** 0.5
class Lazy:
    def name(self):
        from .helper import NAME
        return NAME
class Base: pass
class Derived(Base): pass
class Node: pass
torch.utils._pytree.register_pytree_node(Node, lambda node: ([], None), lambda values, _: Node())
if __name__ == "__main__":
    print(Config())
def f(config, act=Act.SILU): return isinstance(config, Config) and config.act is act is ACT
"""


def test_copies_of_a_file_share_the_classes_that_are_the_same_in_each(tmp_path):
    file, other = tmp_path / "k.py", tmp_path / "revision" / "k.py"
    other.parent.mkdir()
    for path in (file, other):
        path.write_text(CLASSES)
        path.with_name("helper.py").write_text(f"NAME = {path.parent.name!r}")
    made, used, earlier = (
        loader.load_file(path, functions=("f",), apart=apart)
        for path, apart in ((file, "workload"), (file, ""), (other, ""))
    )
    assert made is not used
    assert used.f(made.Config())
    assert earlier.f(made.Config())
    assert made.Node is used.Node  # which torch takes once
    assert used.Base.__subclasses__() == [made.Derived]
    assert earlier.Lazy().name() == "revision"
    # Their methods call functions of their own copy, or may be replaced; or a call leaves something in the class.
    for name in ("Cache", "Layer", "Wide", "Stack", "Table", "Counter", "Root"):
        assert getattr(made, name) is not getattr(used, name)
    file.write_text(CLASSES.replace("SILU = 1", "SILU = 2"))
    assert not loader.load_file(file, functions=("f",)).f(made.Config())


def test_a_file_that_defines_operators_in_a_library_is_imported_again(tmp_path):
    file = tmp_path / "operators.py"
    file.write_text(
        "import torch\n"
        "lib = torch.library.Library('of_a_newcomer', 'FRAGMENT')\n"
        "lib.define('twice(Tensor x) -> Tensor')\n"
        "lib.impl('twice', lambda x: 2 * x, 'CompositeExplicitAutograd')\n"
        "torch.library.define('of_a_newcomer::thrice', '(Tensor x) -> Tensor')\n"
        "@torch.library.impl('of_a_newcomer::thrice', 'cpu')\n"
        "def thrice(x): return 3 * x\n"
        "@torch.library.custom_op('of_a_newcomer::four', mutates_args=())\n"
        "def four(x: torch.Tensor) -> torch.Tensor: return 4 * x\n"
        "def f(x): return [getattr(torch.ops.of_a_newcomer, name)(x).item() for name in ('twice', 'thrice', 'four')]\n"
    )
    copies = [loader.load_file(file, functions=("f",), apart=apart) for apart in ("workload", "", "other")]
    assert [copy.f(torch.ones(1)) for copy in copies] == [[2, 3, 4]] * 3
