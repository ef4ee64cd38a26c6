"""The broker's own loggers as Kafka's tools see them: with levels in Kafka's words, changed while it runs."""

from __future__ import annotations

import logging
from typing import Final

from millrace.metadata.errors import ContradictoryRequest, InvalidConfig

ROOT: Final = "root"
OURS: Final = "millrace"

LEVELS: Final = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}


def logger_levels() -> dict[str, str]:
    """Every logger that can be set, with the level that counts for it now."""
    names = sorted(name for name in logging.Logger.manager.loggerDict if name.split(".")[0] == OURS)
    return {name: _level_name(_logger(name).getEffectiveLevel()) for name in (ROOT, *names)}


def set_level(name: str, level: str | None, *, validate_only: bool) -> None:
    """Set a logger's level; None lets it follow the logger above it."""
    if name not in logger_levels():
        raise InvalidConfig(name, level, "there is no such logger")
    if level is None:
        if name == ROOT:
            raise ContradictoryRequest("the root logger has none above it and needs a level of its own")
        number = logging.NOTSET
    elif level in LEVELS:
        number = LEVELS[level]
    else:
        raise InvalidConfig(name, level, "there is no such level", allowed=", ".join(LEVELS))
    if not validate_only:
        _logger(name).setLevel(number)


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT else name)


def _level_name(number: int) -> str:
    """The highest of Kafka's levels that is not above the given one."""
    named = [name for name, level in LEVELS.items() if level <= number]
    return named[-1] if named else "TRACE"
