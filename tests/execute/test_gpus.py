"""Which GPUs there are, by a pynvml of our own: found, hidden, divided, chosen, busy, and hanging."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict

import pytest

from runner.device import gpus, processes
from runner.device.gpus import Gpu
from runner.execute.local import Local
from runner.records.bad_input import BadInput

A, B, C = "GPU-aa11", "GPU-aa22", "GPU-cc33"
THREE = [[A, "H200", 100, 7], [B, "H200", 100, 8], [C, "H200", 100, 9]]

FAKE = """
import json, os
NVML_DEVICE_MIG_ENABLE, nvmlMemory_v2 = 1, 2
class NVMLError(Exception): pass
class Memory:
    def __init__(self, total, used): self.total, self.used = total, used
BOX = json.loads(os.environ["BOX"])  # [uuid, name, total, used] or "lost"; [uuid, name, instances] if divided
def nvmlInit(): exec(os.environ.get("AT_INIT", ""))
def nvmlDeviceGetCount(): return len(BOX)
def nvmlDeviceGetHandleByIndex(place):
    if BOX[place] == "lost": raise NVMLError("GPU is lost")
    return BOX[place]
def nvmlDeviceGetUUID(gpu): return gpu[0]
def nvmlDeviceGetName(gpu): return gpu[1]
def nvmlDeviceGetMigMode(gpu):
    if gpu[1] == "T4": raise NVMLError("Not Supported")
    return [len(gpu) == 3, 0]
def nvmlDeviceGetMaxMigDeviceCount(gpu): return 7
def nvmlDeviceGetMigDeviceHandleByIndex(gpu, place):
    parts = dict(gpu[2])
    if place not in parts: raise NVMLError("Not Found")
    return parts[place]
def nvmlDeviceGetMemoryInfo(gpu, version=None):
    if gpu[2] is None: raise NVMLError("Not Supported")
    return Memory(gpu[2], gpu[3] if version else gpu[3] + 600)
