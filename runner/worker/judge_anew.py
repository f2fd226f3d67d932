"""Judge outputs in a fresh process, after a case has changed what torch's operators compute in its own."""

import ctypes
import pickle
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..device import tools
from ..measure import MeasureContext, result
from ..records.case import CaseRecord
from ..subject import path
from ..subject.operation import FileCheck
from ..timing.nested import returned_paths, returned_tensors
from ..timing.unpatched import unpatched
from .problem import ProblemState

LIMIT_S = 300.0


def judge_anew(case: CaseRecord, outputs: object, program: str) -> Mapping[str, Any]:
    """Return ``columns`` of the check of ``outputs``, which a call of ``case`` returned, and ``wrong``, a reason or "".

    ``program`` is the module that runs a case again. Raises RuntimeError if the fresh process fails.
    """
    with tempfile.TemporaryDirectory() as name:
        context = MeasureContext("", case, Path(name), program=program)
        saved = context.folder / "outputs.pickle"
        with unpatched(), saved.open("wb") as file:
            result_like = b""
            with suppress(Exception):  # its class cannot be saved
                result_like = pickle.dumps(path.like(outputs))
            pickle.dump((result_like, returned_paths(outputs), [*map(_saved, returned_tensors(outputs))]), file)
        ended = tools.run_tool(context.command(judge=str(saved)), context.folder / "log", LIMIT_S)
        written = result(context.folder)
    if ended.timed_out:
        raise RuntimeError(f"it took more than {LIMIT_S:g} s")
    if "columns" not in written:
        raise RuntimeError(written.get("error") or f"exit code {ended.code}")
    return written


def judged(problem: ProblemState, saved: Path) -> dict[str, Any]:
    """Return the result of ``judge_anew`` for the outputs in the file ``saved``, in the fresh process."""
    expected = problem.expected()
    result_like, paths, outputs = pickle.loads(saved.read_bytes())  # noqa: S301  # which this package has written
    whole = None
    if isinstance(expected, FileCheck):  # other outputs are judged without a class of the case's, whose code would run
        with suppress(Exception):  # this process does not know its class
            whole = pickle.loads(result_like)  # noqa: S301
    check = path.judged(whole, paths, expected, [_tensor(output).to(problem.device) for output in outputs])
    return {"columns": check.columns(), "wrong": check.reason}


def _saved(tensor: Tensor) -> dict[str, Any]:
    """Return the bytes, type, shape and strides of ``tensor``, read without an operator of torch."""
    storage = tensor.untyped_storage()
    data = ctypes.create_string_buffer(storage.nbytes())
    if tensor.is_cuda:
        torch.cuda.synchronize()
        driver = ctypes.CDLL("libcuda.so.1")
        if code := driver.cuMemcpyDtoH_v2(data, ctypes.c_uint64(storage.data_ptr()), ctypes.c_size_t(len(data))):
            raise RuntimeError(f"cuMemcpyDtoH: CUDA error {code}")
    else:
        ctypes.memmove(data, storage.data_ptr(), len(data))
    place = {"shape": tuple(tensor.shape), "stride": tensor.stride(), "offset": int(tensor.storage_offset())}
    views = {"conj": tensor.is_conj(), "neg": tensor.is_neg()}
    return {"data": bytearray(data.raw), "dtype": tensor.dtype, **place, **views}


def _tensor(saved: Mapping[str, Any]) -> Tensor:
    empty = torch.empty(0, dtype=saved["dtype"])
    if not saved["data"]:
        return empty.reshape(saved["shape"])
    storage = torch.frombuffer(saved["data"], dtype=torch.uint8).untyped_storage()
    tensor = empty.set_(storage, saved["offset"], saved["shape"], saved["stride"])
    tensor = tensor.conj() if saved["conj"] else tensor
    return tensor._neg_view() if saved["neg"] else tensor
