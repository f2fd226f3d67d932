"""A user's own function, under a name of the user's own."""

from __future__ import annotations

import inspect
import os
import shutil
import sys
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
import torch

from runner import config, implementations
from runner.implementations import call_line, loader
from runner.implementations.compiled import Compiled
from runner.implementations.file import File
from runner.kernels import gelu
from runner.kernels.unsupported import Unsupported
from runner.records.bad_input import BadInput
from runner.records.case import Choice
from runner.records.options import CONF, option_class
from runner.records.schema import build

USER = "def mine(x):\n    return x\n"
GELU = {
    "rows": 2,
    "cols": 4,
    "form": "erf",
    "pass": "fwd",
    "dtype": "float32",
    "tf32": False,
    "data": "normal",
    "layout": "contiguous",
}


@pytest.fixture
def path(tmp_path):
    (tmp_path / "user.py").write_text(USER)
    return f"{tmp_path}/user.py:mine"


def test_a_name_that_nothing_has_beside_a_path_is_that_functions(path):
    assert implementations.build(Choice("my_gelu", {"path": path})) == File(path)


@pytest.fixture
def versions(tmp_path):
    """The same file in two folders, with different modules beside it: v1 doubles, v2 trebles."""
    for folder, factor in (("v1", 2), ("v2", 3)):
        (tmp_path / folder / "pack").mkdir(parents=True)
        (tmp_path / folder / "soft.py").write_text(SOFT)
        for helper in ("helper_x.py", "lazy_x.py", "pack/__init__.py", "pack/deep.py"):
            (tmp_path / folder / helper).write_text(f"def times(x): return {factor} * x\n")
    (tmp_path / "v1" / "lazy_x.py").write_text("def times(x):\n    from helper_x import times\n    return times(x)\n")
    return [f"{tmp_path}/{folder}/soft.py" for folder in ("v1", "v2")]


SOFT = """
import importlib
from importlib import import_module as load
import helper_x
from pack.deep import times
def eager(x): return helper_x.times(x)
def deep(x): return times(x)
def lazy(x):
    import lazy_x
    return lazy_x.times(x)
def computed(x): return importlib.import_module(name="lazy_x").times(x)
def renamed(x): return load(".".join(["pack", "deep"])).times(x)
def passed(x): return next(map(importlib.import_module, ["lazy_x"])).times(x)
def built_in(x): return __import__("pack.deep").deep.times(x)
def built_in_from(x): return __import__("pack", fromlist=["deep"]).deep.times(x)
def lazy_deep(x):
    from pack import deep
    return deep.times(x)
"""


LAZY = ["eager", "deep", "lazy", "computed", "renamed", "passed", "built_in", "built_in_from", "lazy_deep"]


@pytest.mark.parametrize("name", LAZY)
def test_each_file_has_what_lies_beside_it_also_when_it_is_imported_later(versions, name):
    one, two = (File(f"{path}:{name}").load("gelu") for path in versions)
    assert [one(10), two(10), two(10), one(10), two(10)] == [20, 30, 30, 20, 30]


ON_PATH = """
import importlib, os, sys
{change}
from place_x import times as eager
import pack_x.deep
def named(x): return importlib.import_module("place_x").times(x)
def inner(x): return pack_x.deep.times(x)
def later(x):
    from late_x import times
    return times(x)
def adds(x):
    sys.path.insert(0, {more!r})
    from more_x import times
    return times(x)
"""


