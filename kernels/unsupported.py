"""The exception of an implementation that does not exist for these tensors or on this machine."""


class Unsupported(Exception):
    """The implementation cannot run these tensors on this machine; the message says what would help."""
