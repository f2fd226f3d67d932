"""A plan gives the driver what Triton's own launch gives it, in every version of Triton, shown without a GPU.

A process loads a driver that only writes down launches (``driver_stub.c``). Each operation is called three times: the
first call records its plan, Triton's way is then compared with that of the plan, on other tensors too.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import sysconfig
from importlib import import_module
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
STUB = Path(__file__).with_name("driver_stub.c")
FIRST = 6  # words of a line before the parameters
LEAST_ADDRESS = 2**32
CASES = {
    "add": (((1000,), (1000,)), {}),
    "gelu": (((1000,),), {"form": "erf"}),
    "cumsum": (((64, 1000),), {}),
    "reduce_sum": (((100, 3001),), {"dim": "all"}),
    "argmax": (((3000, 100),), {"dim": 0}),
    "matmul": (((256, 264), (264, 256)), {}),
    "cdist": (((300, 64), (200, 64)), {"p": 2}),
}
MULTIPLY = ("matmul", "cdist")  # with Triton 3.4 and later


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a driver")
def test_a_plan_launches_with_the_arguments_of_tritons_own_launch(tmp_path):
    triton = pytest.importorskip("triton")
    compiler, header = shutil.which("gcc"), Path(sysconfig.get_paths()["include"], "Python.h")
    if compiler is None or not header.is_file():
        pytest.skip("no C compiler, or no headers of Python")
    library = tmp_path / "libcuda.so.1"
    headers = Path(triton.__file__).parent / "backends/nvidia/include"
    flags = ["-shared", "-fPIC", f"-I{headers}", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([compiler, *flags, str(STUB), "-o", str(library)], check=True)
    (tmp_path / "libcuda.so").symlink_to(library)  # that name is linked before Triton 3.6
    places = {"TRITON_LIBCUDA_PATH": tmp_path, "LD_LIBRARY_PATH": tmp_path, "TRITON_CACHE_DIR": tmp_path / "cache"}
    environment = {**os.environ, **{name: str(place) for name, place in places.items()}}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "tests.kernels.test_launch_arguments", str(library)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split()[-1] == "same"


def aligned(shape, dtype):
    """Return random numbers at a multiple of 128 bytes, as a GPU's allocator gives them."""
    count = torch.Size(shape).numel()
    room = torch.rand(count + 64).to(dtype)
    first = -room.data_ptr() % 128 // room.element_size()
    return room[first : first + count].view(shape)


def main(library):
    """Compare the launches of plans with those of Triton, for the driver in ``library``."""
    stub = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    ops = {op: import_module(f"runner.kernels.{op}.triton") for op in CASES if op not in MULTIPLY or new_enough()}
    from runner.kernels import launch, triton_launch

    os.environ["TRITON_INTERPRET"] = "1"  # tensors of a CPU are accepted; kernels are decorated already
    use_the_stub()
    bound = triton_launch._bound

    def seen(compiled, *rest):
        words = [word for word in compiled.src.signature.values() if word != "constexpr"]
        count = sum(5 if str(word).startswith("tensordesc") else 1 for word in words)
        stub.stub_register(ctypes.c_uint64(compiled.function), count)
        return bound(compiled, *rest)

    triton_launch._bound = seen
    log = f"{library}.log"

    def launches(function, *args, **options):
        stub.stub_open(log.encode())
        function(*args, **options)
        stub.stub_open(None)
        return [line.split(" ") for line in Path(log).read_text().splitlines()]

    for op, module in ops.items():
        shapes, options = CASES[op]
        function = getattr(module, op)
        for dtype in (torch.float32, torch.float16):
            first, second = ([aligned(shape, dtype) for shape in shapes] for _ in range(2))
            launch.forget()
            function(*first, **options)
            (kept,) = [plan for plans in launch._all for plan in plans.values()]
            assert kept is not None, (op, "is not planned")
            by_plan = [launches(function, *inputs, **options) for inputs in (first, second)]
            assert [plan for plans in launch._all for plan in plans.values()] == [kept], (op, "was recorded again")
            for inputs, found in zip((first, second), by_plan, strict=True):
                launch.forget()
                plain = launches(function, *inputs, **options)
                check(op, found, plain, {f"{x.data_ptr():x}" for x in inputs})
    print("same")


def check(op, by_plan, plain, inputs):
    """Compare the launches. Memory that was made for each may be at two addresses, and so its descriptor two hashes."""
    assert len(by_plan) == len(plain) > 0, op
    for one, other in zip(by_plan, plain, strict=True):
        assert one[:FIRST] == other[:FIRST], (op, one, other)
        assert len(one) == len(other), (op, one, other)
        for word, expected in zip(one[FIRST:], other[FIRST:], strict=True):
            alike = word == expected or int(word, 16) % 2**32 == int(expected, 16) % 2**32  # 32 bits are read as 64
            made = all(int(part, 16) >= LEAST_ADDRESS and part not in inputs for part in (word, expected))
            assert alike or made, (op, word, expected)


def new_enough():
    from runner.kernels.triton_device import OLD

    return not OLD


def use_the_stub():
    from triton.backends.nvidia.driver import CudaDriver
    from triton.runtime.driver import driver

    torch._C._cuda_getCurrentRawStream = lambda device: 0
    made = CudaDriver()
    made.get_current_device = lambda: 0
    made.get_current_stream = lambda device: 0
    made.get_device_capability = lambda device: (9, 0)
    driver.set_active(made)


if __name__ == "__main__":
    main(sys.argv[1])
