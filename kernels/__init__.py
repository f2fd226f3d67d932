"""Kernels: plain functions of tensors, one folder per operation, one file per implementation.

``kernels/<op>/<impl>.py`` holds a function named ``<op>``. Nothing here knows the runner: lift any file out and use it.
"""


class Unsupported(Exception):
    """An implementation does not exist for these tensors or on this machine; the message says what would help."""
