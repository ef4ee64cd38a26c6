"""Names in certificates are written as Java writes them; hosts and ends are read."""

from __future__ import annotations

import datetime as dt

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

from millrace.security.certificates import chain_facts, name_of, pem_of_pkcs12
from millrace.security.errors import InvalidDistinguishedName, InvalidTlsMaterial

KEY = ec.generate_private_key(ec.SECP256R1())
END = dt.datetime(2030, 1, 2, 3, 4, 5, tzinfo=dt.UTC)


def certificate(name: x509.Name, *hosts: str) -> x509.Certificate:
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(KEY.public_key())
        .serial_number(1)
        .not_valid_before(END - dt.timedelta(days=9))
        .not_valid_after(END)
    )
    if hosts:
        names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(KEY, hashes.SHA256())


def pem(one: x509.Certificate) -> bytes:
    return one.public_bytes(serialization.Encoding.PEM)


def named(*attributes: tuple[x509.ObjectIdentifier, str]) -> x509.Name:
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in attributes])


@pytest.mark.parametrize(
    "name, written",
    [
        (
            named(
                (NameOID.COUNTRY_NAME, "DE"),
                (NameOID.ORGANIZATION_NAME, "d, e"),
                (NameOID.ORGANIZATIONAL_UNIT_NAME, "b"),
                (NameOID.COMMON_NAME, "a"),
            ),
            r"CN=a,OU=b,O=d\, e,C=DE",
        ),
        # RFC 2253 has no word for an e-mail address: Java writes its number and its bytes.
        (
            named((NameOID.COMMON_NAME, "a"), (NameOID.EMAIL_ADDRESS, "a.b")),
            "1.2.840.113549.1.9.1=#1603612e62,CN=a",
        ),
        (
            x509.Name(
                [
                    x509.RelativeDistinguishedName(
                        [
                            x509.NameAttribute(NameOID.COMMON_NAME, "a"),
                            x509.NameAttribute(NameOID.USER_ID, "u"),
                        ]
                    )
                ]
            ),
            "CN=a+UID=u",
        ),
        (named((NameOID.COMMON_NAME, "x" * 60), (NameOID.DOMAIN_COMPONENT, "y" * 200)), None),
        (named(), ""),
    ],
)
def test_a_name_is_written_as_java_writes_it(name: x509.Name, written: str | None) -> None:
    der = certificate(name).public_bytes(serialization.Encoding.DER)
    assert name_of(der) == (name.rfc4514_string() if written is None else written)


def test_a_chain_tells_names_hosts_and_ends() -> None:
    first = certificate(named((NameOID.COMMON_NAME, "a")), "one", "two")
    second = certificate(named((NameOID.COMMON_NAME, "b")))
    facts = chain_facts(pem(first) + pem(second))
    assert [one.name for one in facts] == ["CN=a", "CN=b"]
    assert [one.hosts for one in facts] == [{"one", "two"}, set()]
    assert facts[0].expires_ms == int(END.timestamp() * 1000)


def test_what_is_no_certificate_is_refused() -> None:
    with pytest.raises(InvalidTlsMaterial, match="no certificate"):
        chain_facts(b"rubbish")
    with pytest.raises(InvalidDistinguishedName):
        name_of(b"rubbish")


def test_a_certificate_of_a_version_that_does_not_exist_is_refused() -> None:
    """Found by the fuzzer: another error than for anything else that is wrong."""
    sound = certificate(named((NameOID.COMMON_NAME, "a"))).public_bytes(serialization.Encoding.DER)
    at = sound.index(bytes.fromhex("a003020102")) + 4
    odd = sound[:at] + b"\x07" + sound[at + 1 :]
    with pytest.raises(InvalidDistinguishedName, match="version"):
        name_of(odd)


def test_a_pkcs12_file_becomes_pem() -> None:
    leaf = certificate(named((NameOID.COMMON_NAME, "a")))
    other = certificate(named((NameOID.COMMON_NAME, "b")))
    content = pkcs12.serialize_key_and_certificates(
        b"x", KEY, leaf, [other], serialization.BestAvailableEncryption(b"hunter2")
    )
    key, chain = pem_of_pkcs12(content, "hunter2")
    assert b"PRIVATE KEY" in key
    assert chain == pem(leaf) + pem(other)
    with pytest.raises(InvalidTlsMaterial) as refused:
        pem_of_pkcs12(content, "hunter3")
    assert "hunter3" not in str(refused.value)
