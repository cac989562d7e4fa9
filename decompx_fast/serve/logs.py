"""The log: one JSON object a line, without a word of the texts unless that was asked for."""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from typing import Any

#: Of the log's own events; uvicorn's go to loggers of its name.
NAME = "decompx_fast.serve"

logger = logging.getLogger(NAME)


def log(event: str, *, level: int = logging.INFO, **fields: Any) -> None:
    """Write one event.

    Args:
        event: its name.
        level: as :mod:`logging` has them.
        **fields: more of it; plain JSON values.
    """
    logger.log(level, event, extra={"fields": fields})


def log_to_stderr(*, with_messages: bool) -> None:
    """Let all events of a service go to standard error.

    Args:
        with_messages: whether the messages of exceptions are written, which may quote a text.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines(with_messages=with_messages))
    for name in (NAME, "uvicorn", "uvicorn.error", "asyncio"):
        one = logging.getLogger(name)
        one.handlers[:] = [handler] if name != "uvicorn.error" else []
        one.propagate = name == "uvicorn.error"  # to "uvicorn"
        one.setLevel(logging.INFO)


class _Lines(logging.Formatter):
    """Each record as a JSON object."""

    def __init__(self, *, with_messages: bool) -> None:
        super().__init__()
        self._with_messages = with_messages

    def format(self, record: logging.LogRecord) -> str:
        about = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            about["error"] = type(error).__name__
            about["frames"] = [f"{f.filename}:{f.lineno} {f.name}" for f in traceback.extract_tb(error.__traceback__)]
            if self._with_messages:
                about["message"] = str(error)
        return json.dumps(about, ensure_ascii=True, default=str)
