"""The mechanisms of a listener find users where the configuration and the metadata have them."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import scramp

from millrace.broker.assembly.logins import Logins, build_logins
from millrace.broker.config.config import load
from millrace.security.credentials.scram import ScramMechanism, derive_credential
from millrace.security.principals import Principal, user
from millrace.security.sasl.exchange import Answer, Challenge, Exchange, Failure, Success, Work
from millrace.security.tokens import DelegationToken, TokenIndex, TokenLogins, TokenRules, TokenSettings
from tests.unit.broker.assembly.grounds import ground_of

SASL = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0"}
JAAS = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
CREDENTIALS = {
    "bob": {
        mechanism.label: derive_credential(mechanism, "pw", salt=b"the salt of bob", iterations=4_096)
        for mechanism in ScramMechanism
    }
}
RULES = TokenRules(TokenSettings(secret_key=b"key"))


def services_of(index: TokenIndex | None = None) -> Any:
    security = SimpleNamespace(credentials=CREDENTIALS)
    logins = TokenLogins(RULES, TokenIndex(RULES) if index is None else index)
    return SimpleNamespace(
        metadata=SimpleNamespace(image=SimpleNamespace(security=security)),
        tokens=SimpleNamespace(logins=logins),
    )


def logins_of(directory: Path, settings: Mapping[str, str], index: TokenIndex | None = None) -> Logins:
    return build_logins(ground_of(directory, {**SASL, **settings}), cast("Any", services_of(index)))


def exchange_of(logins: Logins, mechanism: str) -> Exchange:
    return logins.by_listener["SASL_PLAINTEXT"].settings.mechanisms[mechanism]()


def respond(exchange: Exchange, token: bytes) -> Answer:
    step = exchange.respond(token, 1_000)
    return step.then(step.run()) if isinstance(step, Work) else step


def principal_of(answer: Answer) -> Principal | None:
    return answer.identity.principal if isinstance(answer, Success) else None


def scram(logins: Logins, mechanism: str, name: str, password: str, **options: Any) -> Answer:
    client = scramp.ScramClient([mechanism], name, password)
    exchange = exchange_of(logins, mechanism)
    first = client.get_client_first()
    if options.get("is_token"):
        first += ",tokenauth=true"
        client.client_first_bare += ",tokenauth=true"
    answer = respond(exchange, first.encode())
    assert isinstance(answer, Challenge), answer
    client.set_server_first(answer.data.decode())
    return respond(exchange, client.get_client_final().encode())


def test_only_listeners_with_sasl_have_logins(tmp_path: Path) -> None:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.connections.max.reauth.ms": "77",
    }
    logins = logins_of(tmp_path, settings)
    assert list(logins.by_listener) == ["SASL_PLAINTEXT"]
    assert logins.by_listener["SASL_PLAINTEXT"].settings.reauthentication_ms_max == {"PLAIN": 77}


def test_plain_takes_users_of_the_configuration_or_of_the_store(tmp_path: Path) -> None:
    stored = logins_of(tmp_path, {"sasl.enabled.mechanisms": "PLAIN"})
    assert principal_of(respond(exchange_of(stored, "PLAIN"), b"\0bob\0pw")) == user("bob")
    assert isinstance(respond(exchange_of(stored, "PLAIN"), b"\0bob\0no"), Failure)
    assert isinstance(respond(exchange_of(stored, "PLAIN"), b"\0eve\0pw"), Failure)
    named = logins_of(
        tmp_path, {"sasl.enabled.mechanisms": "PLAIN", JAAS: f'{MODULE} required user_alice="x";'}
    )
    assert principal_of(respond(exchange_of(named, "PLAIN"), b"\0alice\0x")) == user("alice")
    assert isinstance(respond(exchange_of(named, "PLAIN"), b"\0bob\0pw"), Failure)


def test_scram_takes_users_of_the_store(tmp_path: Path) -> None:
    logins = logins_of(tmp_path, {"sasl.enabled.mechanisms": ",".join(SCRAM)})
    for mechanism in SCRAM:
        assert principal_of(scram(logins, mechanism, "bob", "pw")) == user("bob")
        assert isinstance(scram(logins, mechanism, "bob", "no"), Failure)
        assert isinstance(scram(logins, mechanism, "eve", "pw"), Failure)


def test_a_delegation_token_logs_its_owner_in(tmp_path: Path) -> None:
    index = TokenIndex(RULES)
    token = DelegationToken(
        token_id="t", owner=user("bob"), requester=user("bob"), issued_ms=0, expires_ms=5_000, ends_ms=9_000
    )
    index.put(token)
    logins = logins_of(tmp_path, {"sasl.enabled.mechanisms": SCRAM[0]}, index)
    password = base64.b64encode(RULES.hmac_of("t")).decode()
    answer = scram(logins, SCRAM[0], "t", password, is_token=True)
    assert isinstance(answer, Success)
    assert (answer.identity.principal, answer.identity.is_token) == (user("bob"), True)
    assert answer.identity.expires_ms == 5_000
    assert isinstance(scram(logins, SCRAM[0], "t", "no", is_token=True), Failure)


def test_tokens_of_a_provider_are_verified_unless_a_test_wants_none(tmp_path: Path) -> None:
    def part(content: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")

    claims = part({"sub": "carl", "iat": 0, "exp": 100})
    message = f"n,,\x01auth=Bearer {part({'alg': 'none'})}.{claims}.\x01\x01".encode()
    open_to_all = logins_of(
        tmp_path,
        {"sasl.enabled.mechanisms": "OAUTHBEARER", "sasl.oauthbearer.unsecured.enable": "true"},
    )
    assert principal_of(respond(exchange_of(open_to_all, "OAUTHBEARER"), message)) == user("carl")

    async def main() -> None:
        url = (tmp_path / "keys.json").as_uri()
        settings = {
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": url,
            "sasl.oauthbearer.allowed.urls": url,
        }
        verified = logins_of(tmp_path, settings)
        assert len(verified.feeds) == 1
        # It is answered with a challenge that tells of the refusal, as the mechanism wants it.
        answer = respond(exchange_of(verified, "OAUTHBEARER"), message)
        assert isinstance(answer, Challenge)
        assert b"invalid_token" in answer.data
        await verified.ground.background.end()

    asyncio.run(main())


def test_changed_users_count_for_new_connections(tmp_path: Path) -> None:
    settings = {**SASL, "sasl.enabled.mechanisms": "PLAIN"}
    logins = logins_of(tmp_path, {**settings, JAAS: f'{MODULE} required user_alice="x";'})
    live = logins.ground.config
    changed = live.now.with_dynamic(default={}, broker={JAAS: f'{MODULE} required user_alice="y";'})
    live.replace(changed)
    assert principal_of(respond(exchange_of(logins, "PLAIN"), b"\0alice\0y")) == user("alice")
    assert isinstance(respond(exchange_of(logins, "PLAIN"), b"\0alice\0x"), Failure)
    same = logins.by_listener["SASL_PLAINTEXT"].settings
    live.replace(changed.with_dynamic(default={}, broker={JAAS: "rubbish"}))
    assert logins.by_listener["SASL_PLAINTEXT"].settings is same
    live.replace(changed)
    same = logins.by_listener["SASL_PLAINTEXT"].settings
    live.replace(changed.with_static("num.partitions", "3"))
    assert logins.by_listener["SASL_PLAINTEXT"].settings is same


def test_made_up_credentials_are_the_same_on_all_brokers_that_share_a_secret(tmp_path: Path) -> None:
    def salt(settings: Mapping[str, str]) -> bytes:
        chosen = {"sasl.enabled.mechanisms": "PLAIN", **settings}
        return logins_of(tmp_path, chosen).decoys.credential(ScramMechanism.SHA_256, "eve").salt

    secret = {"delegation.token.secret.key": "shared"}
    assert salt(secret) == salt(secret)
    assert salt({}) != salt({})
    assert load(None, secret, {}).optional_text("delegation.token.secret.key") == "shared"
