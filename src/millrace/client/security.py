"""How connections are secured: protocol, TLS and login, by the names of librdkafka's options or of Kafka's.

Secrets never appear in messages or representations.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from millrace.client.errors import InvalidOption
from millrace.client.sasl import MECHANISMS, SCRAM
from millrace.client.tls import TlsOptions
from millrace.client.tokens import TokenEndpoint, TokenSource
from millrace.security.credentials.jaas import JaasEntry, parse_jaas_config
from millrace.security.errors import InvalidJaasConfig

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

_OAUTH: Final = "sasl.oauthbearer"
_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "security.protocol": (),
    "sasl.mechanism": ("sasl.mechanisms",),
    "sasl.username": (),
    "sasl.password": (),
    "sasl.delegation.token": (),
    "sasl.jaas.config": (),
    f"{_OAUTH}.token": (),
    f"{_OAUTH}.token.file": (),
    f"{_OAUTH}.token.endpoint.url": (),
    f"{_OAUTH}.client.id": (f"{_OAUTH}.client.credentials.client.id",),
    f"{_OAUTH}.client.secret": (f"{_OAUTH}.client.credentials.client.secret",),
    f"{_OAUTH}.scope": (),
    f"{_OAUTH}.extensions": (),
    "https.ca.location": (),
    "ssl.ca.location": ("ssl.truststore.location",),
    "ssl.ca.pem": ("ssl.truststore.certificates",),
    "ssl.certificate.location": ("ssl.keystore.location",),
    "ssl.certificate.pem": ("ssl.keystore.certificate.chain",),
    "ssl.key.location": (),
    "ssl.key.pem": ("ssl.keystore.key",),
    "ssl.key.password": (),
    "ssl.keystore.type": (),
    "ssl.truststore.type": (),
    "ssl.endpoint.identification.algorithm": (),
}
"""librdkafka's names, or ours where it has none, with Kafka's other names for the same."""
_FILES: Final = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")
_TEXTS: Final = ("ssl.ca.pem", "ssl.certificate.pem", "ssl.key.pem")
SECURITY_OPTIONS: Final = tuple(name for first, others in _NAMES.items() for name in (first, *others))


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityOptions:
    """How to connect: plainly or by TLS, and as whom."""

    protocol: str = "PLAINTEXT"
    mechanism: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    is_delegation_token: bool = False
    """Whether user and password are the id and the HMAC of a delegation token."""
    tokens: TokenSource | None = field(default=None, repr=False)
    """Where those of OAUTHBEARER come from."""
    extensions: Mapping[str, str] = field(default_factory=dict)
    tls: TlsOptions = field(default_factory=TlsOptions)

    @property
    def uses_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")

    def tls_context(self) -> ssl.SSLContext | None:
        """What to make connections with; None for those without TLS. Raises InvalidOption."""
        return self.tls.context() if self.uses_tls else None


PLAINTEXT: Final = SecurityOptions()


def read_security(options: Mapping[str, str]) -> SecurityOptions:
    """The security options among `options`, checked; their names may carry the prefix `kafka.`."""
    values = {name: value for name in _NAMES if (value := _option(options, name)) is not None}
    protocol = values.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise InvalidOption(f"security.protocol={protocol}: must be one of {', '.join(PROTOCOLS)}")
    tls = _read_tls(values, protocol)
    if protocol.startswith("SASL_"):
        return _read_login(values, protocol, tls)
    if any(name.startswith("sasl.") for name in values):
        raise InvalidOption(
            f"sasl options are given, but security.protocol is {protocol}: use SASL_PLAINTEXT or SASL_SSL"
        )
    return SecurityOptions(protocol=protocol, tls=tls)


def login_of(
    jaas: str, mechanism: str, protocol: str, tls: TlsOptions, *, token_url: str | None = None
) -> SecurityOptions:
    """The login that a `sasl.jaas.config` holds; raises InvalidOption."""
    values = {"sasl.jaas.config": jaas, "sasl.mechanism": mechanism}
    if token_url is not None:
        values[f"{_OAUTH}.token.endpoint.url"] = token_url
    return _read_login(values, protocol, tls)


def _option(options: Mapping[str, str], name: str) -> str | None:
    found: tuple[str, str] | None = None
    for plain in (name, *_NAMES[name]):
        for given in (plain, f"kafka.{plain}"):
            value = options.get(given)
            if value is None:
                continue
            if found is not None and found[1] != value:
                raise InvalidOption(f"{found[0]} and {given} are both given and differ")
            found = found or (given, value)
    return None if found is None else found[1]


# Logins.


def _read_login(given: Mapping[str, str], protocol: str, tls: TlsOptions) -> SecurityOptions:
    values = dict(given)
    mechanism = values.get("sasl.mechanism", "PLAIN").upper()
    if mechanism not in MECHANISMS:
        raise InvalidOption(f"sasl.mechanism={mechanism}: must be one of {', '.join(MECHANISMS)}")
    if "sasl.jaas.config" in values:
        values = _with_jaas(values)
    if mechanism == "OAUTHBEARER":
        return SecurityOptions(
            protocol=protocol,
            mechanism=mechanism,
            tokens=_read_tokens(values),
            extensions=_read_extensions(values.get(f"{_OAUTH}.extensions", "")),
            tls=tls,
        )
    is_token = values.get("sasl.delegation.token", "false").lower()
    if is_token not in ("true", "false") or (is_token == "true" and mechanism not in SCRAM):
        raise InvalidOption("sasl.delegation.token must be true or false, and true only with SCRAM")
    for name in ("sasl.username", "sasl.password"):
        if not values.get(name):
            raise InvalidOption(f"security.protocol={protocol} needs {name}")
        if "\0" in values[name]:
            raise InvalidOption(f"{name} must not hold a NUL character")
    return SecurityOptions(
        protocol=protocol,
        mechanism=mechanism,
        username=values["sasl.username"],
        password=values["sasl.password"],
        is_delegation_token=is_token == "true",
        tls=tls,
    )


def _with_jaas(values: Mapping[str, str]) -> dict[str, str]:
    """What Kafka's clients keep in one option, as several."""
    try:
        entry: JaasEntry = parse_jaas_config(values["sasl.jaas.config"])
    except InvalidJaasConfig as error:
        raise InvalidOption(f"sasl.jaas.config: {error}") from None
    names = {
        "username": "sasl.username",
        "password": "sasl.password",
        "tokenauth": "sasl.delegation.token",
        "clientId": f"{_OAUTH}.client.id",
        "clientSecret": f"{_OAUTH}.client.secret",
        "scope": f"{_OAUTH}.scope",
    }
    found = dict(values)
    for key, name in names.items():
        if key not in entry.options:
            continue
        if name in values and values[name] != entry.options[key]:
            raise InvalidOption(f"{name} and sasl.jaas.config are both given and differ")
        found[name] = entry.options[key]
    return found