@pytest.mark.parametrize("change", ["sys.path.insert(0, {src!r})", "sys.path.append({src!r})"])
def test_a_folder_that_a_file_puts_on_the_path_is_there_for_its_own_imports_alone(tmp_path, change, monkeypatch):
    paths, before = [], [*sys.path]
    for factor in (2, 3):
        for module in ("place_x.py", "late_x.py", "pack_x/deep.py", "more/more_x.py"):
            (tmp_path / f"src{factor}" / module).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / f"src{factor}" / module).write_text(f"def times(x): return {factor} * x\n")
        paths.append(tmp_path / f"soft{factor}.py")  # two files of one folder
        src = str(tmp_path / f"src{factor}")
        paths[-1].write_text(ON_PATH.format(change=change.format(src=src), more=f"{src}/more"))
    for name in ("eager", "named", "inner", "later"):
        one, two = (File(f"{path}:{name}").load("gelu") for path in paths)
        assert [one(10), two(10), two(10), one(10)] == [20, 30, 30, 20], name
    assert sys.path == before
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", before)
        one, two = (File(f"{path}:adds").load("gelu") for path in paths)
        assert [one(10), two(10), two(10), one(10)] == [20, 30, 30, 20]
    assert not sys.modules.keys() & {"place_x", "late_x", "pack_x", "more_x"}


def test_a_module_that_is_missing_is_named_as_the_file_names_it(tmp_path):
    (tmp_path / "soft.py").write_text(
        "try:\n    import missing_x.deep\nexcept ModuleNotFoundError as error:\n    name = error.name\n"
        "def mine(x): return name\n"
    )
    assert File(f"{tmp_path}/soft.py:mine").load("gelu")(1) == "missing_x"


def test_a_second_function_of_a_folder_shares_the_modules_of_the_first(versions):
    first = File(f"{versions[0]}:eager").load("gelu").__globals__["helper_x"]
    File(f"{versions[1]}:eager").load("gelu")
    assert File(f"{versions[0]}:lazy").load("gelu").__globals__["helper_x"] is first


def test_what_lies_below_a_folder_but_was_not_imported_from_it_stays(tmp_path, monkeypatch):
    """As the packages of an environment that lies beside a user's file."""
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "installed_x.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "env"))
    (tmp_path / "v2").mkdir()
    for path in (tmp_path / "soft.py", tmp_path / "v2" / "soft.py"):
        path.write_text("import installed_x\ndef mine(x): return x\n")
    first, second = (
        File(f"{path}:mine").load("gelu").__globals__["installed_x"]
        for path in (tmp_path / "soft.py", tmp_path / "v2" / "soft.py")
    )
    assert first is second


def test_a_compiled_function_finds_what_lies_beside_it(versions):
    one, two = (torch.compile(File(f"{path}:lazy").load("gelu"), backend="eager") for path in versions)
    x = torch.ones(2)
    assert [one(x)[0], two(x)[0], one(x)[0]] == [2, 3, 2]


def test_what_lies_beside_a_file_comes_before_what_lies_in_the_current_folder(versions, monkeypatch):
    monkeypatch.chdir(os.path.dirname(versions[0]))
    monkeypatch.syspath_prepend(os.path.dirname(versions[0]))
    assert File(f"{versions[1]}:eager").load("gelu")(10) == 30


@pytest.mark.parametrize("name", ["torch", "json", "sys", "kernel_runner"])
def test_what_is_installed_comes_before_what_lies_beside_a_file(tmp_path, name):
    (tmp_path / f"{name}.py").write_text("raise AssertionError")
    (tmp_path / "mine.py").write_text(f"import {name} as found\ndef mine(x): return x\n")
    assert File(f"{tmp_path}/mine.py:mine").load("gelu").__globals__["found"] is import_module(name)


def test_two_versions_of_the_kernels_live_in_one_process(tmp_path):
    """As two git revisions will: with their own helpers, which they import relatively."""
    for version, factor in (("old", 2), ("new", 1)):
        kernels = tmp_path / version / "kernels"
        shutil.copytree(Path(gelu.__file__).parents[1], kernels)
        (kernels / "helper.py").write_text(f"FACTOR = {factor}\n")
        with (kernels / "gelu" / "naive.py").open("a") as naive:
            naive.write("from ..helper import FACTOR\ndef mine(x): return FACTOR * gelu(x, form='erf')\n")
    old, new = (
        loader.load_file(tmp_path / version / "kernels" / "gelu" / "naive.py").mine for version in ("old", "new")
    )
    x = torch.linspace(-3, 3, 7)
    assert torch.equal(old(x), 2 * new(x))


