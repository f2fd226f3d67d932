"""The findings of `doctor` on simulated machines: tools and files with known content."""

from __future__ import annotations

import os
import sys

import pytest

from runner import cli
from runner.device import doctor, processes
from runner.device import tools as places
from runner.device.gpus import Gpu

NO_TORCH = "import no_such_torch"  # asking the real one takes 2.5 s


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """``tool(name, text)`` puts a command that prints ``text`` on an otherwise empty PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def make(name, text, code=0):
        path = folder / name
        path.write_text(f"#!{sys.executable}\nprint({text!r})\nraise SystemExit({code})\n")
        path.chmod(0o755)

    return make


@pytest.fixture(autouse=True)
def bare(tmp_path, monkeypatch):
    """The machine has no keys, no settings, and no profilers beside PATH."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "CUDA_MPS_PIPE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(places, "PLACES", ())
    monkeypatch.setattr(doctor, "MPS_PIPES", str(tmp_path / "no pipe"))
    monkeypatch.setattr(doctor, "PARAMETERS", tmp_path / "params")
    monkeypatch.setattr(doctor, "GOVERNOR", tmp_path / "governor")


def by_name(findings):
    return {one.what: one for one in findings}


def test_the_command_says_what_is_missing_and_what_to_type(capsys):
    assert cli.main(["doctor"]) == 0  # cases can be run on this very machine
    out = capsys.readouterr().out
    assert "✗ nsys" in out
    assert "→ install Nsight Systems" in out
    assert "wandb login, or log=none" in out


def test_it_takes_no_words(capsys):
    assert cli.main(["doctor", "--loud"]) == 2
    assert capsys.readouterr().err == "runner: --loud: no such flag; one of: --help; see runner doctor --help\n"


def test_without_torch_nothing_can_be_run(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "ASK_TORCH", NO_TORCH)
    assert cli.main(["doctor"]) == 1
    assert "it cannot be imported" in capsys.readouterr().out


def test_a_kind_that_cannot_be_looked_at_hides_no_other(monkeypatch):
    monkeypatch.setattr(doctor, "ASK_TORCH", NO_TORCH)
    monkeypatch.setattr(doctor, "check_gpus", lambda: 1 / 0)
    found = dict(doctor.examine())
    assert [one.text for one in found["gpus"]] == ["ZeroDivisionError: division by zero"]
    assert {"profilers", "software", "surroundings"} <= found.keys()


def test_a_command_that_hangs_is_given_up(tool):
    tool("slow", "")
    (path,) = os.get_exec_path()
    with open(f"{path}/slow", "w") as file:
        file.write(f"#!{sys.executable}\nimport time\ntime.sleep(100)\n")
    assert processes.output(["slow"], 0.5) is None
    assert processes.output(["none of this name"]) is None


def test_compilers(monkeypatch, tool):
    monkeypatch.setattr(doctor, "ASK_TORCH", NO_TORCH)
    assert by_name(doctor.check_software())["C++ compiler"].state == "missing"
    tool("g++", "g++ (Debian) 12.2.0\nand more")
    assert by_name(doctor.check_software())["C++ compiler"].text == "g++ (Debian) 12.2.0"


def test_other_libraries_are_one_line_with_the_extras_of_those_that_are_missing(monkeypatch, tmp_path):
    (tmp_path / "gelu").mkdir()
    for package, extra in {"orjson": "one", "no-such-a": "two", "no-such-b": "three"}.items():
        (tmp_path / "gelu" / f"{extra}.py").write_text(f'with needs("{package}", extra="{extra}"):\n    pass\n')
    monkeypatch.setattr(doctor, "KERNELS", tmp_path)
    monkeypatch.setattr(doctor, "ASK_TORCH", NO_TORCH)
    found = by_name(doctor.check_software())["other libraries"]
    assert found.text.startswith("orjson 3.")
    assert found.advice == "pip install -e '.[two,three]' in the checkout, for impl=two,three"


@pytest.mark.parametrize(("cuda", "state"), [("null", "ok"), ('"12.8"', "ok"), ('"13.0"', "note")])
def test_nvcc_is_of_the_cuda_of_torch(monkeypatch, tool, cuda, state):
    tool("nvcc", "Cuda compilation tools, release 12.4, V12.4.131")
    monkeypatch.setattr(doctor, "ASK_TORCH", f"""print('TORCH ["2.13.0", {cuda}, 1]')""")
    nvcc = by_name(doctor.check_software())["nvcc"]
    assert nvcc.state == state
    if state == "note":
        assert nvcc.text == "12.4, while torch is for CUDA 13.0"
        assert nvcc.advice.startswith("install the CUDA toolkit 13,")


@pytest.mark.parametrize(
    ("said", "found", "state"),
    [
        ('["2.13.0+cpu", null, 0]', "2.13.0+cpu, for the CPU only", "note"),
        ('["2.11.0", "13.0", 0]', "2.11.0, for CUDA 13.0; it sees no GPU", "note"),
        ('["2.11.0", "13.0", 1]', "2.11.0, for CUDA 13.0; it sees 1 GPU", "ok"),
        ('["2.11.0", "13.0", 8]', "2.11.0, for CUDA 13.0; it sees 8 GPUs", "ok"),
    ],
)
def test_torch(monkeypatch, said, found, state):
    monkeypatch.setattr(doctor, "ASK_TORCH", f"print('a warning'); print('TORCH', {said!r})")
    torch = by_name(doctor.check_software())["torch"]
    assert (torch.text, torch.state) == (found, state)


