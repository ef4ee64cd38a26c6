"""SCRAM credentials are those of RFC 5802 and RFC 7677, and show nothing of themselves."""

from __future__ import annotations

import base64
import random
import re

import pytest
import scramp
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.security.credentials.scram import (
    ITERATIONS_MIN,
    Decoys,
    ScramMechanism,
    credential_of_salted,
    derive_credential,
    is_password,
    random_text,
    salted_password,
    scram_mechanism,
)

MECHANISMS = list(ScramMechanism)


def test_mechanisms_have_kafkas_names_and_numbers() -> None:
    assert [(one.value, one.label, one.digest) for one in MECHANISMS] == [
        (1, "SCRAM-SHA-256", "sha256"),
        (2, "SCRAM-SHA-512", "sha512"),
    ]
    assert [scram_mechanism(code) for code in (0, 1, 2, 3, -1)] == [None, *MECHANISMS, None, None]


@pytest.mark.parametrize("mechanism", MECHANISMS)
@given(password=st.text(alphabet=st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=1))
@settings(max_examples=10)
def test_keys_are_those_of_another_implementation(mechanism: ScramMechanism, password: str) -> None:
    salt = b"0123456789abcdef"
    other = scramp.ScramMechanism(mechanism.label).make_auth_info(password, ITERATIONS_MIN, salt=salt)
    credential = derive_credential(mechanism, password, salt=salt, iterations=ITERATIONS_MIN)
    assert (credential.salt, credential.stored_key, credential.server_key, credential.iterations) == other


def test_keys_are_those_of_the_rfc() -> None:
    """RFC 7677, section 3: what the proof and the signature there are made of."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    credential = derive_credential(ScramMechanism.SHA_256, "pencil", salt=salt, iterations=4096)
    assert base64.b64encode(credential.stored_key) == b"WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
    assert base64.b64encode(credential.server_key) == b"wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("password", ["pencil", "Grüße", "p,=", "x" * 300])
def test_the_password_is_known_again_and_no_other(mechanism: ScramMechanism, password: str) -> None:
    credential = derive_credential(mechanism, password, salt=b"salt", iterations=ITERATIONS_MIN)
    assert is_password(mechanism, credential, password)
    assert not is_password(mechanism, credential, password + " ")
    salted = salted_password(mechanism, password, b"salt", ITERATIONS_MIN)
    assert credential == credential_of_salted(mechanism, salted, salt=b"salt", iterations=ITERATIONS_MIN)


def test_a_credential_does_not_show_its_keys() -> None:
    credential = derive_credential(ScramMechanism.SHA_256, "pencil", salt=b"salt", iterations=4096)
    assert repr(credential) == str(credential) == "ScramCredential(iterations=4096)"


def test_decoys_look_like_credentials_and_stay_the_same() -> None:
    decoys = Decoys(b"key")
    for mechanism in MECHANISMS:
        decoy = decoys.credential(mechanism, "nobody")
        real = derive_credential(mechanism, "x", salt=random_text(random.Random(1)).encode(), iterations=4096)
        assert decoy == Decoys(b"key").credential(mechanism, "nobody")
        assert len(decoy.stored_key) == len(real.stored_key)
        assert len(decoy.server_key) == len(real.server_key)
        assert decoy.iterations == ITERATIONS_MIN
        assert re.fullmatch(rb"[0-9a-z]{20,26}", decoy.salt)
        assert decoy != decoys.credential(mechanism, "somebody")
        assert decoy.salt != Decoys(b"other").credential(mechanism, "nobody").salt
    first, second = (decoys.credential(mechanism, "nobody").salt for mechanism in MECHANISMS)
    assert first != second
    assert "key" not in repr(decoys)


def test_random_texts_differ_and_fit_into_a_message() -> None:
    chance = random.Random(7)
    texts = [random_text(chance) for _ in range(200)]
    assert len(set(texts)) == len(texts)
    assert all(re.fullmatch("[0-9a-z]{1,26}", text) for text in texts)
    assert [int(text, 36) for text in texts[:2]] == [random.Random(7).getrandbits(130), int(texts[1], 36)]


class _Zero:
    def getrandbits(self, k: int, /) -> int:
        assert k == 130
        return 0


def test_even_the_least_likely_text_is_not_empty() -> None:
    assert random_text(_Zero()) == "0"
