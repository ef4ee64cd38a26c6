"""Passwords on their way from a person or a file to a broker, which gets them salted and hashed.

They are never arguments: anybody on the machine can read those.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import click

from millrace.security.credentials.scram import (
    ScramMechanism,
    random_text,
    salted_password,
)
from millrace.wire.messages.alter_user_scram_credentials import ScramCredentialUpsertion

LENGTH_MAX: Final = 4096
GENERATED_BYTES: Final = 24
_CHANCE: Final = random.SystemRandom()


def read_password(file: Path | None, *, user: str) -> str:
    """From a file or standard input (`-`), or asked of the person at the terminal, twice."""
    if file is None:
        if not sys.stdin.isatty():
            raise click.UsageError(
                "nobody can be asked for the password: give --password-file FILE, or `-` for standard input"
            )
        return _checked(click.prompt(f"Password of {user}", hide_input=True, confirmation_prompt=True))
    stream = sys.stdin.read(LENGTH_MAX + 2) if str(file) == "-" else file.read_text(encoding="utf-8")
    # The line's end belongs to the file. Blanks belong to the password.
    return _checked(stream.removesuffix("\n").removesuffix("\r"))


def salted(
    user: str, password: str, mechanisms: Iterable[ScramMechanism], iterations: int
) -> list[ScramCredentialUpsertion]:
    """What is sent of a password: salted and hashed for each mechanism."""
    found = []
    for mechanism in mechanisms:
        salt = random_text(_CHANCE).encode()
        found.append(
            ScramCredentialUpsertion(
                name=user,
                mechanism=mechanism.value,
                iterations=iterations,
                salt=salt,
                salted_password=salted_password(mechanism, password, salt, iterations),
            )
        )
    return found


def _checked(password: str) -> str:
    if not password or len(password) > LENGTH_MAX:
        raise click.UsageError(f"a password has 1 to {LENGTH_MAX} characters")
    if "\n" in password or "\0" in password:
        raise click.UsageError("a password is one line")
    return password
