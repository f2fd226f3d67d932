"""What the vendor says a GPU can do: dense rates (no sparsity), matrix products summed in float32 where that matters.

A rate is that of the fastest units which multiply matrices of the type: float64 is the tensor cores' where they have
it. It holds at the boost clock, which a GPU under load often does not keep, so no program reaches it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Peaks:
    """Of one GPU. A type that is missing has no rate of its own, or none that the vendor names."""

    gbps: float  # memory, 1e9 bytes a second
    tflops: Mapping[str, float]  # float64, float32, tf32, float16, bfloat16, float8_e4m3fn → 1e12 operations a second


def peaks(gpu_name: str) -> Peaks | None:
    """By the name that ``torch.cuda.get_device_name()`` gives; None for any other, a MIG instance's among them."""
    return PEAKS.get(gpu_name.removeprefix("NVIDIA ").removeprefix("Tesla "))


def _tensor64(gbps: float, float64: float, float32: float, tf32: float, half: float) -> Peaks:
    """A GPU whose tensor cores know float64; ``half`` is the rate of float16 and of bfloat16."""
    return Peaks(gbps, {"float64": float64, "float32": float32, "tf32": tf32, "float16": half, "bfloat16": half})


def _float8(gbps: float, float64: float, float32: float, tf32: float, half: float) -> Peaks:
    """The same with float8, which runs at twice the rate of 16 bits."""
    sheet = _tensor64(gbps, float64, float32, tf32, half)
    return Peaks(gbps, {**sheet.tflops, "float8_e4m3fn": 2 * half})


def _graphics(gbps: float, float32: float, tf32: float, half: float) -> Peaks:
    """A GPU made for graphics: two float64 units a multiprocessor beside 128 of float32.

    CUDA C++ Programming Guide, throughput of native arithmetic instructions, compute capability 8.6, 8.9 and 12.0.
    """
    return _tensor64(gbps, float32 / 64, float32, tf32, half)


# NVIDIA A100 Tensor Core GPU datasheet.
_A100 = (19.5, 19.5, 156.0, 312.0)

# NVIDIA H100 Tensor Core GPU datasheet and NVIDIA H200 Tensor Core GPU datasheet: half of their rates with sparsity.
_H100_SXM = (67.0, 67.0, 494.5, 989.5)

# NVIDIA V100 Tensor Core GPU datasheet, SXM2.
_V100 = Peaks(900.0, {"float64": 7.8, "float32": 15.7, "float16": 125.0})

PEAKS: dict[str, Peaks] = {
    "A100-SXM4-40GB": _tensor64(1555.0, *_A100),
    "A100-SXM4-80GB": _tensor64(2039.0, *_A100),
    "A100-PCIE-40GB": _tensor64(1555.0, *_A100),
    "A100 80GB PCIe": _tensor64(1935.0, *_A100),
    "H100 80GB HBM3": _float8(3350.0, *_H100_SXM),
    "H100 PCIe": _float8(2000.0, 51.0, 51.0, 378.0, 756.5),
    "H100 NVL": _float8(3900.0, 60.0, 60.0, 417.5, 835.5),
    "H200": _float8(4800.0, *_H100_SXM),
    # NVIDIA GH200 Grace Hopper Superchip datasheet, the one with 96 GB of HBM3.
    "GH200 480GB": _float8(4000.0, 67.0, 67.0, 494.0, 990.0),
    "GH200 120GB": _float8(4000.0, 67.0, 67.0, 494.0, 990.0),
    # NVIDIA Blackwell Architecture Technical Brief, HGX B200, per GPU.
    "B200": _float8(7700.0, 37.0, 75.0, 1100.0, 2250.0),
    # NVIDIA L4, L40 and L40S Tensor Core GPU datasheets: L4 half of its rates with sparsity.
    "L4": _graphics(300.0, 30.3, 60.0, 121.0),
    "L40": _graphics(864.0, 90.5, 90.5, 181.05),
    "L40S": _graphics(864.0, 91.6, 183.0, 362.05),
    # NVIDIA A10 and A40 Tensor Core GPU datasheets; NVIDIA A10G datasheet (of Amazon Web Services, February 2022).
    "A10": _graphics(600.0, 31.2, 62.5, 125.0),
    "A10G": _graphics(600.0, 35.0, 35.0, 70.0),
    "A40": _graphics(696.0, 37.4, 74.8, 149.7),
    # NVIDIA Ampere GA102 GPU Architecture whitepaper, V2.
    "GeForce RTX 3090": _graphics(936.0, 35.6, 35.6, 71.0),
    "RTX A6000": _graphics(768.0, 38.7, 77.4, 154.8),
    # NVIDIA Ada GPU Architecture whitepaper, appendix A.
    "GeForce RTX 4090": _graphics(1008.0, 82.6, 82.6, 165.2),
    # NVIDIA RTX Blackwell GPU Architecture whitepaper, table 3; NVIDIA RTX PRO Blackwell whitepaper, table 4.
    "GeForce RTX 5090": _graphics(1792.0, 104.8, 104.8, 209.5),
    "RTX 6000 Ada Generation": _graphics(960.0, 91.1, 182.1, 364.2),
    "V100-SXM2-16GB": _V100,
    "V100-SXM2-32GB": _V100,
    # NVIDIA T4 Tensor Core GPU datasheet; bandwidth by the Tesla T4 product brief. float64 is 1/32 of float32 (Turing
    # whitepaper).
    "T4": Peaks(320.0, {"float64": 8.1 / 32, "float32": 8.1, "float16": 65.0}),
}
