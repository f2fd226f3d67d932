"""Where Python finds modules once the folders of a user are added."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
sys.path[:] = [place for place in sys.path if place != {root!r}] + {own}
from kernel_runner.device import import_path
if __name__ == "__main__":
    import_path.arrange({user!r})
    with ProcessPoolExecutor(1, get_context("forkserver")) as pool:
        print(pool.submit(import_path.is_reserved, "torch").result(), sys.path[-1], {user!r} in sys.path)
"""


def test_processes_that_python_starts_find_a_package_that_is_on_the_path_and_not_installed(cold, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(root=str(ROOT), own=[str(ROOT)], user=str(tmp_path / "user")))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert done.stdout == f"True {ROOT} True\n", done.stderr
