"""Where passwords come from, and what is sent of them."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from millrace.cli.access.passwords import LENGTH_MAX, read_password, salted
from millrace.security.credentials.scram import ScramMechanism, credential_of_salted, is_password


def test_the_end_of_the_line_is_no_part_of_the_password(tmp_path: Path) -> None:
    file = tmp_path / "password"
    for content in (b" ge heim ", b" ge heim \n", b" ge heim \r\n"):
        file.write_bytes(content)
        assert read_password(file, user="alice") == " ge heim "


@pytest.mark.parametrize("content", ["", "\n", "a\nb", "a\0b", "x" * (LENGTH_MAX + 1)])
def test_what_cannot_be_a_password_is_refused_unseen(tmp_path: Path, content: str) -> None:
    file = tmp_path / "password"
    file.write_text(content)
    with pytest.raises(click.UsageError) as refused:
        read_password(file, user="alice")
    assert not content.strip() or content.strip() not in refused.value.message


def test_without_a_terminal_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)
    with pytest.raises(click.UsageError, match="--password-file"):
        read_password(None, user="alice")


def test_a_person_is_asked_twice_and_sees_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, bool, bool]] = []

    def prompt(text: str, *, hide_input: bool, confirmation_prompt: bool) -> str:
        asked.append((text, hide_input, confirmation_prompt))
        return "geheim"

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr(click, "prompt", prompt)
    assert read_password(None, user="alice") == "geheim"
    assert asked == [("Password of alice", True, True)]


def test_what_is_sent_proves_the_password_and_has_its_own_salt() -> None:
    sent = salted("alice", "geheim", list(ScramMechanism), 4096)
    assert [each.mechanism for each in sent] == [1, 2]
    assert sent[0].salt != sent[1].salt
    for mechanism, each in zip(ScramMechanism, sent, strict=True):
        credential = credential_of_salted(
            mechanism, each.salted_password, salt=each.salt, iterations=each.iterations
        )
        assert is_password(mechanism, credential, "geheim")
        assert not is_password(mechanism, credential, "other")
