"""The exception that an implementation raises if it cannot run these tensors on this machine."""


class Unsupported(Exception):
    """The implementation cannot run these tensors on this machine. The message says what would help."""
