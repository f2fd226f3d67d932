"""Count the kernels in CUDA C++ that build as their files are written, from folders of the user's. Needs no GPU.

    python -m benchmarks.kernels.cu_files FOLDER [FOLDER ...] [--draw 60] [--seed 1] [--arch sm_90a]

Every ``__global__`` function of every .cu and .cuh file counts once, and is compiled by NVRTC as ``runner.cuda_kernel``
compiles it. A template is tried with the arguments of its launches in the folder, then with float and small numbers.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common import table
from runner.kernels import cuda_device_code, cuda_nvrtc
from runner.kernels.cuda_kernel import BuildFailed
from runner.kernels.unsupported import Unsupported

NUMBERS = (8, 32, 128, 4, 1)  # tried for the whole numbers among a template's parameters
LAUNCH = r"\b{0}\s*<(?!<)([^;{{}}]*?)>\s*<<<"
TEMPLATE = r"template\s*<([^;{{}}]*)>\s*(?:(?:static|inline|extern|__\w+__(?:\s*\([^;{{}}]*?\))?|void)\s+)*{0}\s*\("


def main() -> int:
    """Print a table of the kernels that do not build, with the reason, and the count. Return 1 if any does not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--draw", type=int, help="so many of the kernels, drawn at random")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--arch", default="sm_90a")
    arguments = parser.parse_args()
    found = [one for folder in arguments.folders for one in _kernels(folder)]
    if arguments.draw and arguments.draw < len(found):
        found = sorted(random.Random(arguments.seed).sample(found, arguments.draw))
    reasons = [(file, kernel, _reason(folder, file, kernel, arguments.arch)) for folder, file, kernel in found]
    failed = [(f"`{file.name}`", f"`{kernel}`", reason) for file, kernel, reason in reasons if reason]
    count = f"{len(reasons) - len(failed)} of {len(reasons)} kernels build"
    page = table(["file", "kernel", "why not"], failed) if failed else ""
    print(f"{page}\n\n{count}")
    return bool(failed)


def _kernels(folder: Path) -> Iterator[tuple[Path, Path, str]]:
    """Yield each kernel of the files below ``folder``, with ``folder`` and the file that defines it."""
    for file in _files(folder):
        own = file.read_text(encoding="utf-8", errors="replace")
        for kernel in cuda_device_code.kernels(file):
            if re.search(rf"__global__[^;{{}}]*\b{_plain(kernel)}\s*\(", own):  # others are of an included file
                yield folder, file, kernel


def _plain(kernel: str) -> str:
    """Return the name without namespaces."""
    return kernel.rpartition("::")[2]


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in (".cu", ".cuh"))


def _reason(folder: Path, file: Path, kernel: str, arch: str) -> str:
    """Return why the kernel does not build from its file, or one that includes it, in one line; "" if it does."""
    first = ""
    folders = sorted({path.parent for path in folder.rglob("*.h*")} | {path.parent for path in folder.rglob("*.cuh")})
    including = (other for other in _files(folder) if f'{file.name}"' in other.read_text("utf-8", errors="replace"))
    for source in (file, *including):
        for name in _instances(folder, file, kernel):
            try:
                cuda_nvrtc.compiled(cuda_device_code.device_file(source, name, folders), name, arch)
            except (BuildFailed, Unsupported) as error:
                first = first or str(error).splitlines()[0]
            else:
                return ""
    return first


def _instances(folder: Path, file: Path, kernel: str) -> Iterator[str]:
    """Yield names of the kernel with template arguments to try; the plain name if it is not a template."""
    template = re.search(TEMPLATE.format(_plain(kernel)), file.read_text(encoding="utf-8", errors="replace"))
    if not template:
        yield kernel
        return
    for other in dict.fromkeys([file, *_files(file.parent), *_files(folder)]):
        text = other.read_text(encoding="utf-8", errors="replace")
        for launch in re.finditer(LAUNCH.format(_plain(kernel)), text):
            yield f"{kernel}<{', '.join(_value(word, text[: launch.start()]) for word in launch[1].split(','))}>"
    parameters = [part.strip() for part in re.split(r",(?![^(<]*[>)])", template[1])]
    needed = [part for part in parameters if "=" not in part and "..." not in part]
    for number in NUMBERS:
        values = ("float" if part.startswith(("typename", "class")) else str(number) for part in needed)
        yield f"{kernel}<{', '.join(values)}>"


def _value(word: str, before: str) -> str:
    """Return the value of a constant that the text ``before`` a launch gives; another word as it is."""
    constants = re.findall(rf"const(?:expr)?\b[^;=(]*\b{re.escape(word.strip())}\s*=\s*([^;]+);", before)
    return str(constants[-1] if constants else word).strip()


if __name__ == "__main__":
    sys.exit(main())
