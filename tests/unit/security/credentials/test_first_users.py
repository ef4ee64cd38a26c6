"""The users of a new cluster, as a file."""

from __future__ import annotations

import json
from typing import Any

import pytest

from millrace.security.credentials.first_users import InvalidFirstUsers, parse_first_users, render_first_users
from millrace.security.credentials.scram import ScramMechanism, derive_credential

CREDENTIAL = derive_credential(ScramMechanism.SHA_512, "geheim", salt=b"salt", iterations=4096)
TEXT = render_first_users({"admin": {ScramMechanism.SHA_512: CREDENTIAL}})


def test_what_is_written_is_read_back_and_holds_no_password() -> None:
    assert parse_first_users(TEXT) == {"admin": {ScramMechanism.SHA_512: CREDENTIAL}}
    assert "geheim" not in TEXT


def changed(**fields: Any) -> str:
    document = json.loads(TEXT)
    document["users"][0] |= fields
    return json.dumps(document)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"users": 5}',
        '{"users": ["admin"]}',
        changed(name=""),
        changed(name=5),
        changed(mechanism="PLAIN"),
        changed(iterations=4095),
        changed(iterations="4096"),
        changed(salt="not base64!"),
        changed(stored_key=None),
    ],
)
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(InvalidFirstUsers):
        parse_first_users(text)
