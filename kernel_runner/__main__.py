"""``python -m kernel_runner``: the command, also in a folder that has a ``runner`` of its own."""

import sys

from kernel_runner import FOLDER

sys.path.insert(0, str(FOLDER.parent))

from runner.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
