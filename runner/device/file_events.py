"""Linux's inotify: which files of a folder are opened and written, by this process, its children, or any other."""

import ctypes
import os
import struct
from collections.abc import Iterator

MODIFIED, READ, OPENED, MOVED_HERE, CREATED, OVERFLOW, FOLDER = 0x2, 0x10, 0x20, 0x80, 0x100, 0x4000, 0x40000000
HEADER = struct.Struct("iIII")  # watch, events, cookie, bytes of the name
MOST_FOLDERS = 4000  # below one folder; to watch so many takes 60 ms
RUN = "rows.jsonl"  # in the folder of a run, whose files no case uses
READ_BYTES = 2**16


class FileEvents:
    """Events of files in watched folders. ``lost`` says why some may be missing; "" if none is."""

    def __init__(self) -> None:
        self.lost = ""
        self._folders: dict[int, str] = {}  # by the number of their watch
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = -1
        if not hasattr(self._libc, "inotify_init1"):
            self.lost = "this system does not report which files are opened"
        elif (descriptor := self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)) < 0:
            self.lost = f"files cannot be watched: {os.strerror(ctypes.get_errno())}"
        else:
            self._descriptor = descriptor

    def watch(self, top: str, *, report: bool = True) -> None:
        """Watch ``top`` and the folders below it, without hidden ones, environments of Python and earlier runs.

        If not ``report``, ``read`` leaves their events out: their files are only to cost as much as watched ones.
        """
        if self._descriptor < 0:
            return
        for count, folder in enumerate(_folders(top)):
            if count == MOST_FOLDERS:
                self.lost = f"{top} has more than {MOST_FOLDERS} folders"
                return
            mask = MODIFIED | READ | OPENED | MOVED_HERE | CREATED
            number = self._libc.inotify_add_watch(self._descriptor, os.fsencode(folder), mask)
            if number < 0:
                self.lost = f"{folder} cannot be watched: {os.strerror(ctypes.get_errno())}"
                return
            if report:
                self._folders.setdefault(number, folder)

    def read(self) -> Iterator[tuple[str, int]]:
        """Yield each file with an event since the last call, in order, and the event."""
        while self._descriptor >= 0:
            try:
                data = os.read(self._descriptor, READ_BYTES)
            except BlockingIOError:
                return
            except OSError as error:  # a case has closed all descriptors
                self.lost, self._descriptor = f"files cannot be watched: {error.strerror}", -1
                return
            place = 0
            while place < len(data):
                number, events, _, length = HEADER.unpack_from(data, place)
                name = data[place + HEADER.size : place + HEADER.size + length].rstrip(b"\0")
                place += HEADER.size + length
                if events & OVERFLOW:
                    self.lost = "too many files were opened"
                elif name and not events & FOLDER and number in self._folders:
                    yield f"{self._folders[number]}/{os.fsdecode(name)}", events


def _folders(top: str) -> Iterator[str]:
    for folder, below, files in os.walk(top):
        if folder != top and (RUN in files or "pyvenv.cfg" in files):
            below.clear()
            continue
        yield folder
        below[:] = [name for name in below if not name.startswith(".")]
