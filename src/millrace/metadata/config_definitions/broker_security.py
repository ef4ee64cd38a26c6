"""The broker-level settings of TLS and of permissions. Those of TLS may be set for a listener alone, with the
prefix `listener.name.<listener>.`"""

from __future__ import annotations

from typing import Final

from millrace.metadata.config_definitions.model import (
    Check,
    ConfigType,
    Importance,
    ListOf,
    OneOf,
    Range,
    Setting,
    UpdateMode,
    Value,
)

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
STORE_TYPES: Final = ("PEM", "PKCS12", "JKS")
TLS_PROTOCOLS: Final = ("TLSv1.2", "TLSv1.3")
SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

_BOOLEAN, _INT, _STRING, _LIST = ConfigType.BOOLEAN, ConfigType.INT, ConfigType.STRING, ConfigType.LIST
_HIGH, _LOW = Importance.HIGH, Importance.LOW
_LIVE: Final = UpdateMode.PER_BROKER
_NO_JKS: Final = "Kafka's is JKS, which only Java reads; PEM is what most authorities hand out"


def secret(
    name: str, doc: str, *, update: UpdateMode = UpdateMode.READ_ONLY, valid: Check | None = None
) -> Setting:
    """A setting whose value nobody is shown."""
    return Setting(
        name=name,
        type=ConfigType.PASSWORD,
        default=None,
        doc=doc,
        importance=_HIGH,
        update=update,
        sensitive=True,
        valid=valid,
    )


def _are_principals(value: Value) -> bool:
    assert isinstance(value, str), value
    principals = [item.strip() for item in value.split(";") if item.strip()]
    return all(kind and name for kind, _, name in (one.partition(":") for one in principals))


_ACCESS: Final = (
    Setting(
        name="authorizer.class.name",
        type=_STRING,
        default="",
        doc="Whether permissions are checked: the name of Kafka's authorizer turns them on, empty lets "
        "everybody do everything. The permissions are in the cluster's metadata.",
        valid=OneOf(("", STANDARD_AUTHORIZER)),
    ),
    Setting(
        name="super.users",
        type=_STRING,
        default="",
        doc="Who may do everything, whatever the permissions say: principals such as User:admin, separated "
        "by semicolons.",
        valid=Check(_are_principals, "principals as Type:name, separated by semicolons"),
    ),
    Setting(
        name="allow.everyone.if.no.acl.found",
        type=_BOOLEAN,
        default=False,
        doc="Whether everybody may use what no permission names at all. A single permission, for whomever, "
        "closes it to all others.",
        importance=_LOW,
    ),
)

_KEY_STORE: Final = (
    Setting(
        name="ssl.keystore.type",
        type=_STRING,
        default="PEM",
        doc="What holds the broker's private key and its chain of certificates: PEM, or PKCS12 in the file "
        "of ssl.keystore.location. JKS is refused with a hint how to convert it.",
        valid=OneOf(STORE_TYPES),
        update=_LIVE,
        deviates=_NO_JKS,
    ),
    Setting(
        name="ssl.keystore.location",
        type=_STRING,
        default=None,
        doc="The file with the broker's private key and its chain of certificates, the broker's own first. "
        "It is looked at every ten seconds: new handshakes use what it holds then.",
        importance=_HIGH,
        update=_LIVE,
    ),
    secret("ssl.keystore.password", "The password of a PKCS12 file in ssl.keystore.location.", update=_LIVE),
    secret("ssl.keystore.key", "The broker's private key itself, as PEM, instead of a file.", update=_LIVE),
    secret(
        "ssl.keystore.certificate.chain",
        "The chain of certificates itself, as PEM, beside ssl.keystore.key.",
        update=_LIVE,
    ),
    secret("ssl.key.password", "The password of an encrypted private key.", update=_LIVE),
    Setting(
        name="ssl.truststore.type",
        type=_STRING,
        default="PEM",
        doc="What holds the certificates of the authorities whose clients are trusted: PEM, or PKCS12 in the "
        "file of ssl.truststore.location.",
        valid=OneOf(STORE_TYPES),
        update=_LIVE,
        deviates=_NO_JKS,
    ),
    Setting(
        name="ssl.truststore.location",
        type=_STRING,
        default=None,
        doc="The file with the certificates of authorities. It is looked at every ten seconds, too.",
        importance=_HIGH,
        update=_LIVE,
    ),
    secret(
        "ssl.truststore.password", "The password of a PKCS12 file in ssl.truststore.location.", update=_LIVE
    ),
    secret(
        "ssl.truststore.certificates",
        "The certificates of authorities themselves, as PEM, instead of a file.",
        update=_LIVE,
    ),
    Setting(
        name="ssl.allow.dn.changes",
        type=_BOOLEAN,
        default=False,
        doc="Whether a certificate that takes the place of another while the broker runs may have another "
        "name.",
        importance=_LOW,
    ),
    Setting(
        name="ssl.allow.san.changes",
        type=_BOOLEAN,
        default=False,
        doc="Whether a certificate that takes the place of another while the broker runs may lack hosts that "
        "the other one was for.",
        importance=_LOW,
    ),
)

