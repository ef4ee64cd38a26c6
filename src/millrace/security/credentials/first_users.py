"""The users that a cluster has before anybody can log in to make some: a file of SCRAM credentials, as text.

It holds what the store would hold, never a password. `millrace secure init` writes it, and a broker reads it
at its start; it counts only while the cluster has no user at all.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from millrace.core.errors import MillraceError
from millrace.security.credentials.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
)

FirstUsers = Mapping[str, Mapping[ScramMechanism, ScramCredential]]
"""Credentials by user and mechanism."""


class InvalidFirstUsers(MillraceError):
    """A file of first users that cannot be read. The message holds nothing of it but names."""


def render_first_users(users: FirstUsers) -> str:
    """The text of the file."""
    entries = [
        {
            "name": name,
            "mechanism": mechanism.label,
            "iterations": credential.iterations,
            "salt": b64encode(credential.salt).decode(),
            "stored_key": b64encode(credential.stored_key).decode(),
            "server_key": b64encode(credential.server_key).decode(),
        }
        for name, credentials in users.items()
        for mechanism, credential in credentials.items()
    ]
    return json.dumps({"users": entries}, indent=2) + "\n"


def parse_first_users(text: str) -> dict[str, dict[ScramMechanism, ScramCredential]]:
    """The inverse; raises InvalidFirstUsers."""
    try:
        entries = json.loads(text)["users"]
        found: dict[str, dict[ScramMechanism, ScramCredential]] = {}
        for entry in entries:
            name, mechanism, credential = _entry(entry)
            found.setdefault(name, {})[mechanism] = credential
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidFirstUsers("is no file of users as `millrace secure init` writes it") from None
    return found


def _entry(entry: Mapping[str, Any]) -> tuple[str, ScramMechanism, ScramCredential]:
    name, label, iterations = entry["name"], entry["mechanism"], entry["iterations"]
    mechanism = next((each for each in ScramMechanism if each.label == label), None)
    if not isinstance(name, str) or not name or mechanism is None:
        raise InvalidFirstUsers("a user has a name, and a mechanism that is SCRAM-SHA-256 or SCRAM-SHA-512")
    if not isinstance(iterations, int) or not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise InvalidFirstUsers(f"user {name!r}: {ITERATIONS_MIN} to {ITERATIONS_MAX} iterations are allowed")
    return (
        name,
        mechanism,
        ScramCredential(
            salt=b64decode(entry["salt"], validate=True),
            stored_key=b64decode(entry["stored_key"], validate=True),
            server_key=b64decode(entry["server_key"], validate=True),
            iterations=iterations,
        ),
    )
