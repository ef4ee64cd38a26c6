"""The TLS of a listener, made from files and text of all kinds, and refused with words where it cannot be."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from millrace.broker.network.tls_contexts import DirectSslObject, build_context, load_material, watched_files
from millrace.security.errors import InvalidTlsMaterial
from millrace.security.mapping_rules import parse_mapping_rules
from millrace.security.tls import KeyStore, TlsSettings, TrustStore
from tests.harness.tls_files import Authority, parts

RULES = parse_mapping_rules("DEFAULT")


def built(keys: KeyStore, trust: TrustStore | None = None, **settings: object) -> ssl.SSLContext:
    chosen = TlsSettings(keys=keys, trust=trust or TrustStore(), rules=RULES, **settings)  # type: ignore[arg-type]
    return build_context(chosen, load_material(chosen))


def talk(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[str, str]:
    """The version and the cipher that the two agree on."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    two = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(5):
        for side in (one, two):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    version, cipher = one.version(), one.cipher()
    assert version is not None
    assert cipher is not None
    return version, cipher[0]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def keys(authority: Authority) -> Path:
    return authority.issue()


def encrypted(file: Path) -> str:
    key = serialization.load_pem_private_key(parts(file)[0].encode(), None)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"hunter2"),
    ).decode()


def test_the_defaults_are_safe(authority: Authority, keys: Path) -> None:
    context = built(KeyStore(location=str(keys)))
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    for option in (ssl.OP_NO_COMPRESSION, ssl.OP_NO_RENEGOTIATION, ssl.OP_CIPHER_SERVER_PREFERENCE):
        assert context.options & option
    for cipher in context.get_ciphers():
        assert cipher["aead"], cipher["name"]
        assert cipher["kea"] in ("kx-ecdhe", "kx-any"), cipher["name"]
    assert context.verify_mode is ssl.CERT_NONE
    assert talk(context, authority.client())[0] == "TLSv1.3"


def test_a_version_can_be_left_out_and_ciphers_be_chosen(authority: Authority, keys: Path) -> None:
    store = KeyStore(location=str(keys))
    only_12 = built(
        store,
        versions=("TLSv1.2",),
        cipher_suites=("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "TLS_AES_256_GCM_SHA384"),
    )
    assert talk(only_12, authority.client()) == ("TLSv1.2", "ECDHE-ECDSA-CHACHA20-POLY1305")
    named = built(store, versions=("TLSv1.2",), cipher_suites=("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",))
    assert talk(named, authority.client())[1] == "ECDHE-ECDSA-AES256-GCM-SHA384"
    with pytest.raises(InvalidTlsMaterial, match=r"ssl\.cipher\.suites"):
        built(store, cipher_suites=("MINE",))
    client = authority.client()
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError, match="protocol"):
        talk(built(store, versions=("TLSv1.3",)), client)


def test_keys_come_as_text_in_one_line_too(authority: Authority, keys: Path) -> None:
    key, chain = parts(keys)
    assert talk(built(KeyStore(key=key, chain=chain)), authority.client())
    in_one = KeyStore(key=" ".join(key.split("\n")), chain=" ".join(chain.split("\n")))
    assert talk(built(in_one), authority.client())


def test_an_encrypted_key_needs_its_password(authority: Authority, keys: Path) -> None:
    chain = parts(keys)[1]
    assert talk(built(KeyStore(key=encrypted(keys), chain=chain, key_password="hunter2")), authority.client())
    for password in (None, "hunter3"):
        with pytest.raises(
            InvalidTlsMaterial, match=r"password is another|BAD_DECRYPT|private key"
        ) as refused:
            built(KeyStore(key=encrypted(keys), chain=chain, key_password=password))
        assert "hunter" not in str(refused.value)


def test_pkcs12_is_read_and_jks_is_not(authority: Authority, keys: Path, tmp_path: Path) -> None:
    key_text, chain = parts(keys)
    key = serialization.load_pem_private_key(key_text.encode(), None)
    first, *others = x509.load_pem_x509_certificates(chain.encode())
    file = tmp_path / "keys.p12"
    file.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"x",
            key,  # type: ignore[arg-type]
            first,
            others,
            serialization.BestAvailableEncryption(b"hunter2"),
        )
    )
    store = KeyStore(kind="PKCS12", location=str(file), password="hunter2")
    assert talk(built(store), authority.client())
    with pytest.raises(InvalidTlsMaterial, match=r"ssl\.keystore\.type=PKCS12"):
        built(KeyStore(location=str(file)))
    java = tmp_path / "keys.jks"
    java.write_bytes(b"\xfe\xed\xfe\xed rest")
    with pytest.raises(InvalidTlsMaterial, match="keytool"):
        built(KeyStore(location=str(java)))


def test_what_does_not_fit_is_refused_with_words(authority: Authority, keys: Path, tmp_path: Path) -> None:
    key, chain = parts(keys)
    other_key, _ = parts(authority.issue(name="other"))
    with pytest.raises(InvalidTlsMaterial, match="MISMATCH"):
        built(KeyStore(key=other_key, chain=chain))
    with pytest.raises(InvalidTlsMaterial, match="cannot be read: No such file"):
        built(KeyStore(location=str(tmp_path / "none.pem")))
    lonely = tmp_path / "chain.pem"
    lonely.write_text(chain)
    with pytest.raises(InvalidTlsMaterial, match="has no private key"):
        built(KeyStore(location=str(lonely)))
    lonely.write_text(key)
    with pytest.raises(InvalidTlsMaterial, match="no certificate"):
        built(KeyStore(location=str(lonely)))
    lonely.write_text("hello")
    with pytest.raises(InvalidTlsMaterial, match="not PEM"):
        built(KeyStore(location=str(keys)), TrustStore(location=str(lonely)))


@pytest.mark.parametrize("client_auth, is_let_in", [("none", True), ("requested", True), ("required", False)])
def test_clients_without_a_certificate(
    authority: Authority, keys: Path, client_auth: str, is_let_in: bool
) -> None:
    context = built(
        KeyStore(location=str(keys)), TrustStore(certificates=authority.pem), client_auth=client_auth
    )
    if is_let_in:
        assert talk(context, authority.client())
    else:
        with pytest.raises(ssl.SSLError, match=r"(?i)certificate"):
            talk(context, authority.client())
    assert talk(context, authority.client(authority.issue("client", name="client")))


def test_a_file_that_is_another_is_seen(authority: Authority, tmp_path: Path) -> None:
    own = Authority(tmp_path)
    settings = TlsSettings(
        keys=KeyStore(location=str(own.issue())), trust=TrustStore(location=str(own.file)), rules=RULES
    )
    before = watched_files(settings)
    assert watched_files(settings) == before
    own.issue()
    after = watched_files(settings)
    assert after != before
    own.file.unlink()
    assert watched_files(settings) != after


def test_what_is_called_for_each_record_is_not_a_function_of_python(keys: Path) -> None:
    context = built(KeyStore(location=str(keys)))
    made = context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_side=True)
    assert isinstance(made, DirectSslObject)
    for method in (made.read, made.write, made.pending):
        assert not hasattr(method, "__code__")
        assert method.__self__ is not made
    # Whoever waits for bytes is told as before.
    with pytest.raises(ssl.SSLWantReadError):
        made.read(1)