_TLS: Final = (
    Setting(
        name="ssl.client.auth",
        type=_STRING,
        default="none",
        doc="Whether clients show certificates: they must (required), may (requested), or are not asked "
        "(none).",
        valid=OneOf(("none", "requested", "required")),
    ),
    Setting(
        name="ssl.enabled.protocols",
        type=_LIST,
        default=TLS_PROTOCOLS,
        doc="The versions of TLS that are spoken.",
        valid=ListOf(TLS_PROTOCOLS),
    ),
    Setting(
        name="ssl.cipher.suites",
        type=_LIST,
        default=None,
        doc="The cipher suites of TLS 1.2, by the names of OpenSSL or of the standard, strongest first. "
        "Without it, those with forward secrecy and authenticated encryption. TLS 1.3 has only safe ones.",
        importance=_LOW,
    ),
    Setting(
        name="ssl.principal.mapping.rules",
        type=_STRING,
        default="DEFAULT",
        doc="How the name in a client's certificate becomes a principal: RULE:pattern/replacement/[LU] and "
        "DEFAULT, separated by commas. The first that matches counts; a certificate that none matches is "
        "refused. Patterns are RE2's.",
    ),
    Setting(
        name="ssl.principal.groups.attribute",
        type=_STRING,
        default=None,
        doc="The attribute of a certificate's name, such as OU, whose values are its holder's groups. "
        "Without it, certificates tell no groups.",
        importance=_LOW,
    ),
    Setting(
        name="ssl.endpoint.identification.algorithm",
        type=_STRING,
        default="https",
        doc="Whether a broker that dials another compares the host with the certificate (https) or not "
        "(empty).",
        valid=OneOf(("https", "")),
        importance=_LOW,
    ),
    Setting(
        name="ssl.handshake.timeout.ms",
        type=_INT,
        default=10_000,
        doc="How long a client may take for the handshake of TLS. Then the connection is closed.",
        valid=Range(1),
        importance=_LOW,
    ),
    Setting(
        name="ssl.handshake.rate.per.ip",
        type=_INT,
        default=200,
        doc="How many handshakes of TLS a second one address gets. Further ones wait for their turn, within "
        "ssl.handshake.timeout.ms: a handshake costs the broker about a millisecond.",
        valid=Range(1),
        importance=_LOW,
    ),
)

TLS_SETTINGS: Final = _KEY_STORE + _TLS
SECURITY_SETTINGS: Final = (
    *_ACCESS,
    *TLS_SETTINGS,
    Setting(
        name="security.inter.broker.protocol",
        type=_STRING,
        default="PLAINTEXT",
        doc="The protocol that brokers use among themselves, on the listener of the same name. To be set "
        "instead of inter.broker.listener.name, not beside it.",
        valid=OneOf(SECURITY_PROTOCOLS),
    ),
)
