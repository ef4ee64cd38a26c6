"""Client properties as Kafka's Java clients and librdkafka write them: one translation for all commands.

Java's names become librdkafka's, which `security.py` reads as well. No message holds a value that may be
secret.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from millrace.client.errors import InvalidOption
from millrace.client.property_names import DELEGATION_TOKEN, KNOWN, OF_JAVA_ALONE, OURS, SAME_HERE, TRANSLATED
from millrace.client.security import SECURITY_OPTIONS, SecurityOptions, read_security
from millrace.security.credentials.jaas import JaasEntry, parse_jaas_config
from millrace.security.errors import InvalidJaasConfig

_PEM_BEGIN: Final = b"-----BEGIN "
_JKS_BEGIN: Final = b"\xfe\xed\xfe\xed"
_TO_PEM: Final = (
    "make a PEM file of it: `keytool -importkeystore -srckeystore FILE -destkeystore FILE.p12 "
    "-deststoretype PKCS12`, then `openssl pkcs12 -in FILE.p12 -out FILE.pem`"
)
_EXTENSION: Final = "extension_"
_OAUTH_OPTIONS: Final = {
    "clientId": "sasl.oauthbearer.client.id",
    "clientSecret": "sasl.oauthbearer.client.secret",
    "scope": "sasl.oauthbearer.scope",
}
_OAUTH_FETCHED: Final = (
    *_OAUTH_OPTIONS.values(),
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.extensions",
)
_SECRETS: Final = (
    "sasl.password",
    "sasl.oauthbearer.token",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.assertion.private.key.pem",
    "ssl.key.pem",
    "ssl.key.password",
    "ssl.keystore.password",
)


@dataclass(frozen=True, slots=True)
class ClientProperties:
    """Properties by librdkafka's names."""

    values: Mapping[str, str] = field(repr=False, default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not self.values

    @property
    def is_secure(self) -> bool:
        """Whether connections are encrypted, or begin with a login, or both."""
        return self.values.get("security.protocol", "PLAINTEXT").upper() != "PLAINTEXT"

    @property
    def has_secrets(self) -> bool:
        return any(name in self.values for name in _SECRETS)

    @property
    def has_pkcs12(self) -> bool:
        """A key store that librdkafka reads and our own connections do not."""
        return "ssl.keystore.location" in self.values

    @property
    def takes_tokens(self) -> bool:
        """Whether logins are by tokens of OAUTHBEARER that we fetch ourselves."""
        return (
            self.is_secure
            and self.values.get("sasl.mechanism", "").upper() == "OAUTHBEARER"
            and self.values.get("sasl.oauthbearer.method", "default") == "default"
        )

    def for_librdkafka(self) -> dict[str, str]:
        """For clients made of librdkafka; raises InvalidOption."""
        if self.values.get(DELEGATION_TOKEN, "false") == "true":
            raise InvalidOption(
                f"{DELEGATION_TOKEN} (tokenauth): librdkafka, which this command uses, has no such login"
            )
        ours = (*OURS, *(_OAUTH_FETCHED if self.takes_tokens else ()))
        return {name: value for name, value in self.values.items() if name not in ours}

    def security_options(self) -> dict[str, str]:
        """Those that say how to reach secured brokers, as the Spark source and sink take them."""
        return {name: value for name, value in self.values.items() if name in SECURITY_OPTIONS}

    def security(self) -> SecurityOptions:
        """For connections of our own; raises InvalidOption."""
        if self.has_pkcs12:
            raise InvalidOption(
                "ssl.keystore.location is a PKCS#12 file, and this command reads PEM alone: "
                "`openssl pkcs12 -in FILE.p12 -out FILE.pem` makes one of it"
            )
        return read_security(self.values)


NO_PROPERTIES: Final = ClientProperties()


def translated(properties: Mapping[str, str]) -> ClientProperties:
    """Properties of either client; raises InvalidOption for a name that neither knows, with the nearest."""
    for name in properties:
        if name not in KNOWN:
            raise InvalidOption(_unknown(name))
    values = {name: value for name, value in properties.items() if name in SAME_HERE | OURS}
    found: dict[str, str] = {}
    if "sasl.jaas.config" in properties:
        found |= _from_jaas(properties["sasl.jaas.config"])
    found |= _trusted(properties)
    found |= _own_certificate(properties, values)
    for name, value in found.items():
        if values.get(name, value) != value:
            raise InvalidOption(f"{name} is given twice, by its name and by another of {_others(properties)}")
        values[name] = value
    _adjust_sasl(values)
    if values.get("ssl.endpoint.identification.algorithm") == "":
        values["ssl.endpoint.identification.algorithm"] = "none"
    return ClientProperties(values)


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, sorted(KNOWN - OF_JAVA_ALONE), n=1, cutoff=0.7)
    hint = f"; did you mean {near[0]}?" if near else ""
    # A line without `=` is a name, and may be anything: a password that has lost its name, for one.
    shown = name if len(name) <= 100 and name.replace(".", "").replace("_", "").isalnum() else "a line"
    return f"{shown}: no client property is called so{hint}"


