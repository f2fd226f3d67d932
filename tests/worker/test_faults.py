"""Exceptions → statuses."""

from __future__ import annotations

import pytest
import torch

from runner.kernels.unsupported import Unsupported
from runner.subject.faults import classify


class AcceleratorError(RuntimeError):
    """What torch raises from 2.9 on."""


@pytest.mark.parametrize(
    ("error", "phase", "status"),
    [
        (Unsupported("needs a GPU"), "build", "unsupported"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), "measure", "oom"),
        (MemoryError(), "inputs", "oom"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "inputs", "oom"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "check", "cuda_error"),
        (AcceleratorError("CUDA error: device-side assert triggered"), "check", "cuda_error"),
        (RuntimeError("Storage size calculation overflowed with sizes=[9, 9]"), "inputs", "oom"),
        (RuntimeError("\"cdist\" not implemented for 'Half'"), "build", "unsupported"),
        (RuntimeError("0 active drivers ([]). There should only be one."), "build", "unsupported"),
        (NotImplementedError("no backward"), "build", "unsupported"),
        (AssertionError("Torch not compiled with CUDA enabled"), "check", "unsupported"),
        (SyntaxError("invalid syntax"), "build", "build_failed"),
        (ValueError("shapes differ"), "build", "error"),
        (ValueError("shapes differ"), "measure", "error"),
        (RuntimeError("element 0 of tensors does not require grad and does not have a grad_fn"), "check", "error"),
    ],
)
def test_the_status_of_an_exception(error, phase, status, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    fault = classify(error, phase)
    assert fault.status == status
    assert fault.reason
    assert "\n" not in fault.reason


@pytest.mark.parametrize(
    ("line", "status", "reason"),
    [
        ("assert n > 3", "error", "AssertionError: assert n > 3"),
        ("assert n > 3, 'n is 1'", "error", "AssertionError: n is 1"),
        (
            "assert x.is_cuda",
            "unsupported",
            "it asks for a GPU, and torch sees none here (AssertionError: assert x.is_c",
        ),
        (
            "assert x.is_cuda, 'on a GPU'",
            "unsupported",
            "it asks for a GPU, and torch sees none here (AssertionError: on",
        ),
        (
            "torch.cuda.device(x.device).__enter__()",
            "unsupported",
            "it asks for a GPU, and torch sees none here (Value",
        ),
    ],
)
def test_an_assertion_without_a_message_is_told_by_its_line(line, status, reason, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    path = tmp_path / "mine.py"
    path.write_text(line)
    with pytest.raises((AssertionError, ValueError)) as raised:
        exec(compile(line, str(path), "exec"), {"torch": torch, "n": 1, "x": torch.ones(1)})
    fault = classify(raised.value, "build")
    assert (fault.status, fault.reason[: len(reason)]) == (status, reason)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    advised = classify(raised.value, "build").reason.endswith("; leave that line out for debug=interpret")
    assert advised == (status == "unsupported")


def test_a_cpu_without_memory_says_how_many_bytes_were_requested():
    error = RuntimeError(
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 17592186044416 bytes. Error code 12 (Cannot allocate memory)"
    )
    assert classify(error, "inputs").reason == "cannot allocate 16 TiB (17592186044416 bytes); give smaller sizes"


def test_a_reason_is_short_and_can_be_printed():
    reason = classify(ValueError("\x1b[31mred\x00 caf\udce9" + "x" * 10**6 + "the end"), "build").reason
    assert reason.startswith(r"ValueError: ?[31mred? caf\udce9xxx")
    assert reason.endswith("the end")
    assert len(reason) < 1100


@pytest.mark.parametrize("name", ["Bad\nname", "\x1b[31mBad", "Bad" * 10**6])
def test_the_name_of_an_exception_is_short_and_can_be_printed(name):
    reason = classify(type(name, (Exception,), {})("why"), "build").reason
    assert reason.isprintable()
    assert "Bad" in reason
    assert reason.endswith(": why")
    assert len(reason) < 1100


SEVERAL_RANKS = "a file runs on several ranks if one of its functions has a parameter rank or world_size"


def test_an_operation_that_needs_other_ranks_says_how_a_file_gets_them():
    with pytest.raises(ValueError, match="process group") as caught:
        torch.distributed.all_reduce(torch.ones(1))
    reason = classify(caught.value, "build").reason
    assert reason.endswith("init_process_group; " + SEVERAL_RANKS)


def test_only_a_cuda_error_spoils_the_process():
    assert classify(RuntimeError("CUDA error: an illegal memory access was encountered"), "check").spoiled
    assert not classify(torch.OutOfMemoryError("CUDA out of memory"), "check").spoiled


def test_out_of_memory_on_a_gpu_says_how_much_it_would_have_needed():
    text = (
        "CUDA out of memory. Tried to allocate 128.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 73.97 GiB "
        "is free. Including non-PyTorch memory, this process has 65.83 GiB memory in use. Of the allocated memory "
        "512.00 MiB is allocated by PyTorch, and 98.00 MiB is reserved by PyTorch but unallocated."
    )
    assert classify(torch.OutOfMemoryError(text), "measure").reason == (
        "needs at least 128.5 GiB (137975824384 bytes): 128 GiB more than the 512 MiB that it has; the GPU has "
        "139.8 GiB; give smaller sizes"
    )


def test_out_of_memory_that_the_gpu_has_says_that_others_hold_it():
    text = (
        "CUDA out of memory. Tried to allocate 12.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 10.11 GiB "
        "is free. Process 1450 has 50.00 GiB memory in use. Of the allocated memory 75.30 GiB is allocated by PyTorch."
    )
    reason = classify(torch.OutOfMemoryError(text), "inputs").reason
    assert reason.endswith(
        "the GPU has 139.8 GiB, a part of which other processes hold: end them, or give smaller sizes"
    )


def unwrap():
    try:
        raise RuntimeError("in a kernel") from ValueError("shapes differ")
    except RuntimeError as error:
        raise error.__cause__ from None


def test_an_exception_that_was_raised_out_of_the_one_around_it_is_classified():
    with pytest.raises(ValueError, match="shapes differ") as raised:
        unwrap()
    assert raised.value.__context__.__cause__ is raised.value
    assert classify(raised.value, "check").status == "error"
