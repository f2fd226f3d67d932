"""The measured peak: columns for known rates, when it is kept, and the rates of a real GPU."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from runner.device import cache, identity
from runner.records.replaced import setting
from runner.timing import measured_peak
from runner.timing import measured_peak as room
from runner.timing.call import Work
from runner.timing.measured_peak import MeasuredPeak, columns

ROOT = Path(__file__).resolve().parents[2]
L2_BYTES = 50 * 2**20
RATES = {"float16": 700.0, "bfloat16": 720.0, "tf32": 400.0, "float32": 50.0, "float64": 60.0}
COPIES = [[0.0, 0.0], [2.0**31, 2**31 / 2900e3]]  # by its rate alone, whatever the size
H100 = MeasuredPeak(
    "NVIDIA H100 80GB HBM3", 2900.0, 3000.0, RATES, 850.0, {"cold": COPIES, "warm": COPIES}, "2026-01-31"
)
UNKNOWN = dataclasses.replace(H100, gpu="NVIDIA H100 80GB HBM3 MIG 1g.10gb")
FACTS = {"uuid": "4f1c-aa", "gpu": H100.gpu, "driver": "580.1", "torch": "2.13.0"}


def matmul(size: int, dtype: str = "float32", *, tf32: bool = False) -> Work:
    itemsize = {"float64": 8, "float32": 4}.get(dtype, 2)
    return Work(2 * size**3, 3 * size**2 * itemsize, dtype, tf32)  # type: ignore[arg-type]


def against(work: Work, time_us: float, measured_peak: MeasuredPeak = H100, *, cold_l2: bool = True):
    return columns(work, time_us, measured_peak, L2_BYTES, cold_l2)


# columns


def test_a_copy_stands_against_the_memory():
    work = Work(0, 2 * 2**30, "float32", False)
    row = against(work, 1000.0)
    assert row["intensity"] == 0
    assert row["bound"] == "memory"
    assert row["pct_of_measured_peak"] == pytest.approx(100 * 2 * 2**30 / 2900e3 / 1000)
    assert row["pct_datasheet"] == pytest.approx(100 * 2 * 2**30 / 3350e3 / 1000)
    assert row["fastest_possible_us"] == pytest.approx(0.9 * (2 * 2**30 - L2_BYTES) / 3000e3)


def test_a_copy_that_the_l2_cache_speeds_up_is_100_percent_of_one_of_as_many_bytes():
    cold, warm = [[2.0**20, 2.0], [2.0**27, 42.0], [2.0**31, 700.0]], [[2.0**20, 1.0], [2.0**31, 690.0]]
    gpu = dataclasses.replace(H100, copies_us={"cold": cold, "warm": warm})
    for size_bytes, copy_us in ((2**10, 2), (2**20, 2), (2**27, 42), (2**27 + 2**26, 42 + 658 / 30), (2**32, 1400)):
        work = Work(0, size_bytes, "float32", False)
        assert against(work, copy_us, gpu)["pct_of_measured_peak"] == pytest.approx(100)
    assert against(Work(0, 2**20, "float32", False), 2.0, gpu, cold_l2=False)["pct_of_measured_peak"] == 50
    assert against(Work(0, 2**27, "float32", False), 42.0, gpu)["bound"] == "memory"


def test_a_large_product_stands_against_its_types_rate():
    work = matmul(8192, "float16")
    row = against(work, 2000.0)
    assert row["intensity"] == pytest.approx(8192 / 3)
    assert row["bound"] == "compute"
    assert row["pct_of_measured_peak"] == pytest.approx(100 * work.flops / 700e6 / 2000)
    assert row["pct_datasheet"] == pytest.approx(100 * work.flops / 989.5e6 / 2000)
    assert row["fastest_possible_us"] == pytest.approx(0.9 * work.flops / 850e6)


def test_the_ridge_parts_the_two():
    ridge = 700e12 / 2900e9  # operations a byte
    for intensity, bound in ((0.99 * ridge, "memory"), (1.01 * ridge, "compute")):
        row = against(Work(int(intensity * 10**9), 10**9, "float16", False), 1000.0)
        assert row["bound"] == bound


def test_tf32_counts_for_float32_alone():
    time_us = 5000.0
    exact, tf32 = (against(matmul(4096, tf32=allowed), time_us)["pct_of_measured_peak"] for allowed in (False, True))
    assert exact / tf32 == pytest.approx(400 / 50)
    half = [against(matmul(4096, "float16", tf32=allowed), time_us) for allowed in (False, True)]
    assert half[0] == half[1]


def test_tf32_on_a_gpu_without_it_is_float32():
    old = dataclasses.replace(UNKNOWN, tflops={"float32": 15.0, "float16": 100.0}, ceiling_tflops=110.0)
    assert against(matmul(4096, tf32=True), 1e4, old) == against(matmul(4096), 1e4, old)


def test_a_product_by_three_cheaper_ones_passes_its_own_types_peak_and_is_possible():
    """Split each float32 into two float16 and leave out the least of the four products: right, and 4 times as fast."""
    work = matmul(8192)
    time_us = 3 * work.flops / 700e6
    row = against(work, time_us)
    assert row["pct_of_measured_peak"] > 400
    assert row["pct_datasheet"] > 300
    assert row["fastest_possible_us"] < time_us


def test_a_launch_that_did_nothing_is_impossible():
    assert against(matmul(8192, "bfloat16"), 5.0)["fastest_possible_us"] > 1000
    assert against(Work(0, 2**30, "float32", False), 5.0)["fastest_possible_us"] > 300


def test_float8_is_possible_at_twice_the_ceiling_of_16_bits_and_no_faster():
    wide, narrow = (against(matmul(8192, dtype), 5.0)["fastest_possible_us"] for dtype in ("bfloat16", "float8_e4m3fn"))
    assert narrow == pytest.approx(wide / 2)


def test_with_a_warm_cache_memory_sets_no_limit():
    work = Work(1000, 2 * 2**30, "float32", False)
    assert against(work, 1000.0, cold_l2=False)["fastest_possible_us"] == pytest.approx(0.9 * 1000 / 850e6)
    assert against(work, 1000.0, cold_l2=False)["pct_of_measured_peak"] == against(work, 1000.0)["pct_of_measured_peak"]


def test_what_fits_the_cache_sets_no_limit_either():
    work = Work(0, L2_BYTES, "float32", False)
    assert "fastest_possible_us" not in against(work, 20.0)


def test_a_type_without_a_rate_has_the_memorys_side_alone():
    odd = dataclasses.replace(H100, tflops={name: rate for name, rate in RATES.items() if name != "float64"})
    row = against(matmul(8192, "float64"), 1e5, odd)
    assert "bound" not in row
    assert row["pct_of_measured_peak"] == pytest.approx(100 * 3 * 8192**2 * 8 / 2900e3 / 1e5)
    assert row["fastest_possible_us"] == pytest.approx(0.9 * 2 * 8192**3 / 850e6)


def test_an_unknown_gpu_has_no_share_of_a_data_sheet():
    assert "pct_datasheet" not in against(matmul(8192), 1e4, UNKNOWN)
    assert "pct_of_measured_peak" in against(matmul(8192), 1e4, UNKNOWN)


@pytest.mark.parametrize("work", [Work(0, 0, "float32", False), Work(5, 0, "float32", False), matmul(64)])
@pytest.mark.parametrize("time_us", [0.0, -0.1, 3.0])
def test_no_figure_is_none_or_infinite_or_a_limit_of_zero(work, time_us):
    row = against(work, time_us)
    assert not any(value is None for value in row.values())
    assert all(value < float("inf") for value in row.values() if not isinstance(value, str))
    assert row.get("fastest_possible_us", 1.0) > 0
    assert ("pct_of_measured_peak" in row) == (time_us > 0)


# the data sheet


@pytest.mark.parametrize(
    ("name", "gbps", "dtype", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", 3350, "bfloat16", 989.5),
        ("NVIDIA H100 80GB HBM3", 3350, "float64", 67),
        ("NVIDIA H100 PCIe", 2000, "tf32", 378),
        ("NVIDIA H200", 4800, "float16", 989.5),
        ("NVIDIA A100-SXM4-80GB", 2039, "float64", 19.5),
        ("A100-SXM4-40GB", 1555, "bfloat16", 312),
        ("NVIDIA A100 80GB PCIe", 1935, "tf32", 156),
        ("NVIDIA GeForce RTX 4090", 1008, "float16", 165.2),
        ("NVIDIA GeForce RTX 4090", 1008, "float64", 1.29),
        ("Tesla T4", 320, "float16", 65),
        ("Tesla V100-SXM2-16GB", 900, "float64", 7.8),
    ],
)
def test_a_gpu_is_found_by_the_name_torch_gives_it(name, gbps, dtype, tflops):
    sheet = measured_peak.peaks(name)
    assert sheet is not None
    assert sheet.gbps == gbps
    assert sheet.tflops[dtype] == pytest.approx(tflops, rel=0.005)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "NVIDIA",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA H200 NVL",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 3090 Ti",
        "AMD Instinct MI300X",
    ],
)
def test_a_gpu_that_is_only_alike_is_unknown(name):
    assert measured_peak.peaks(name) is None


def test_no_gpu_has_a_type_that_nobody_asks_for_or_a_rate_out_of_order():
    for name in measured_peak.SHEETS:
        sheet = measured_peak.peaks(name)
        rates = sheet.tflops
        assert set(rates) <= {"float64", "float32", "tf32", "float16", "bfloat16", "float8_e4m3fn"}, name
        assert rates.get("float8_e4m3fn", 2 * rates["float16"]) == 2 * rates["float16"], name
        assert rates["float32"] <= rates.get("tf32", rates["float32"]) <= rates["float16"], name
        assert rates.get("bfloat16", rates["float16"]) == rates["float16"], name
        assert rates["float64"] <= rates["float32"], name
        assert 100 < sheet.gbps < 10_000, name


def test_a_type_that_old_tensor_cores_lack_is_left_out():
    assert not {"tf32", "bfloat16"} & set(measured_peak.peaks("T4").tflops)


# the file


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """``measured_peak()`` with a fake GPU: the list of how often it was measured, and an empty cache folder."""
    calls: list[str] = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(room, "identity", lambda: dict(FACTS))
    monkeypatch.setattr(room, "measure", lambda gpu: calls.append(gpu) or H100)
    room.measured_peak.cache_clear()
    yield calls
    room.measured_peak.cache_clear()


def again() -> MeasuredPeak:
    """As a fresh process would."""
    room.measured_peak.cache_clear()
    return room.measured_peak()


def kept_at() -> Path:
    return cache.cache_file("measured_peak", FACTS, room.FORMAT)


def test_a_peak_is_measured_once_a_process_and_once_a_machine(measured):
    assert room.measured_peak() is room.measured_peak()
    assert again() == H100
    assert measured == [H100.gpu]
    assert kept_at().name.startswith(FACTS["uuid"])


def test_another_driver_is_another_measured_peak(measured, monkeypatch):
    room.measured_peak()
    monkeypatch.setattr(room, "identity", lambda: FACTS | {"driver": "590.2"})
    again()
    assert len(measured) == 2
    assert len(list(kept_at().parent.iterdir())) == 2


def test_a_file_that_is_torn_is_measured_anew(measured):
    room.measured_peak()
    kept_at().write_text(kept_at().read_text()[:40])
    assert again() == H100
    assert len(measured) == 2
    assert again() == H100
    assert len(measured) == 2


def test_a_cache_that_cannot_be_written_does_no_harm(measured, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert room.measured_peak() == again() == H100
    assert len(measured) == 2


def test_a_peak_that_another_process_has_pressed_down_is_not_kept(measured, monkeypatch):
    pressed = dataclasses.replace(H100, copy_gbps=1400.0)
    monkeypatch.setattr(room, "measure", lambda gpu: pressed)
    assert room.measured_peak() == pressed
    assert not kept_at().exists()


def test_the_identity_has_what_a_peak_depends_on(monkeypatch):
    class Properties:
        name, uuid = "NVIDIA H200", "4f1c-aa"

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    facts = identity.identity()
    assert set(facts) == {"uuid", "gpu", "driver", "torch", "cuda", "cublas", "triton"}
    assert all(isinstance(value, str) for value in facts.values())
    assert (facts["uuid"], facts["gpu"], facts["torch"]) == ("4f1c-aa", "NVIDIA H200", torch.__version__)


# the measuring, without a GPU


@pytest.mark.parametrize("found", ["highest", "high", "medium"])
def test_the_precision_of_float32_is_left_as_found(found):
    precision = torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(found)
        with setting(*precision, "high"):
            assert torch.backends.cuda.matmul.allow_tf32
        assert torch.get_float32_matmul_precision() == found
        with setting(*precision, "highest"):
            assert not torch.backends.cuda.matmul.allow_tf32
        assert torch.get_float32_matmul_precision() == found
    finally:
        torch.set_float32_matmul_precision(before)


# on a GPU

READ = """
import dataclasses, json
from runner.timing import measured_peak
print(json.dumps(dataclasses.asdict(measured_peak.measured_peak())))
"""
READ_ONLY = READ.replace("print", "measured_peak.measure = None; print")


@pytest.fixture(scope="module")
def real():
    """The measured_peak of this GPU, measured here, and how long it took."""
    import runner.timing.gpu_kernels  # noqa: F401  # its import is no part of the measuring

    facts = identity.identity()
    torch.cuda.synchronize()
    room.times_us(lambda: None)  # compiles the timestamps, makes the flush's buffer
    allocated, started = torch.cuda.memory_allocated(), time.perf_counter()
    found = room.measure(facts["gpu"])
    seconds = time.perf_counter() - started
    torch.cuda.empty_cache()
    print(f"\n{found}\n{seconds:.2f} s")
    return found, seconds, torch.cuda.memory_allocated() - allocated


@pytest.mark.gpu
def test_a_gpu_reaches_most_of_its_data_sheet(real):
    found, _, _ = real
    sheet = measured_peak.peaks(found.gpu)
    if sheet is None:
        pytest.skip(f"no data sheet of {found.gpu}")
    assert 0.5 * sheet.gbps <= found.copy_gbps <= 1.05 * sheet.gbps
    assert 0.5 * sheet.gbps <= found.read_gbps <= 1.05 * sheet.gbps
    for name in set(found.tflops) & set(sheet.tflops):
        assert 0.4 * sheet.tflops[name] <= found.tflops[name] <= 1.05 * sheet.tflops[name], name


@pytest.mark.gpu
def test_no_type_is_faster_than_the_ceiling(real):
    found, _, _ = real
    assert max(rate / room.NARROWER.get(name, 1.0) for name, rate in found.tflops.items()) <= found.ceiling_tflops
    assert {"float16", "float32", "float64"} <= set(found.tflops)


@pytest.mark.gpu
def test_a_peak_takes_seconds_and_no_memory(real):
    _, seconds, kept_bytes = real
    assert seconds < 5
    workspaces_bytes = 12 * 2**25  # of cuBLAS, one a stream, which torch keeps; graphs that live may still use them
    assert kept_bytes < workspaces_bytes


@pytest.mark.gpu
def test_measuring_leaves_torchs_settings_and_random_numbers_as_they_were(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    torch.set_float32_matmul_precision("highest")
    torch.manual_seed(7)
    expected = torch.rand(4, device="cuda")
    torch.manual_seed(7)
    again()
    assert torch.equal(torch.rand(4, device="cuda"), expected)
    assert torch.get_float32_matmul_precision() == "highest"
    assert not getattr(torch.backends.cuda.matmul, "allow_fp16_accumulation", False)
    room.measured_peak.cache_clear()


@pytest.mark.gpu
def test_a_copy_and_a_product_stand_near_their_measured_peak(real):
    found, _, _ = real
    work = matmul(4096, "float16")
    a, b = (room.normal(4096, 4096, dtype=torch.float16) for _ in range(2))
    c = torch.empty_like(a)
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    time_us = min(room.times_us(lambda: torch.mm(a, b, out=c)))
    row = columns(work, time_us, found, l2_bytes, True)
    assert row["bound"] == "compute"
    assert 50 < row["pct_of_measured_peak"] < 120
    assert row["fastest_possible_us"] < time_us


@pytest.mark.gpu
@pytest.mark.parametrize(("mib", "near"), [(1, 10), (5, 10), (40, 5), (100, 5), (700, 5)])  # short ones vary in steps
def test_a_copy_reaches_100_percent_at_every_size(real, mib, near):
    found, _, _ = real
    source = room.normal(mib * 2**20 // 8, dtype=torch.float32)
    copy, work = torch.empty_like(source), Work(0, 2 * source.nbytes, "float32", False)
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    times = room.net_times_us(lambda: torch.neg(source, out=copy), cold_l2=True)
    row = columns(work, sum(times) / len(times), found, l2_bytes, True)
    assert row["pct_of_measured_peak"] == pytest.approx(100, abs=near)


@pytest.mark.gpu
def test_a_second_process_reads_the_file_of_the_first(tmp_path):
    def run(code: str) -> dict:
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(done.stdout)

    assert run(READ) == run(READ_ONLY)


@pytest.mark.gpu
def test_events_measure_much_the_same_measured_peak(real, monkeypatch):
    found, _, _ = real
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    copy_gbps, read_gbps = room.bandwidths()
    assert copy_gbps == pytest.approx(found.copy_gbps, rel=0.05)
    assert read_gbps == pytest.approx(found.read_gbps, rel=0.05)
