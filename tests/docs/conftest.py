"""A copy of the project with the files that the pages print, and the real command line run inside it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = r"(?:# @package \S+\n)?"  # which Hydra looks for in the first line
NAMED = r"(?:#|//) (\S+\.(?:py|yaml|cu))[:\n]"  # the line that names the file
PRINTED = re.compile(rf"```(?:python|yaml|cuda)\n({PACKAGE}{NAMED}.*?)```", re.DOTALL)

MODULE = "class {0}:\n    def forward(self, x): return x\nbatch_size = 2\ndef get_inputs(): return [batch_size]\n"
DEFINITION = (
    """{"axes": {"batch_size": {"type": "var"}}, "inputs": {}, "outputs": {}, "reference": "def run(): return 1"}"""
)
READERS = {  # files that a reader has and the pages name
    "level1/40_LayerNorm.py": MODULE.format("Model"),
    "new.py": MODULE.format("ModelNew"),
    "rmsnorm/definition.json": DEFINITION,
    "rmsnorm/workload.jsonl": '{"axes": {"batch_size": 3}}',
    "kernel.py": "def run(): return 1",
    "pmpp_v2/vectoradd_py/task.yml": 'files: [{source: "@SUBMISSION@"}]\ntests: [{size: 3}]\n',
    "pmpp_v2/vectoradd_py/reference.py": "generate_input = ref_kernel = check_implementation = len",
    "submission.py": "def custom_kernel(data): return data",
}


@dataclass(frozen=True)
class Project:
    """A project in which a reader has followed the pages."""

    root: Path

    def python(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Python in the project's folder, importing the project and nothing of this checkout."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB_", "TRITON_"))}
        return subprocess.run(
            [sys.executable, *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            cwd=self.root,
            env=environment | {"PYTHONPATH": os.pathsep.join([str(self.root), os.environ.get("PYTHONPATH", "")])},
        )

    def program(self, source: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """``source``, run there as a file, so that its process is forked."""
        (self.root / "program.py").write_text(source, encoding="utf-8")
        return self.python("program.py", stdin=stdin)

    def run(self, *arguments: str, code: int = 0) -> Path:
        """The folder of a run through the real command line, which must exit with ``code``."""
        known = set(self.root.glob("outputs/*/*"))
        done = self.python("-m", "runner", "log=none", *arguments)
        assert done.returncode == code, done.stdout + done.stderr
        (folder,) = set(self.root.glob("outputs/*/*")) - known
        return folder

    def rows(self, *arguments: str, code: int = 0) -> list[dict]:
        """The rows of such a run."""
        folder = self.run(*arguments, code=code)
        with open(folder / "rows.jsonl", encoding="utf-8") as lines:
            return [record for record in map(json.loads, lines) if record["record"] == "row"]


@pytest.fixture(scope="session")
def project(tmp_path_factory) -> Project:
    """Made once: packages, configs, and each file printed in docs/*.md in its place."""
    root = tmp_path_factory.mktemp("project")
    for name in ("runner", "kernel_runner", "kernels", "models", "conf", "benchmarks/kernels"):
        shutil.copytree(ROOT / name, root / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    printed = [found for page in ROOT.glob("docs/*.md") for found in PRINTED.findall(page.read_text(encoding="utf-8"))]
    assert len(printed) >= 8
    for text, name in (*printed, *((text, name) for name, text in READERS.items())):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], *[["commit", "-q", "--allow-empty", "-m", "x"]] * 2):
        who = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(root), *who, *words], check=True)  # pages name revisions
    return Project(root)