def test_profilers(tool):
    assert {one.state for one in doctor.check_profilers()} == {"missing"}
    tool("nsys", "NVIDIA Nsight Systems version 2025.3.2.474-253236389321v0")
    tool("ncu", "NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2025.3.1.0 (build 36398880)")
    assert [one.text for one in doctor.check_profilers()] == ["2025.3.2.474", "2025.3.1.0"]


def test_profilers_beside_the_path(tool, tmp_path, monkeypatch):
    tool("ncu", "Version 2024.2.1")
    (path,) = os.get_exec_path()
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(places, "PLACES", (f"{path[:-1]}*/{{name}}",))
    assert by_name(doctor.check_profilers())["ncu"].text == f"2024.2.1 in {path}/ncu, which is not on PATH"


@pytest.mark.parametrize(
    ("params", "capabilities", "state"),
    [
        ("RmProfilingAdminOnly: 1\n", "0000000000000000", "missing"),
        ("RmProfilingAdminOnly: 1\n", "00000000a80425fb", "missing"),  # root in a container, as Docker makes it
        ("RmProfilingAdminOnly: 1\n", "000001ffffffffff", "ok"),
        ("X: 1\n", "0000000000000000", "ok"),
    ],
)
def test_counters(monkeypatch, tmp_path, params, capabilities, state):
    doctor.PARAMETERS.write_text(params)
    monkeypatch.setattr(doctor, "STATUS", tmp_path / "status")
    doctor.STATUS.write_text(f"Name:\tpython\nCapEff:\t{capabilities}\n")
    counters = by_name(doctor.check_profilers())["GPU counters"]
    assert counters.state == state
    assert ("NVreg_RestrictProfilingToAdminUsers=0" in counters.advice) == (state == "missing")


def test_a_gpu_and_what_spoils_its_timings(monkeypatch, tool, tmp_path):
    gpu = Gpu(0, "GPU-1", "H200", 141 * 2**30, 2 * 2**30)
    monkeypatch.setattr(doctor.gpus, "query_gpus", lambda: ([gpu], ""))
    tool("nvidia-smi", "GPU-1, Disabled, Exclusive_Process, 500.00, 700.00, 1980\nGPU-2, Enabled, Default, 1, 1, 1")
    first, *rest = doctor.check_gpus()
    assert (first.state, first.text) == ("ok", "H200, 141 GiB, up to 1980 MHz, GPU-1")
    assert {one.state for one in rest} == {"note"}
    others, persistence, mode, power = (one.advice for one in rest)
    assert "launcher.gpus" in others
    assert persistence.startswith("nvidia-smi -i 0 -pm 1")
    assert mode.startswith("nvidia-smi -i 0 -c 0")
    assert power.startswith("nvidia-smi -i 0 -pl 700")
    (tmp_path / "pipe").mkdir()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "pipe"))
    assert doctor.check_gpus()[-1].what == "MPS"


def test_a_gpu_in_good_order_is_one_line(monkeypatch, tool):
    monkeypatch.setattr(doctor.gpus, "query_gpus", lambda: ([Gpu(0, "GPU-1", "H200", 141 * 2**30, 0)], ""))
    tool("nvidia-smi", "GPU-1, Enabled, Default, 700.00, 700.00, 1980")
    assert len(doctor.check_gpus()) == 1
    tool("nvidia-smi", "a driver that says something else")
    assert [one.text for one in doctor.check_gpus()] == ["H200, 141 GiB, GPU-1"]


def test_no_gpu_says_why(monkeypatch):
    monkeypatch.setattr(doctor.gpus, "query_gpus", lambda: ([], "no NVIDIA driver answers here"))
    assert [one.text for one in doctor.check_gpus()] == ["no NVIDIA driver answers here"]


def test_wandb(monkeypatch, tmp_path):
    def found():
        return by_name(doctor.check_surroundings())["W&B"]

    assert found().text == "not logged in: runs are not logged"
    (tmp_path / "netrc").write_text("machine api.wandb.ai\n  login user\n  password abcdef0123\n")
    assert found().text == "logged in to api.wandb.ai"
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org:8443")
    assert found().state == "note"
    monkeypatch.setenv("WANDB_API_KEY", "abcdef0123")
    assert found().text == "a key is in the environment"
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert found().text == "WANDB_MODE=offline"


def test_a_full_disk_and_a_busy_machine(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "LEAST_FREE_BYTES", 2**60)
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 0.0, 0.0))
    doctor.GOVERNOR.write_text("powersave\n")
    found = by_name(doctor.check_surroundings())
    assert found["disk for results"].advice == "choose another place with output_dir="
    assert found["disk for cache"].advice == "set XDG_CACHE_HOME to another place"
    assert found["CPU"].state == "note"
    assert found["CPU governor"].text == "powersave"
