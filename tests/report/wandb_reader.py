"""Reads what W&B recorded offline, without W&B's help but for its message types."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAGIC = b":W&B\xe1\xbe\x00"
BLOCK = 32768  # the file is a LevelDB log: no fragment crosses a block's end
HEADER = struct.Struct("<IHB")  # crc32 of kind and data, length, kind
WHOLE, FIRST, _MIDDLE, LAST = 1, 2, 3, 4


def records(path: Path) -> Iterator[Any]:
    """Each ``Record`` of the .wandb file. Raises ValueError if it is no such file, or damaged."""
    from wandb.proto import wandb_internal_pb2 as messages

    content = path.read_bytes()
    if not content.startswith(MAGIC):
        raise ValueError(f"{path}: not a W&B log")
    position, message = len(MAGIC), b""
    while position + HEADER.size <= len(content):
        rest = BLOCK - position % BLOCK
        if rest < HEADER.size:  # padding
            position += rest
            continue
        checksum, length, kind = HEADER.unpack_from(content, position)
        position += HEADER.size
        data = content[position : position + length]
        position += length
        if zlib.crc32(bytes([kind]) + data) != checksum:
            raise ValueError(f"{path}: damaged before byte {position}")
        message = data if kind in (WHOLE, FIRST) else message + data
        if kind in (WHOLE, LAST):
            record = messages.Record()  # type: ignore[attr-defined]
            record.ParseFromString(message)
            yield record


@dataclass
class Recorded:
    """One offline run: ``folder`` is what ``wandb sync`` takes."""

    folder: Path
    run: Any = None
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None

    def table(self, entry: dict[str, Any]) -> dict[str, Any]:
        """``columns`` and ``data`` of the table that ``entry`` of the history problems at."""
        assert entry["_type"] == "table-file"
        table: dict[str, Any] = json.loads((self.folder / "files" / entry["path"]).read_text())
        assert (entry["nrows"], entry["ncols"]) == (len(table["data"]), len(table["columns"]))
        return table


def read(folder: Path) -> Recorded:
    """The run recorded in ``folder``."""
    (path,) = folder.glob("*.wandb")
    recorded = Recorded(folder)
    for record in records(path):
        match record.WhichOneof("record_type"):
            case "run":
                recorded.run = record.run
                _set(recorded.config, record.run.config.update)
            case "config":
                _set(recorded.config, record.config.update)
            case "history":
                recorded.history.append(_set({}, record.history.item))
            case "summary":
                _set(recorded.summary, record.summary.update)
            case "exit":
                recorded.exit_code = record.exit.exit_code
    return recorded


def _set(into: dict[str, Any], items: Iterable[Any]) -> dict[str, Any]:
    for item in items:
        *path, last = item.nested_key or [item.key]
        place = into
        for name in path:
            place = place.setdefault(name, {})
        place[last] = json.loads(item.value_json)
    return into
