"""What ``pip install kernel-runner`` gives: the timer with torch alone, beside other packages of the same names."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PACKAGED = ("runner", "kernel_runner", "kernels", "models", "conf", "pyproject.toml", "README.md", "LICENSE")
pytestmark = pytest.mark.long

TIMER = """
import sys, torch
from {name} import bench, load
x = torch.randn(64)
one = bench(torch.relu, x, max_s=0.01)
two = bench({{"a": torch.relu, "b": lambda x: x.clamp(min=0)}}, x, check=torch.relu, max_s=0.01)
assert one.us > 0 and all(each.correct for each in two)
print(repr(one), repr(two), two.markdown())
"""


def run(*words: str, folder: Path, path: str, code: int = 0) -> str:
    """Run a program in ``folder`` with this PYTHONPATH, and return what it printed."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST"))}
    environment |= {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "NO_COLOR": "1"}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel that pip builds from this checkout."""
    source = tmp_path_factory.mktemp("source")
    for name in PACKAGED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, source)
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", "dist", ".", folder=source, path="")
    (found,) = (source / "dist").iterdir()
    return found


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The folder into which pip installs the wheel, without what it needs."""
    folder = tmp_path_factory.mktemp("site")
    run(
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--target",
        str(folder),
        str(wheel),
        folder=folder,
        path="",
    )
    return folder


@pytest.fixture(scope="module")
def torch_alone(tmp_path_factory):
    """A folder with torch, what torch needs, and nothing else."""
    folder, wanted, seen = tmp_path_factory.mktemp("torch_alone"), ["torch"], set()
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        found = distribution(name)
        wanted += [
            need.name
            for need in map(Requirement, found.requires or [])
            if not need.marker or need.marker.evaluate({"extra": ""})
        ]
        for top in {Path(file).parts[0] for file in found.files or []} - {"..", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(found.locate_file(top))
    return folder


@pytest.fixture
def shadowed(tmp_path):
    """A project with folders of its own that are called ``runner`` and ``kernels``."""
    for name in ("runner", "kernels"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("mine = True\n")
    return tmp_path


def test_the_wheel_has_every_file_its_licence_its_types_and_needs_torch_alone(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (info,) = {name.partition("/")[0] for name in names if ".dist-info/" in name}
        metadata = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
    assert {name.partition("/")[0] for name in names} == {"runner", "kernel_runner", info}
    folders = {"runner": "runner", "kernels": "runner/kernels", "models": "runner/models", "conf": "runner/config/conf"}
    for folder, inside in folders.items():
        for file in (ROOT / folder).rglob("*"):
            if file.suffix in (".py", ".yaml", ".cu", ".cuh", ".html"):
                assert f"{inside}/{file.relative_to(ROOT / folder)}" in names
    assert [name for name in names if name.startswith("kernel_runner/") and name.endswith(".py")] == [
        "kernel_runner/__init__.py"
    ]
    assert {"runner/py.typed", "kernel_runner/py.typed", f"{info}/licenses/LICENSE"} <= names
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_payload().startswith("# kernel-runner")
    needs = [Requirement(each) for each in metadata.get_all("Requires-Dist")]
    assert [need.name for need in needs if not need.marker or need.marker.evaluate({"extra": ""})] == ["torch"]


def test_the_timer_needs_torch_alone_and_the_rest_says_what_to_install(installed, torch_alone, tmp_path):
    python, path = (sys.executable, "-S"), f"{installed}{os.pathsep}{torch_alone}"
    printed = run(*python, "-c", TIMER.format(name="runner"), folder=tmp_path, path=path)
    assert "relu" in printed
    assert "vs" in printed
    for call in ("load('outputs/**')", "bench({'f': abs, 'g': abs}, torch.ones(9), max_s=0.01).frame()"):
        program = (
            f"import torch\nfrom runner import bench, load\ntry:\n    {call}\nexcept ImportError as error: print(error)"
        )
        assert "pip install 'kernel-runner[cli]'" in run(*python, "-c", program, folder=tmp_path, path=path)
    said = run(*python, "-m", "runner", "workload=gelu", folder=tmp_path, path=path, code=2)
    assert said == "runner: the command needs Hydra and more; pip install 'kernel-runner[cli]'\n"


@pytest.mark.parametrize("name", ["runner", "kernel_runner"])
def test_a_type_checker_sees_the_types_of_the_installed_package(installed, tmp_path, name):
    program = (
        f"from {name} import Timing, bench\nreveal_type(bench)\ndef us(timing: Timing) -> float: return timing.us\n"
    )
    (tmp_path / "mine.py").write_text(program)
    (tmp_path / "mypy.ini").write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n")
    printed = run(sys.executable, "-m", "mypy", "--strict", "mine.py", folder=tmp_path, path=str(installed))
    assert 'Revealed type is "def (' in printed, printed


def test_another_package_called_kernels_stays_what_it_is(installed, torch_alone, shadowed):
    shutil.rmtree(shadowed / "runner")
    program = TIMER.format(name="runner") + "import kernels\nassert kernels.mine"
    run(sys.executable, "-S", "-c", program, folder=shadowed, path=f"{installed}{os.pathsep}{torch_alone}")


def test_beside_a_folder_called_runner_the_timer_has_another_name(installed, torch_alone, shadowed):
    program = TIMER.format(name="kernel_runner") + "import runner\nassert runner.mine"
    run(sys.executable, "-S", "-c", program, folder=shadowed, path=f"{installed}{os.pathsep}{torch_alone}")


def test_beside_a_folder_called_runner_pytest_has_the_fixtures(installed, shadowed):
    (shadowed / "test_mine.py").write_text(
        "import runner, torch\ndef test_mine(bench):\n    assert runner.mine and bench(torch.relu, torch.ones(9)).us\n"
    )
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--runner-cpu", "test_mine.py")
    assert "1 passed" in run(sys.executable, *words, folder=shadowed, path=str(installed))


@pytest.mark.parametrize("command", [["bin/runner"], ["-m", "kernel_runner"]], ids=" ".join)
def test_beside_a_folder_called_runner_the_command_runs(installed, shadowed, command):
    first = [str(installed / word) if "/" in word else word for word in command]
    fields = (
        "workload=gelu",
        "workload.rows=8",
        "workload.cols=8",
        "impl=torch,naive",
        "device=cpu",
        "quick=true",
        "log=none",
    )
    printed = run(sys.executable, *first, *fields, "-m", folder=shadowed, path=str(installed))
    assert re.search(r"2 cases: 2 ok", printed), printed
