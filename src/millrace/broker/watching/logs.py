"""Structured logs: one line for each event, as readable text or as JSON, with the facts as fields."""

from __future__ import annotations

import logging
import sys
from typing import Final

import orjson

from millrace.core.override import override

OURS: Final = "millrace"
"""The logger above all of ours."""
_STANDARD_FIELDS: Final = frozenset(
    [*logging.LogRecord("", 0, "", 0, "", None, None).__dict__, "message", "asctime", "taskName"]
)


class TextFormatter(logging.Formatter):
    """`time level logger: message key=value ...`"""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")

    @override
    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        facts = _facts(record)
        if not facts:
            return line
        first, newline, rest = line.partition("\n")
        return first + "".join(f" {name}={_quoted(value)}" for name, value in facts.items()) + newline + rest


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_facts(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(entry, default=str).decode()


def set_up(level: str, style: str) -> None:
    """Send the log to standard error in the given style (`text` or `json`)."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(OURS).setLevel(level.upper())


def change_level(before: str, level: str) -> None:
    """Set the level if it differs from the one before. If it does not, what was set for our logger while the
    broker ran stays."""
    if level != before:
        logging.getLogger(OURS).setLevel(level.upper())


def _facts(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD_FIELDS}


def _quoted(value: object) -> str:
    text = str(value)
    # What others have chosen, such as a client's name, begins no line of its own and moves no terminal.
    return repr(text) if " " in text or not text or not text.isprintable() else text
