"""SASL PLAIN (RFC 4616): `[authzid] NUL user NUL password`."""

from __future__ import annotations

from typing import Final

from millrace.security.credentials.passwords import PasswordCheck
from millrace.security.principals import Identity, user
from millrace.security.sasl.exchange import Answer, Failure, Step, Success, Work

PLAIN: Final = "PLAIN"
OTHER_AUTHORIZATION_ID: Final = (
    "Authentication failed: Client requested an authorization id that is different from username"
)
_INVALID: Final = "Authentication failed: Invalid username or password"
_TOKENS: Final = 3


class PlainExchange:
    """One token, then the answer."""

    def __init__(self, passwords: PasswordCheck) -> None:
        self._passwords = passwords
        self.claimed = ""
        self._is_over = False

    def respond(self, token: bytes, now_ms: int) -> Step:
        del now_ms  # A password has no end.
        if self._is_over:
            return Failure("a token came after the end of the exchange")
        self._is_over = True
        parts = token.split(b"\0", _TOKENS)
        if len(parts) != _TOKENS:
            return Failure(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        try:
            authorization_id, name, password = (part.decode() for part in parts)
        except UnicodeDecodeError:
            return Failure("Invalid SASL/PLAIN response: not UTF-8")
        self.claimed = name
        if not name:
            return Failure("Authentication failed: username not specified")
        if not password:
            return Failure("Authentication failed: password not specified")

        def concluded(is_password: bool) -> Answer:
            if not is_password:
                return Failure("wrong user name or password", _INVALID)
            # Only now: who does not know the password learns nothing else.
            if authorization_id not in ("", name):
                return Failure("authorization id of another user", OTHER_AUTHORIZATION_ID)
            return Success(Identity(principal=user(name), mechanism=PLAIN))

        checked = self._passwords.check(name, password)
        return concluded(checked) if isinstance(checked, bool) else Work(checked, concluded)