def test_it_may_import_what_lies_beside_it(tmp_path):
    (tmp_path / "mine.py").write_text("from beside_mine import twice\ndef mine(x): return twice(x)\n")
    (tmp_path / "beside_mine.py").write_text("def twice(x): return 2 * x\n")
    assert File(f"{tmp_path}/mine.py:mine").load("gelu")(21) == 42


PINNED = """
from tuner_x import Config, autotune
constexpr = int
@autotune(configs=[Config({"BLOCK": size}, num_warps=warps) for size in (32, 64) for warps in (4, 8)], key=["n"])
def kernel(x, n, BLOCK: constexpr, EVEN: constexpr):
    return BLOCK
def mine(x, *, shift=0): return [shift, *((one.kwargs["BLOCK"], one.num_warps) for one in kernel.configs)]
"""
TUNER = """
class Config:
    def __init__(self, kwargs, num_warps): self.kwargs, self.num_warps = kwargs, num_warps
class Autotuner:
    def __init__(self, fn, configs): self.fn, self.configs = fn, configs
def autotune(configs, key): return lambda fn: Autotuner(fn, configs)
"""


def test_its_arguments_are_given_and_those_of_an_autotuned_kernel_choose_among_its_configurations(tmp_path):
    (tmp_path / "tuned.py").write_text(PINNED)
    (tmp_path / "tuner_x.py").write_text(TUNER)

    def load(**args):
        return File(f"{tmp_path}/tuned.py:mine", args=args).load("gelu")(0)

    assert list(File(f"{tmp_path}/tuned.py:mine").arguments("gelu"))[:4] == ["shift", "BLOCK", "EVEN", "num_warps"]
    assert load() == [0, (32, 4), (32, 8), (64, 4), (64, 8)]
    assert load(BLOCK=64, shift=3) == [3, (64, 4), (64, 8)]
    assert load(BLOCK=32, num_warps=8) == [0, (32, 8)]
    with pytest.raises(Unsupported, match=r"kernel has no configuration with BLOCK=16; they have BLOCK=32, 64$"):
        load(BLOCK=16)
    with pytest.raises(Unsupported, match=r"no autotuned kernel of .*tuned\.py has EVEN in its configurations"):
        load(EVEN=1)
    with pytest.raises(Unsupported, match=r"^mine in .*tuned\.py has no argument gone$"):
        load(gone=1)


FUNCTIONS = {
    "a builtin": "mine = torch.nn.functional.gelu",
    "a script": "@torch.jit.script\ndef mine(x): return torch.nn.functional.gelu(x)",
    "a module": "mine = torch.nn.GELU()",
    "a module with the option": (
        "class M(torch.nn.Module):\n"
        "    def forward(self, x, form): return torch.nn.functional.gelu(x) if form == 'erf' else x\n"
        "mine = M()"
    ),
}


@pytest.mark.filterwarnings("ignore:.torch.jit")
@pytest.mark.parametrize("wrap", [File, lambda path: Compiled(path, "default", None, False, False)])
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_what_can_be_called_gets_the_options_that_it_tells_of(tmp_path, make, monkeypatch, wrap, kind):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))  # which generates no code
    (tmp_path / "mine.py").write_text(f"import torch\n{FUNCTIONS[kind]}\n")
    workload, (x,) = make("gelu", dtype="float32", rows=2, cols=4, form="erf")
    (y,) = workload.call(wrap(f"{tmp_path}/mine.py:mine").load("gelu"), (x,)).run()
    torch.testing.assert_close(y, torch.nn.functional.gelu(x))