def _read_tokens(values: Mapping[str, str]) -> TokenSource:
    ways = [name for name in ("token", "token.file", "token.endpoint.url") if f"{_OAUTH}.{name}" in values]
    if len(ways) != 1:
        raise InvalidOption(
            f"sasl.mechanism=OAUTHBEARER needs one of {_OAUTH}.token, {_OAUTH}.token.file and "
            f"{_OAUTH}.token.endpoint.url"
        )
    given = values[f"{_OAUTH}.{ways[0]}"]
    if ways[0] == "token":
        return TokenSource(token=given)
    if ways[0] == "token.file":
        return TokenSource(file=Path(given))
    parts = urlsplit(given)
    if parts.scheme == "file":
        return TokenSource(file=Path(unquote(parts.path)))
    for name in (f"{_OAUTH}.client.id", f"{_OAUTH}.client.secret"):
        if name not in values:
            raise InvalidOption(f"{_OAUTH}.token.endpoint.url needs {name}")
    return TokenSource(
        endpoint=TokenEndpoint(
            url=given,
            client_id=values[f"{_OAUTH}.client.id"],
            client_secret=values[f"{_OAUTH}.client.secret"],
            scope=values.get(f"{_OAUTH}.scope"),
            ca_file=values.get("https.ca.location"),
        )
    )


def _read_extensions(text: str) -> dict[str, str]:
    """`name=value`, separated by commas."""
    found: dict[str, str] = {}
    for pair in filter(None, text.split(",")):
        name, equals, value = pair.strip().partition("=")
        if not equals or not (name.isascii() and name.isalpha()) or name == "auth" or not value.isprintable():
            raise InvalidOption(f"{_OAUTH}.extensions must be name=value, separated by commas")
        found[name] = value
    return found


# TLS.


def _read_tls(values: Mapping[str, str], protocol: str) -> TlsOptions:
    for name in (*_FILES, *_TEXTS):
        if name in values and not protocol.endswith("SSL"):
            raise InvalidOption(f"{name} is given, but security.protocol is {protocol}: use SSL or SASL_SSL")
    for name in _FILES:
        if name in values and not Path(values[name]).is_file():
            raise InvalidOption(f"{name}={values[name]}: there is no such file")
    for name in ("ssl.keystore.type", "ssl.truststore.type"):
        if values.get(name, "PEM").upper() != "PEM":
            raise InvalidOption(f"{name}={values[name]}: only PEM can be read here")
    for file, text in zip(_FILES, _TEXTS, strict=True):
        if file in values and text in values:
            raise InvalidOption(f"{file} and {text} are both given")
    if "ssl.key.pem" in values and "ssl.certificate.pem" not in values:
        raise InvalidOption("ssl.key.pem needs ssl.certificate.pem")
    if "ssl.key.location" in values and "ssl.certificate.location" not in values:
        raise InvalidOption("ssl.key.location needs ssl.certificate.location")
    identification = values.get("ssl.endpoint.identification.algorithm", "https")
    if identification not in ("", "none", "https"):
        raise InvalidOption(f"ssl.endpoint.identification.algorithm={identification}: must be https or none")
    return TlsOptions(
        ca_file=values.get("ssl.ca.location"),
        ca_pem=values.get("ssl.ca.pem"),
        certificate_file=values.get("ssl.certificate.location"),
        certificate_pem=values.get("ssl.certificate.pem"),
        key_file=values.get("ssl.key.location"),
        key_pem=values.get("ssl.key.pem"),
        key_password=values.get("ssl.key.password"),
        check_hostname=identification == "https",
    )
