"""The messages of a worker."""

from typing import Any

from ..records import untrusted
from ..records.case import CaseRecord
from ..records.paired_rounds import PairedRounds
from ..records.row import Row


def read_message(line: bytes, case: CaseRecord | None) -> dict[str, Any]:
    """Return the message in ``line``, with the row of ``case`` or paired rounds as an object.

    Raises ValueError if it is malformed, as where a case has written to the channel of its worker.
    """
    try:
        message: dict[str, Any] = {**untrusted.parse(line)}
        if "row" in message:
            message["row"] = Row.from_record(message["row"], case)
        elif "rounds" in message:
            message["rounds"] = PairedRounds.from_record(message["rounds"])
    except (AttributeError, KeyError, TypeError) as error:  # a part is missing or has another type
        raise ValueError(str(error)) from None
    if not message:
        raise ValueError("it is empty")
    return message
