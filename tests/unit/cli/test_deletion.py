"""What a person sees of a deletion: the question, what is gone, what was not there, and what was refused."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import click
import pytest
from confluent_kafka import KafkaError, KafkaException

from millrace.cli.clients import RequestFailed
from millrace.cli.deletion import delete_each
from millrace.cli.options import BrokerAddress

ADDRESS = BrokerAddress(bootstrap="127.0.0.1:1", command_config=None, timeout_s=1.0)


def answers(codes: Mapping[str, int | None]) -> Any:
    """A cluster that answers a deletion with these errors."""

    def delete(wanted: list[str]) -> dict[str, Future[None]]:
        futures: dict[str, Future[None]] = {}
        for name in wanted:
            futures[name] = Future()
            code = codes[name]
            if code is None:
                futures[name].set_result(None)
            else:
                futures[name].set_exception(KafkaException(KafkaError(code)))
        return futures

    return delete


def test_each_name_is_deleted_once_and_one_failure_hides_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    codes = {
        "a": None,
        "gone": KafkaError.UNKNOWN_TOPIC_OR_PART,
        "b": KafkaError.TOPIC_AUTHORIZATION_FAILED,
        "c": KafkaError.INVALID_REQUEST,
    }

    def explain(name: str, error: RequestFailed) -> str:
        return f"{name} may not be deleted"

    with pytest.raises(click.ClickException) as failed:
        delete_each(
            ["a", "b", "gone", "a", "c"],
            answers(codes),
            ADDRESS,
            contents="messages",
            must_ask=False,
            ignored_code=KafkaError.UNKNOWN_TOPIC_OR_PART,
            explain=explain,
        )
    output = capsys.readouterr()
    assert output.out == "deleted a\n"
    assert "gone: is not there" in output.err
    shown = failed.value.format_message() + output.err
    assert "b may not be deleted" in shown
    assert "c may not be deleted" in shown


def test_what_is_not_there_is_a_failure_unless_that_was_asked_for() -> None:
    delete = answers({"gone": KafkaError.UNKNOWN_TOPIC_OR_PART})
    with pytest.raises(click.ClickException):
        delete_each(["gone"], delete, ADDRESS, contents="messages", must_ask=False, ignored_code=None)


def test_a_person_is_asked_and_may_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def refuse(question: str, **_: object) -> bool:
        asked.append(question)
        raise click.Abort

    monkeypatch.setattr(click, "confirm", refuse)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    with pytest.raises(click.Abort):
        delete_each(["a", "b"], answers({}), ADDRESS, contents="offsets", must_ask=True, ignored_code=None)
    assert asked == ["Delete a, b with all offsets?"]
