"""What Nsight Compute says when it gives no report, and the sentence that it is worth to a user."""

from __future__ import annotations

import re

REFUSALS = (  # what it prints → what is missing and what to do; the first that is found
    (
        r"ERR_NVGPUCTRPERM",
        "the GPU's counters are for root only (ERR_NVGPUCTRPERM): run as root, give a container --cap-add SYS_ADMIN, "
        "or load the driver with NVreg_RestrictProfilingToAdminUsers=0; rented containers often forbid it, and "
        "measure=profile needs none of it",
    ),
    (
        r"failed to connect to the CUDA driver|Cuda driver is not compatible|driver version is not supported",
        "ncu cannot talk to this driver: give it one that works (nvidia-smi), and an ncu no newer than it, by "
        "measure.ncu.path=<ncu>",
    ),
    (
        r"driver resource was unavailable|DriverResourceUnavailable",
        "the GPU's counters are in use: end what else reads them (DCGM: dcgmi profile --pause; another ncu, nsys with "
        "GPU metrics), and run it again",
    ),
    (
        r"nsight-compute-lock",
        "ncu's lock file belongs to another user: remove nsight-compute-lock from the folder of temporary files, or "
        "set TMPDIR to a folder of your own",
    ),
    (
        r"LibraryNotLoaded",
        "ncu cannot load its library into the case (LibraryNotLoaded): a sandbox such as gVisor forbids it, so run it "
        "outside",
    ),
    (
        r"Profiling is not supported|UnsupportedGpu",
        "ncu cannot profile this GPU: WSL, vGPU, MIG and GPUs older or newer than it may be why; see measure.ncu.path",
    ),
    (
        r"unrecogni[sz]ed option|the argument .* is invalid",
        "ncu does not know one of its options: see measure.ncu.args, and give it a newer ncu by measure.ncu.path=<ncu>",
    ),
    (
        r"(?:Failed to find|Unknown|No matching|Unable to find) (?:metric|section|set)",
        "this ncu lacks one of the metrics asked for: take another measure.ncu.set, or a newer ncu by "
        "measure.ncu.path=<ncu>",
    ),
    (
        r"No space left on device|Failed to (?:write|open) .*report",
        "ncu could not write its report: make room on the disk, or set output_dir=<folder on another>",
    ),
)
NOTHING = re.compile(r"No kernels were profiled", re.IGNORECASE)
OWN = re.compile(r"^==ERROR== *(.+)$", re.MULTILINE)


def known(said: str) -> str:
    """Why there is no report, by what ncu has ``said``: one of the above; "" if none of them."""
    text = _own_lines(said) or said
    return next((told for pattern, told in REFUSALS if re.search(pattern, text, re.IGNORECASE)), "")


def own(said: str) -> str:
    """Its own first error; "" if it names none."""
    found = OWN.search(_own_lines(said))
    return f"ncu says: {found[1]}" if found else ""


def _own_lines(said: str) -> str:
    """What ncu has said, and not the case, which prints to the same place."""
    return "\n".join(line for line in said.splitlines() if line.startswith("=="))
