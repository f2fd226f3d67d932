"""Judge outputs in a fresh process, after a case has changed what torch's operators compute in its own.

    python -m runner.worker.judge_anew <folder>

The folder has the case and the bytes of its outputs. The result is written there too.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..device import import_path
from ..records.case import CaseRecord
from ..timing.nested import returned_paths, returned_tensors
from .problem import ProblemState

MODULE = "kernel_runner.worker.judge_anew"
LIMIT_S = 300.0
CASE, RESULT = "case.json", "result.json"


def judge_anew(case: CaseRecord, outputs: object) -> tuple[Mapping[str, Any], str]:
    """Return the columns of the check of ``outputs``, which a call of ``case`` returned, and what is wrong or "".

    Raises RuntimeError if the fresh process fails.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        described = [_save(tensor, folder / str(place)) for place, tensor in enumerate(returned_tensors(outputs))]
        request = {"case": case.to_record(), "paths": returned_paths(outputs), "tensors": described}
        (folder / CASE).write_text(json.dumps(request), encoding="utf-8")
        words = [sys.executable, "-m", MODULE, name]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"it took more than {LIMIT_S:g} s") from None
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
        result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    return result["columns"], result["reason"]


def main(folder: Path) -> None:
    """Judge the outputs in ``folder``."""
    request = json.loads((folder / CASE).read_text(encoding="utf-8"))
    problem = ProblemState(CaseRecord.from_record(request["case"]))
    expected = problem.expected()
    outputs = [_load(folder / str(place), described) for place, described in enumerate(request["tensors"])]
    result = expected.check_tensors([tensor.to(problem.device) for tensor in outputs], request["paths"])
    written = {"columns": result.columns(), "reason": result.reason}
    (folder / RESULT).write_text(json.dumps(written), encoding="utf-8")


def _save(tensor: Tensor, path: Path) -> dict[str, Any]:
    """Write the storage of ``tensor`` without an operator of torch. Return what describes the tensor."""
    storage = tensor.untyped_storage()
    if tensor.is_cuda:
        torch.cuda.synchronize()
        buffer = ctypes.create_string_buffer(storage.nbytes())
        driver = ctypes.CDLL("libcuda.so.1")
        if code := driver.cuMemcpyDtoH_v2(buffer, ctypes.c_uint64(storage.data_ptr()), ctypes.c_size_t(len(buffer))):
            raise RuntimeError(f"cuMemcpyDtoH: CUDA error {code}")
        path.write_bytes(buffer.raw)
    else:
        path.write_bytes(ctypes.string_at(storage.data_ptr(), storage.nbytes()))
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"dtype": dtype, "shape": [*tensor.shape], "stride": tensor.stride(), "offset": tensor.storage_offset()}


def _load(path: Path, described: Mapping[str, Any]) -> Tensor:
    data = bytearray(path.read_bytes())
    empty = torch.empty(0, dtype=getattr(torch, described["dtype"]))
    if not data:
        return empty.reshape(described["shape"])
    storage = torch.frombuffer(data, dtype=torch.uint8).untyped_storage()
    shape: Sequence[int] = described["shape"]
    return empty.set_(storage, described["offset"], shape, described["stride"])


if __name__ == "__main__":
    import_path.arrange_here()
    main(Path(sys.argv[1]))
