"""Files that are written whole or not at all, and files that can be read safely."""

import errno
import os
import stat
from pathlib import Path
from uuid import uuid4


def replace_file(path: Path, content: bytes) -> None:
    """Replace ``path``: a reader finds the old content or the new one, never a part. Raises OSError."""
    if path.is_dir():  # also "", as of a shell variable that is not set
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    new = path.with_name(f".{path.name}-{uuid4().hex}")
    try:
        new.write_bytes(content)
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)  # a part of the content, on a full disk
        raise


def text_in(path: str | Path) -> str:
    """Return the text of a file, such as those of Linux about a process; "" if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def no_link(path: str, flags: int) -> int:
    """Open a regular file of a run's folder. Raises OSError if it is a link, which could name any file, or a pipe."""
    file = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)  # opening a pipe would wait
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError("it is not a regular file")
    return file
