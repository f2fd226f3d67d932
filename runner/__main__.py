"""``python -m runner``, and ``python -m kernel_runner`` in a folder that has a ``runner`` of its own."""

import os
import sys

from .device import import_path

if sys.path[:1] == [os.getcwd()]:  # -m has put it before the standard library, whose ``random`` may be another there
    import_path.arrange(os.getcwd())

from .cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
