"""Users and tokens that tests log in with."""

from __future__ import annotations

from functools import cache

from millrace.security.credentials.scram import ScramCredential, ScramMechanism, derive_credential
from millrace.security.principals import user
from millrace.security.sasl.scram import TokenLogin

PASSWORDS = {"alice": "pencil", "a,b=c": "with commas", "Grüße": "Straße"}
TOKEN_ID = "token-1"
TOKEN_SECRET = "dG9rZW4gc2VjcmV0"
TOKEN_EXPIRES_MS = 1_000_000


@cache
def credential_of(mechanism: ScramMechanism, password: str) -> ScramCredential:
    return derive_credential(mechanism, password, salt=b"some salt of 20 bytes", iterations=4096)


class Store:
    """Three users, one token."""

    def __init__(self) -> None:
        self.kept: dict[tuple[ScramMechanism, str], ScramCredential] = {}

    def credential(self, mechanism: ScramMechanism, name: str) -> ScramCredential | None:
        password = PASSWORDS.get(name)
        return None if password is None else credential_of(mechanism, password)

    def token(self, mechanism: ScramMechanism, token_id: str, now_ms: int) -> TokenLogin | None:
        if token_id != TOKEN_ID or now_ms > TOKEN_EXPIRES_MS:
            return None
        kept = self.kept.get((mechanism, token_id))
        derive = lambda: credential_of(mechanism, TOKEN_SECRET)  # noqa: E731 - work for a thread
        return TokenLogin(user("owner"), TOKEN_EXPIRES_MS, kept or derive)

    def keep(self, mechanism: ScramMechanism, token_id: str, credential: ScramCredential) -> None:
        self.kept[mechanism, token_id] = credential