def _others(properties: Mapping[str, str]) -> str:
    return ", ".join(sorted(TRANSLATED & properties.keys()))


def _from_jaas(text: str) -> dict[str, str]:
    try:
        entry = parse_jaas_config(text)
    except InvalidJaasConfig as error:
        raise InvalidOption(f"sasl.jaas.config: {error}") from error
    match entry.module.rpartition(".")[2]:
        case "PlainLoginModule" | "ScramLoginModule":
            return dict(_name_and_password(entry))
        case "OAuthBearerLoginModule":
            return dict(_oauth(entry))
        case other:
            raise InvalidOption(f"sasl.jaas.config: the login module {other} is not supported")


def _name_and_password(entry: JaasEntry) -> Iterator[tuple[str, str]]:
    if entry.options.get("tokenauth", "false").lower() == "true":
        yield DELEGATION_TOKEN, "true"
    for option in ("username", "password"):
        if option not in entry.options:
            raise InvalidOption(f"sasl.jaas.config: the option {option} is missing")
        yield f"sasl.{option}", entry.options[option]


def _oauth(entry: JaasEntry) -> Iterator[tuple[str, str]]:
    for option, name in _OAUTH_OPTIONS.items():
        if option in entry.options:
            yield name, entry.options[option]
    extensions = [
        f"{option.removeprefix(_EXTENSION)}={value}"
        for option, value in entry.options.items()
        if option.startswith(_EXTENSION)
    ]
    if extensions:
        yield "sasl.oauthbearer.extensions", ",".join(extensions)


def _trusted(properties: Mapping[str, str]) -> dict[str, str]:
    """Whom the client trusts: a PEM file, or PEM itself."""
    found: dict[str, str] = {}
    location = properties.get("ssl.truststore.location")
    if location is not None:
        if _kind_of_store("ssl.truststore", location) != "PEM":
            raise InvalidOption(f"ssl.truststore.location: {location} is no PEM file; {_TO_PEM}")
        found["ssl.ca.location"] = location
    if "ssl.truststore.certificates" in properties:
        found["ssl.ca.pem"] = properties["ssl.truststore.certificates"]
    return found


def _own_certificate(properties: Mapping[str, str], values: dict[str, str]) -> dict[str, str]:
    """The client's own certificate and key. librdkafka's `ssl.keystore.location` is a PKCS#12 file alone."""
    found: dict[str, str] = {}
    location = properties.get("ssl.keystore.location")
    if location is not None:
        kind = _kind_of_store("ssl.keystore", location)
        if kind == "PEM":
            # Java keeps the key and the chain in one file.
            values.pop("ssl.keystore.location")
            values.pop("ssl.keystore.password", None)
            found |= {"ssl.certificate.location": location, "ssl.key.location": location}
        elif kind == "JKS":
            raise InvalidOption(f"ssl.keystore.location: {location} is of Java's own form; {_TO_PEM}")
    if "ssl.keystore.certificate.chain" in properties:
        found["ssl.certificate.pem"] = properties["ssl.keystore.certificate.chain"]
    if "ssl.keystore.key" in properties:
        found["ssl.key.pem"] = properties["ssl.keystore.key"]
    return found


def _kind_of_store(name: str, location: str) -> str:
    """By what is in the file: the default of `...type` is not the same for the two clients."""
    try:
        beginning = Path(location).read_bytes()
    except OSError as error:
        raise InvalidOption(f"{name}.location: {location}: {error.strerror}") from error
    if beginning.startswith(_JKS_BEGIN):
        return "JKS"
    return "PEM" if _PEM_BEGIN in beginning else "PKCS12"


def _adjust_sasl(values: dict[str, str]) -> None:
    if not values.get("security.protocol", "").upper().startswith("SASL_"):
        return
    mechanism = values.pop("sasl.mechanisms", None)
    if mechanism is not None and values.setdefault("sasl.mechanism", mechanism) != mechanism:
        raise InvalidOption("sasl.mechanism and sasl.mechanisms are both given and differ")
    mechanism = values.get("sasl.mechanism")
    if mechanism is None:
        # Java's default is GSSAPI. To take PLAIN would send a password that was meant for SCRAM.
        raise InvalidOption("sasl.mechanism is missing: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER")