"""


@pytest.fixture
def box(monkeypatch, tmp_path):
    """``box([[uuid, name, total, used], ...])`` is the machine from now on; ``at_init`` is run when NVML starts."""
    (tmp_path / "pynvml.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def build(devices, at_init=""):
        monkeypatch.setenv("BOX", json.dumps(devices))
        monkeypatch.setenv("AT_INIT", at_init)

    return build


def numbered(*uuids):
    return [Gpu(index, uuid, "H200", 100, 0) for index, uuid in enumerate(uuids)]


def test_the_child_tells_of_each_gpu(box):
    box(THREE)
    assert gpus.visible() == [Gpu(0, A, "H200", 100, 7), Gpu(1, B, "H200", 100, 8), Gpu(2, C, "H200", 100, 9)]


def test_the_driver_s_own_memory_is_left_out_where_it_can_be(box):
    box([[A, "H200", 1000, 7], [C, "T4", None, None]])
    assert [(gpu.memory_bytes, gpu.used_bytes) for gpu in gpus.visible()] == [(1000, 7), (0, 0)]


def test_a_lost_gpu_hides_no_other_and_has_no_number(box):
    box([THREE[0], "lost", THREE[2]])
    assert [(gpu.index, gpu.uuid) for gpu in gpus.visible()] == [(0, A), (1, C)]


def test_a_divided_gpu_is_its_instances(box, monkeypatch):
    parts = [[0, ["MIG-1", "A100 MIG 1g", 10, 1]], [3, ["MIG-2", "A100 MIG 2g", 20, 2]]]
    box([[A, "A100", parts], [B, "A100", []], THREE[2]])
    first, second = Gpu(0, "MIG-1", "A100 MIG 1g", 10, 1, A), Gpu(1, "MIG-2", "A100 MIG 2g", 20, 2, A)
    assert gpus.visible() == [first, second, Gpu(2, C, "H200", 100, 9)]
    for wanted, seen in (
        ("0", ["MIG-1", "MIG-2"]),
        ("1,2", []),
        ("2", [C]),
        ("MIG-2", ["MIG-2"]),
        (A, ["MIG-1", "MIG-2"]),
    ):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", wanted)
        assert [gpu.uuid for gpu in gpus.visible()] == seen, wanted


@pytest.mark.parametrize(
    ("wanted", "seen"),
    [
        ("0,1,2", [A, B, C]),
        ("2,0", [C, A]),
        (" 1 , 2 ", [B, C]),
        ("", []),
        ("-1", []),
        ("0,2,-1,1", [A, C]),
        ("1,7,0", [B]),
        ("1,what,0", [B]),
        ("NoDevFiles", []),
        (f"{C},{A}", [C, A]),
        ("GPU-c,GPU-aa2", [C, B]),
        ("GPU-c,GPU-aa,GPU-aa1", [C]),
        (f"{A},GPU-zz,{C}", [A]),
    ],
)
def test_cuda_visible_devices(wanted, seen, monkeypatch):
    answer = json.dumps([asdict(gpu) for gpu in numbered(A, B, C)])
    monkeypatch.setattr(processes, "output", lambda *_: answer)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", wanted)
    assert [gpu.uuid for gpu in gpus.visible()] == seen


def test_what_is_hidden_is_counted_anew_and_said(box, monkeypatch):
    box(THREE)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    assert [(gpu.index, gpu.uuid) for gpu in gpus.visible()] == [(0, C), (1, B)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found, why = gpus.query_gpus()
    assert found == []
    assert "CUDA_VISIBLE_DEVICES='' hides" in why
    assert A in why


def test_a_child_that_hangs_is_killed_at_the_limit(box, tmp_path):
    box(THREE, at_init=f"import time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(100)")
    start = time.monotonic()
    found, why = gpus.query_gpus(4)
    assert 4 <= time.monotonic() - start < 60
    assert found == []
    assert "did not answer within 4 s" in why
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_child_that_cannot_be_killed_is_left_behind(box, monkeypatch):
    box(THREE, at_init="import time; time.sleep(100)")
    monkeypatch.setattr(os, "killpg", lambda *_: None)  # as one that is stuck in the driver
    start = time.monotonic()
    assert gpus.visible(0.2) == []
    assert 1.2 <= time.monotonic() - start < 60


@pytest.mark.parametrize("at_init", ["raise NVMLError", "os._exit(0)", "os.abort()"])
def test_no_driver_is_no_gpu(box, at_init):
    box(THREE, at_init)
    assert gpus.query_gpus() == ([], "no NVIDIA driver answers here")


def test_what_is_printed_beside_the_answer_is_ignored(box):
    box([THREE[0]], "print('what?')")
    assert gpus.visible() == [Gpu(0, A, "H200", 100, 7)]


def test_a_driver_without_gpus(box):
    box([])
    assert gpus.query_gpus() == ([], "the NVIDIA driver has no GPU for this process")


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        ("all", [A, B, C]),
        ("0", [A]),
        ("2,0", [C, A]),
        (" 1, GPU-c ", [B, C]),
        (B, [B]),
        ("GPU-aa2,0", [B, A]),
    ],
)
def test_choose(asked, chosen):
    assert [gpu.uuid for gpu in gpus.select_gpus(asked, numbered(A, B, C))] == chosen


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ("3", "no single GPU 3"),
        ("-1", "no single GPU -1"),
        ("0,GPU-b", "no single GPU GPU-b"),
        ("GPU-aa", "no single GPU GPU-aa"),
        ("0,0", "0 is named twice"),
        ("0,GPU-aa1", "GPU-aa1 is named twice"),
        ("0,", "no single GPU without a name"),
        ("", "no single GPU without a name"),
    ],
)
def test_choosing_what_is_not_there_says_what_is(asked, why, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    with pytest.raises(BadInput) as error:
        gpus.select_gpus(asked, numbered(A, B, C))
    message = str(error.value)
    assert message.startswith(f"launcher.gpus={asked}: {why}; there is 0 (H200, {A}), 1 (H200, {B}), 2 (H200, {C})")
    assert "CUDA_VISIBLE_DEVICES=0,1,2" in message


def test_a_full_uuid_is_itself_though_it_begins_another():
    assert [gpu.uuid for gpu in gpus.select_gpus("GPU-1", numbered("GPU-1", "GPU-11"))] == ["GPU-1"]


def test_the_uuid_of_a_divided_gpu_chooses_its_instances():
    found = [Gpu(0, "MIG-1", "x", 0, 0, A), Gpu(1, "MIG-2", "x", 0, 0, A), Gpu(2, C, "x", 0, 0)]
    assert gpus.select_gpus("GPU-aa", found) == found[:2]
    assert gpus.select_gpus("MIG-2", found) == [found[1]]


@pytest.mark.parametrize("asked", ["all", "0"])
def test_choosing_from_none(asked):
    with pytest.raises(BadInput, match=rf"^launcher\.gpus={asked}: there is no GPU here; leave it out$"):
        gpus.select_gpus(asked, [])


@pytest.mark.parametrize(
    ("asked", "device", "means_cpu"),
    [
        (0, "auto", True),
        ("all", "auto", True),
        ("3", "cpu", True),
        *((name, "auto", False) for name in ("3", "-1", "0,2")),
    ],
)
def test_without_a_gpu_only_the_default_and_all_mean_the_cpu(
    user_case, tmp_path, monkeypatch, asked, device, means_cpu
):
    monkeypatch.setattr(gpus, "visible", lambda limit_s=20.0: [])
    limits = {"start_limit_s": 1, "build_limit_s": 1, "check_limit_s": 1, "measure_limit_s": 1}
    gone = user_case(tmp_path / "gone.py", "right", device=device)  # it has its row without a worker
    events = Local(gpus=asked, precompile=0, **limits).run([gone], str(tmp_path / "worker.log"))
    if means_cpu:
        assert [row.status for row in events] == ["build_failed"]
    else:
        with pytest.raises(BadInput, match=f"^launcher.gpus={asked}: there is no GPU here"):
            next(events)


def test_memory_in_use_is_others():
    assert gpus.busy(Gpu(0, A, "NVIDIA H200", 141 * 2**30, 250 * 2**20)) == ""
    said = gpus.busy(Gpu(0, A, "NVIDIA H200", 141 * 2**30, int(12.3 * 2**30)))
    assert said == "GPU 0 (NVIDIA H200) holds 12.3 GiB for other processes: timings may suffer"