@pytest.mark.parametrize("taken", ["p, q", "q, p", "p, q, /", "p, q, **others", "a, b", "a, b, p"])
def test_a_tensor_may_have_the_name_of_an_option(tmp_path, make, taken):
    (tmp_path / "mine.py").write_text(f"def mine({taken}): return 1\n")
    workload, inputs = make("cdist", dtype="float32", n=2, m=4, d=3)
    assert workload.call(File(f"{tmp_path}/mine.py:mine").load("cdist"), inputs).run() == (1,)


def test_a_users_function_is_called_as_it_is(tmp_path):
    """So that a file costs no more than a built-in implementation of the same body."""
    (tmp_path / "mine.py").write_text("import sys\ndef mine(x): return sys._getframe(1).f_code\n")
    workload = build(option_class("models", "gelu"), GELU, "workload")
    call = workload.call(File(f"{tmp_path}/mine.py:mine").load("gelu"), (1,))
    assert call.run() == (call.run.__code__,)


@pytest.mark.parametrize(
    "name", ["compiled", "cudagraph"]
)  # a kernel's name may be that of a function in an own workload
def test_a_name_that_something_has_is_not_for_a_function_of_ones_own(path, name):
    with pytest.raises(BadInput, match="impl"):
        implementations.build(Choice(name, {"path": path}))


def test_a_wrapper_whose_class_is_no_dataclass_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "plain.py").write_text("class Plain:\n    pass\n")
    monkeypatch.setattr(implementations, "__path__", [*implementations.__path__, str(tmp_path)])
    with pytest.raises(
        BadInput, match=r"^impl=plain: class Plain in runner/implementations/plain\.py must be a dataclass"
    ):
        implementations.build(Choice("plain", {}))


def test_two_of_them_are_told_apart_and_either_may_be_the_baseline(tmp_path, path):
    (tmp_path / "mine" / "impl").mkdir(parents=True)
    for name in ("first", "second"):
        (tmp_path / "mine" / "impl" / f"{name}.yaml").write_text(f"name: {name}\npath: {path}\n")
    words = ["--config-dir", str(tmp_path / "mine"), "impl=first,second", "workload.cols=8", "log=none", "-m"]
    plan = config.plan([*words, "baseline=second"])
    assert ([case.impl.name for case in plan.cases], plan.baseline) == (["first", "second"], "second")


OTHERS = """
def takes_one(x): return x
def names_another(x, *, shape): return x
def calls_another(x): return takes_one(x, x)
def fails(x): return x + "a"
"""


def reason(path, op, *given, **named) -> str:
    file = File(path)
    function = file.load(op)
    with pytest.raises(TypeError) as raised, file.first_calls(op, "cpu"):
        function(*given, **named)
    return str(raised.value)


def test_a_function_of_other_arguments_is_told_what_it_is_given(tmp_path):
    (tmp_path / "others.py").write_text(OTHERS)
    assert reason(f"{tmp_path}/others.py:takes_one", "mlp", 1, 2, 3) == (
        "takes_one() takes 1 positional argument but 3 were given: workload=mlp calls "
        "mlp(x, w1, b1, ..., wL, bL, *, activation); an option after * is left out if the signature does not name it; "
        "docs/groups/workload.md has the shapes"
    )
    assert "missing 1 required keyword-only argument: 'shape': workload=gelu calls gelu(x, *, form); " in reason(
        f"{tmp_path}/others.py:names_another", "gelu", 1
    )


CLASSES = """
import torch
class Plain:
    def __call__(self, x): return x
class Idle(torch.nn.Module): pass
class Same(torch.nn.Module):
    def forward(self, x): return x
same = Same()
class Sets(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.forward = torch.sin
"""


@pytest.mark.parametrize(
    ("name", "op", "message"),
    [
        ("Plain", "task.py", "is a class, but no torch.nn.Module; name a function or a module"),
        ("Idle", "task.py", "defines no forward"),
        (
            "Same",
            "softmax",
            r"is a class; workload=softmax calls softmax\(x\): name a function, or an object of .*",
        ),
    ],
)
def test_a_class_that_the_workload_cannot_call_is_told(tmp_path, name, op, message):
    (tmp_path / "classes.py").write_text(CLASSES)
    with pytest.raises(TypeError, match=rf"^{name} in .*classes\.py {message}$"):
        File(f"{tmp_path}/classes.py:{name}").load(op)


