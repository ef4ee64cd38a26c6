"""Loggers as Kafka's tools see and set them."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from millrace.broker.config.loggers import logger_levels, set_level
from millrace.metadata.errors import ContradictoryRequest, InvalidConfig

NAME = "millrace.test_loggers"


@pytest.fixture(autouse=True)
def own_logger() -> Iterator[None]:
    logger = logging.getLogger(NAME)
    yield
    logger.setLevel(logging.NOTSET)


def test_a_level_is_set_in_kafkas_words_and_taken_back() -> None:
    set_level(NAME, "WARN", validate_only=False)
    assert logger_levels()[NAME] == "WARN"
    assert logging.getLogger(NAME).level == logging.WARNING
    set_level(NAME, None, validate_only=False)
    assert logging.getLogger(NAME).level == logging.NOTSET


def test_a_trial_changes_nothing() -> None:
    set_level(NAME, "FATAL", validate_only=True)
    assert logging.getLogger(NAME).level == logging.NOTSET


def test_levels_between_kafkas_are_told_as_the_one_below() -> None:
    logging.getLogger(NAME).setLevel(logging.WARNING + 3)
    assert logger_levels()[NAME] == "WARN"
    logging.getLogger(NAME).setLevel(1)
    assert logger_levels()[NAME] == "TRACE"


def test_only_our_own_loggers_and_the_root_are_shown() -> None:
    logging.getLogger("somebody.else")
    assert all(name == "root" or name.startswith("millrace") for name in logger_levels())
    assert "root" in logger_levels()


@pytest.mark.parametrize("name, level", [("millrace.nobody", "WARN"), (NAME, "LOUD")])
def test_what_is_not_there_is_refused(name: str, level: str) -> None:
    with pytest.raises(InvalidConfig, match="there is no such"):
        set_level(name, level, validate_only=False)


def test_the_root_cannot_follow_another_logger() -> None:
    with pytest.raises(ContradictoryRequest):
        set_level("root", None, validate_only=False)
