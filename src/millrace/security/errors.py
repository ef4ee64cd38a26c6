"""Expected failures of this package. None of their messages holds a secret."""

from __future__ import annotations

from millrace.core.errors import MillraceError


class UnacceptableCredential(MillraceError):
    """A credential that nobody may have: too weak, too dear to check, or without a name."""


class UnknownScramMechanism(MillraceError):
    def __init__(self) -> None:
        super().__init__("Unknown SCRAM mechanism")


class CredentialNotFound(MillraceError):
    """A credential that somebody named is not there."""


class DuplicateCredential(MillraceError):
    """One request names the same user twice."""


class NotAllowedOnCluster(MillraceError):
    def __init__(self) -> None:
        super().__init__("Cluster authorization failed.")


class TokensDisabled(MillraceError):
    def __init__(self) -> None:
        super().__init__("delegation tokens need a secret key: set delegation.token.secret.key")


class TokenNotFound(MillraceError):
    def __init__(self) -> None:
        super().__init__("no delegation token has this HMAC")


class TokenOwnerMismatch(MillraceError):
    def __init__(self) -> None:
        super().__init__("only the owner and the renewers of a delegation token may renew or expire it")


class TokenRequestNotAllowed(MillraceError):
    def __init__(self) -> None:
        super().__init__(
            "delegation tokens are given only to those who proved who they are, and not by such a token"
        )


class TokenAuthorizationFailed(MillraceError):
    def __init__(self, owner: str) -> None:
        super().__init__(f"not allowed to create delegation tokens for {owner}")


class TokenExpired(MillraceError):
    def __init__(self) -> None:
        super().__init__("the delegation token has expired")


class InvalidPrincipalType(MillraceError):
    def __init__(self, kind: str) -> None:
        super().__init__(f"renewers of delegation tokens must be of type User, not {kind}")


class InvalidMappingRules(MillraceError):
    """Rules that turn names of certificates into principals, but not these."""


class NoRuleMatches(MillraceError):
    def __init__(self, distinguished_name: str) -> None:
        super().__init__(f"none of ssl.principal.mapping.rules matches {distinguished_name!r}")


class InvalidTlsMaterial(MillraceError):
    """Keys or certificates that TLS cannot be made of. The message names files, and shows nothing of them."""


class InvalidDistinguishedName(MillraceError):
    def __init__(self, reason: str) -> None:
        super().__init__(f"not a distinguished name: {reason}")


class InvalidJaasConfig(MillraceError):
    """A JAAS configuration that cannot be read. The message names keys, never values."""


class InvalidKeySet(MillraceError):
    def __init__(self, reason: str) -> None:
        super().__init__(f"not a JSON Web Key Set: {reason}")


class RefusedUrl(MillraceError):
    def __init__(self, reason: str) -> None:
        super().__init__(f"the URL is refused: {reason}")