@pytest.mark.parametrize(("name", "op"), [("Same", "task.py"), ("Sets", "task.py"), ("same", "softmax")])
def test_a_class_of_a_task_and_an_object_are_functions(tmp_path, name, op):
    (tmp_path / "classes.py").write_text(CLASSES)
    assert inspect.isfunction(File(f"{tmp_path}/classes.py:{name}").load(op))


@pytest.mark.parametrize("name", ["calls_another", "fails"])
def test_an_error_within_the_function_is_its_own(tmp_path, name):
    (tmp_path / "others.py").write_text(OTHERS)
    assert "workload=" not in reason(f"{tmp_path}/others.py:{name}", "softmax", 1)


def test_of_a_workload_that_does_not_say_the_error_is_as_it_is(tmp_path):
    (tmp_path / "others.py").write_text(OTHERS)
    told = reason(f"{tmp_path}/others.py:takes_one", "nosuch", 1, 2)
    assert told == "takes_one() takes 1 positional argument but 2 were given"


@pytest.mark.parametrize("path", sorted((CONF / "workload").glob("*.yaml")), ids=lambda path: path.stem)
def test_what_a_function_is_given_is_what_the_kernels_take(path):
    """And the options are those that the workload gives, besides some that the kernels have a default for."""
    op = path.stem
    tensors, _, options = call_line(op).removeprefix(f"{op}(").removesuffix(")").partition(", *, ")
    parameters = inspect.signature(getattr(import_module(f"runner.kernels.{op}.naive"), op)).parameters.values()
    if "..." not in tensors:
        assert tensors.split(", ") == [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    named = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is one.empty]
    plan = config.plan([f"workload={op}"])
    workload = build(option_class("models", op), plan.cases[0].workload.fields, "workload")
    known = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
    assert set(named) <= workload.options().keys() <= set(known)
    assert [*filter(None, options.split(", "))] == [one for one in known if one in {*named, *options.split(", ")}]


def test_a_file_that_is_as_long_and_as_old_as_the_one_before_is_read_anew(path, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    user = tmp_path / "user.py"
    for text in ("x + 1", "x + 2"):
        user.write_text(USER.replace("return x", f"return {text}"))
        os.utime(user, (10**9, 10**9))
        found = File(path).load("gelu")(torch.zeros(1))
    assert found == 2


DEFINES = ["def f(x): ...", "f = torch.compile(g)", "from m import f", "import m as f", "f: object = 1", "class f: ..."]
DEFINES += [
    "if True:\n    async def f(x): ...",
    "with a as f: ...",
    "for f in (): ...",
    "(f := 1)",
    "a, *f = g",
    "exec(g)",
]
DEFINES += ["match g:\n    case f: ...", "exec(g)"]
DEFINES += ["from m import *", "globals().update(g)", "def __getattr__(name): ...", "setattr(m, 'f', 1)", "def f(:"]
LACKS = [
    "def g(x):\n    def f(): ...",
    "g = lambda f: f",
    "class g:\n    def f(self): ...",
    "import f.g as h",
    "g.f = 1",
]


@pytest.mark.parametrize(("source", "has"), [*((line, True) for line in DEFINES), *((line, False) for line in LACKS)])
def test_a_name_that_the_file_lacks_is_found_before_anything_runs(tmp_path, source, has):
    (tmp_path / "k.py").write_text(f"def gelu(x): ...\n{source}\n")
    choice = Choice("file", {"path": f"{tmp_path}/k.py:f"})
    if has:
        implementations.checked(choice)
    else:
        with pytest.raises(BadInput, match=r"k\.py has no f; one of: .*gelu"):
            implementations.checked(choice)
