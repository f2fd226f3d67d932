"""Recompiles of torch.compile in the first calls of a function, and functions that reach its limit and run eagerly.

Past the limit of compiled versions of a function, torch runs it eagerly for all other inputs, and only logs it once.
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import CodeType, FrameType
from typing import Any

import torch

from ..records.case import Scalar
from ..records.replaced import setting
from ..timing.call import Call

OTHER_MODE = "BACKEND_MATCH failure"  # in torch's reason: the code was compiled before in another mode, for other cases
WRAPPER = "torch/_dynamo/eval_frame.py"  # a frame of this file stands above all that torch.compile runs


def eagerly() -> AbstractContextManager[object]:
    """Let what torch.compile has wrapped run as it was written, and compile nothing."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def compilations() -> list[Any]:
    """Return torch's metrics of the latest compilations; [] if torch.compile is not imported."""
    utils = sys.modules.get("torch._dynamo.utils")
    return list(utils.get_compilation_metrics()) if utils else []


def recompiles(call: Call, before: Sequence[Any]) -> Mapping[str, Scalar]:
    """Return the columns about recompiles since ``compilations`` were ``before``; {} if torch.compile was not used.

    ``call`` is made once more if a function has reached its limit, to see whether it is what runs.
    """
    found = compilations()
    if not found:
        return {}
    columns: dict[str, Scalar] = {}
    new = found[found.index(before[-1]) + 1 :] if before and before[-1] in found else found
    compiled = [each for each in new if not getattr(each, "fail_type", None)]
    compiled = [each for each in compiled if OTHER_MODE not in str(getattr(each, "recompile_reason", None))]
    # The second part of an id such as ``0/1`` counts how often code was compiled again.
    again = [each for each in compiled if str(each.compile_id).rpartition("/")[2].partition("_")[0] not in ("", "0")]
    if new:
        columns["recompiles"] = len(again)
    if again and (reason := getattr(again[-1], "recompile_reason", None)):  # since torch 2.7
        columns["recompile_reason"] = str(reason).splitlines()[0]
    if (names := _at_limit()) and (code := _run_eagerly(call, names)):
        columns["recompile_limit"] = (
            f"torch.compile ran it eagerly: {code.co_name} has reached the limit of {len(_versions(code))} "
            "compiled versions; give torch.compile(dynamic=True), or raise torch._dynamo.config.recompile_limit"
        )
    return columns


def _versions(code: CodeType) -> list[Any]:
    from torch._C._dynamo import eval_frame

    return list(eval_frame._debug_get_cache_entry_list(code))


def _at_limit() -> set[CodeType]:
    """Return the code objects that torch.compile does not compile again."""
    from torch._dynamo import config, convert_frame

    limit = getattr(config, "recompile_limit", None) or config.cache_size_limit  # the first since torch 2.6
    codes = (reference() for reference in convert_frame.input_codes.seen)
    return {code for code in codes if code is not None and len(_versions(code)) >= limit}


def _run_eagerly(call: Call, codes: set[CodeType]) -> CodeType | None:
    """Return the first of ``codes`` that runs uncompiled within torch.compile during ``call``; None if none does."""
    from torch._dynamo import eval_frame

    eager: list[CodeType] = []

    def on_call(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code in codes and _is_below_wrapper(frame):
            eager.append(frame.f_code)

    eval_frame.skip_code(on_call.__code__)  # or it would be compiled too
    eval_frame.skip_code(_is_below_wrapper.__code__)
    call.restore()
    with setting(sys.getprofile, sys.setprofile, on_call):
        call.run()
    return next(iter(eager), None)


def _is_below_wrapper(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.endswith(WRAPPER):
            return True
        frame = frame.f_back
    return False
