"""Key sets are taken as far as they are usable, and unknown keys do not make us ask without end."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc.jwk import OctKey, RSAKey

from millrace.security.errors import InvalidKeySet
from millrace.security.jwt.keys import (
    ALGORITHMS,
    KEY_ID_LENGTH_MAX,
    KEY_SET_BYTES_MAX,
    KEYS_MAX,
    KeyRing,
    parse_key_set,
)
from tests.unit.security.jwt.providers import key_of, key_set, public

SMALL: dict[str, Any] = {"kty": "RSA", "n": "AQAB" * 40, "e": "AQAB"}


def test_only_asymmetric_algorithms_count() -> None:
    assert "none" not in ALGORITHMS
    assert not any(name.startswith("HS") for name in ALGORITHMS)
    assert set(ALGORITHMS.values()) == {"RSA", "EC", "OKP"}


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "ES384", "ES512", "EdDSA"])
def test_a_public_key_is_taken(algorithm: str) -> None:
    (key,) = parse_key_set(key_set(public(algorithm, kid="one", use="sig", alg=algorithm)))
    assert (key.key_id, key.kind, key.algorithm) == ("one", ALGORITHMS[algorithm], algorithm)
    assert [name for name in ALGORITHMS if key.fits(name)] == [algorithm]


def test_a_key_without_an_algorithm_fits_all_of_its_type() -> None:
    (key,) = parse_key_set(key_set(public("RS256")))
    assert key.key_id is None
    assert [name for name in ALGORITHMS if key.fits(name)] == [
        "RS256",
        "RS384",
        "RS512",
        "PS256",
        "PS384",
        "PS512",
    ]


@pytest.mark.parametrize(
    "key",
    [
        OctKey.import_key("x" * 32).as_dict(private=True),
        public("ES256", use="enc"),
        public("ES256", key_ops=["sign"]),
        public("ES256", alg="RS256"),
        public("ES256", alg="none"),
        public("ES256", alg=["ES256"]),
        public("ES256", kid=1),
        public("ES256", crv="P-999"),
        public("ES256", x="AAAA"),
        public("ES256", x=None),
        public("ES256", kty="PQC"),
        public("ES256", kty=["EC"]),
        public("ES256", kty=None),
        public("EdDSA", x="AAAA"),
        public("RS256", n="!"),
        SMALL,
        {**SMALL, "n": "AQAB" * 500},
        [],
        "x",
        None,
        {},
    ],
)
def test_keys_of_no_use_are_passed_over(key: Any) -> None:
    with pytest.raises(InvalidKeySet, match="none of its keys"):
        parse_key_set(key_set(key))
    assert [found.key_id for found in parse_key_set(key_set(key, public("ES256", kid="good")))] == ["good"]


def test_the_secret_of_a_private_key_is_not_read() -> None:
    private = key_of("ES256").as_dict(private=True)
    assert "d" in private
    (key,) = parse_key_set(key_set(private))
    assert not key.key.is_private
    assert str(private["d"]) not in repr(key)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys":{}}',
        b'{"keys":[]}',
        b'{"keys":null}',
        b" " * (KEY_SET_BYTES_MAX + 1),
        key_set(*[{}] * (KEYS_MAX + 1)),
    ],
)
def test_what_is_no_key_set_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidKeySet):
        parse_key_set(content)


def test_weak_keys_do_not_even_warn(recwarn: pytest.WarningsRecorder) -> None:
    weak = {"kty": "RSA", "n": RSAKey.generate_key(2048).as_dict(private=False)["n"], "e": "AQAB"}
    weak["n"] = str(weak["n"])[:300]
    with pytest.raises(InvalidKeySet):
        parse_key_set(key_set(weak))
    assert not recwarn.list


class Asked:
    """Counts how often a newer key set was asked for."""

    def __init__(self) -> None:
        self.count = 0
        self.ring = KeyRing(self.ask)

    def ask(self) -> None:
        self.count += 1

    def miss(self, key_id: str | None, now_s: float) -> None:
        assert self.ring.find(key_id, "ES256", int(now_s * 1000)) is None


def test_the_key_of_an_id_is_found() -> None:
    asked = Asked()
    asked.ring.replace(
        parse_key_set(
            key_set(public("RS256", kid="a"), public("ES256", kid="a"), public("ES384", kid="b", alg="ES384"))
        )
    )
    found = asked.ring.find("a", "ES256", 0)
    assert found is not None
    assert (found.key_id, found.kind) == ("a", "EC")
    assert asked.count == 0
    asked.miss("b", 0)
    assert asked.count == 1


def test_a_token_without_an_id_is_of_the_only_key_that_fits() -> None:
    asked = Asked()
    asked.ring.replace(parse_key_set(key_set(public("RS256", kid="a"), public("ES256", kid="b"))))
    assert asked.ring.find(None, "ES256", 0) is not None
    asked.ring.replace(parse_key_set(key_set(public("ES256", kid="a"), public("ES256", kid="b"))))
    asked.miss(None, 0)
    assert asked.count == 0


def test_an_unknown_id_asks_once_a_minute() -> None:
    asked = Asked()
    for now_s in (0, 1, 30, 59.9):
        asked.miss("new", now_s)
    assert asked.count == 1
    asked.miss("new", 60)
    asked.miss("new", 60.5)
    assert asked.count == 2


def test_two_ids_ask_for_themselves_but_not_within_a_second() -> None:
    asked = Asked()
    asked.miss("one", 0)
    asked.miss("two", 0.5)
    assert asked.count == 1
    asked.miss("two", 1)
    assert asked.count == 2
    asked.miss("two", 2)
    assert asked.count == 2


def test_sixteen_ids_are_remembered() -> None:
    asked = Asked()
    for number in range(17):
        asked.miss(str(number), number)
    assert asked.count == 17
    asked.miss("0", 20)
    assert asked.count == 18
    asked.miss("16", 22)
    assert asked.count == 18
    assert len(asked.ring._asked_ms) == 16


def test_an_id_that_is_asked_for_again_stays_remembered() -> None:
    asked = Asked()
    asked.miss("kept", 0)
    for number in range(16):
        asked.miss(str(number), number + 1)
        asked.miss("kept", number + 1)
    assert asked.count == 17


def test_a_very_long_id_is_never_asked_for() -> None:
    asked = Asked()
    asked.miss("x" * (KEY_ID_LENGTH_MAX + 1), 0)
    assert asked.count == 0
    assert not asked.ring._asked_ms
    asked.miss("x" * KEY_ID_LENGTH_MAX, 0)
    assert asked.count == 1


def test_a_new_key_set_forgets_what_was_missing() -> None:
    asked = Asked()
    asked.miss("new", 0)
    asked.ring.replace(parse_key_set(key_set(public("ES256", kid="new"))))
    assert asked.ring.find("new", "ES256", 1) is not None
    asked.ring.replace(parse_key_set(key_set(public("ES256", kid="other"))))
    asked.miss("new", 2)
    assert asked.count == 2


def test_a_clock_that_is_set_back_does_not_end_the_asking() -> None:
    asked = Asked()
    asked.miss("new", 1_000_000)
    asked.miss("new", 10)
    assert asked.count == 2


@given(st.lists(st.tuples(st.sampled_from("abcdefghijklmnopqrstuvwxyz"), st.floats(0, 5)), max_size=200))
def test_however_many_ids_are_made_up_there_is_at_most_one_question_a_second(
    misses: list[tuple[str, float]],
) -> None:
    asked, now_s = Asked(), 0.0
    for key_id, wait_s in misses:
        now_s += wait_s
        asked.miss(key_id, now_s)
        assert len(asked.ring._asked_ms) <= 16
    assert asked.count <= now_s + 1


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["kty", "n", "e", "crv", "x", "y", "kid", "use", "alg", "key_ops"]), inner
            )
        ),
        max_leaves=8,
    )
)
def test_every_key_is_taken_or_passed_over(key: Any) -> None:
    assert len(parse_key_set(orjson.dumps({"keys": [key, public("ES256")]}))) >= 1
