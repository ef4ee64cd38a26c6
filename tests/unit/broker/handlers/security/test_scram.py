"""Users with passwords over the wire: what is told of them, and each refusal with its code and words."""

from __future__ import annotations

from millrace.security.acls.binding import Operation
from millrace.security.credentials.scram import ScramMechanism, is_password, salted_password
from millrace.security.principals import Identity
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from millrace.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from tests.unit.broker.handlers.broker import Broker
from tests.unit.broker.handlers.security.people import ALICE, ROOT, on_cluster

SALT = b"salt"
Described = dict[str, tuple[int, str | None, list[tuple[int, int]]]]


def upsertion(user: str, *, mechanism: int = 1, iterations: int = 4096) -> ScramCredentialUpsertion:
    salted = salted_password(ScramMechanism.SHA_256, "secret", SALT, iterations)
    return ScramCredentialUpsertion(
        name=user, mechanism=mechanism, iterations=iterations, salt=SALT, salted_password=salted
    )


def alter(
    broker: Broker,
    *wishes: ScramCredentialUpsertion | ScramCredentialDeletion,
    who: Identity = ROOT,
) -> dict[str, tuple[int, str | None]]:
    request = AlterUserScramCredentialsRequest(
        deletions=[wish for wish in wishes if isinstance(wish, ScramCredentialDeletion)],
        upsertions=[wish for wish in wishes if isinstance(wish, ScramCredentialUpsertion)],
    )
    results = broker.ask(request, 0, identity=who).results
    return {result.user: (result.error_code, result.error_message) for result in results}


def describe(broker: Broker, users: list[str] | None = None) -> Described:
    names = None if users is None else [UserName(name=user) for user in users]
    response = broker.ask(DescribeUserScramCredentialsRequest(users=names), 0, identity=ROOT)
    assert response.error_code == ErrorCode.NONE
    return {
        result.user: (
            result.error_code,
            result.error_message,
            [(info.mechanism, info.iterations) for info in result.credential_infos],
        )
        for result in response.results
    }


def test_passwords_are_set_shown_by_mechanism_and_removed(guarded: Broker) -> None:
    assert alter(guarded, upsertion("alice"), upsertion("bob", mechanism=2, iterations=8192)) == {
        "alice": (0, None),
        "bob": (0, None),
    }
    assert alter(guarded, upsertion("alice", mechanism=2)) == {"alice": (0, None)}
    alices = (0, "", [(1, 4096), (2, 4096)])
    assert describe(guarded) == {"alice": alices, "bob": (0, "", [(2, 8192)])}
    assert describe(guarded, []) == describe(guarded)
    assert describe(guarded, ["alice"]) == {"alice": alices}
    stored = guarded.metadata.image.security.credentials["alice"]["SCRAM-SHA-256"]
    assert is_password(ScramMechanism.SHA_256, stored, "secret")
    assert alter(guarded, ScramCredentialDeletion(name="alice", mechanism=1)) == {"alice": (0, None)}
    assert describe(guarded, ["alice"]) == {"alice": (0, "", [(2, 4096)])}


def test_users_that_are_not_there_or_named_twice_cannot_be_described(guarded: Broker) -> None:
    alter(guarded, upsertion("alice"))
    found = describe(guarded, ["alice", "alice", "carol"])
    assert {user: code for user, (code, _, _) in found.items()} == {
        "alice": ErrorCode.DUPLICATE_RESOURCE,
        "carol": ErrorCode.RESOURCE_NOT_FOUND,
    }
    assert found["carol"][1] == "Attempt to describe a user credential that does not exist: carol"


def test_each_user_has_an_outcome_of_their_own(guarded: Broker) -> None:
    outcomes = alter(
        guarded,
        upsertion("good"),
        upsertion(""),
        upsertion("few", iterations=4095),
        upsertion("many", iterations=16385),
        upsertion("unknown", mechanism=3),
        upsertion("twice"),
        upsertion("twice", mechanism=2),
        ScramCredentialDeletion(name="missing", mechanism=1),
    )
    assert {user: code for user, (code, _) in outcomes.items()} == {
        "good": ErrorCode.NONE,
        "": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "few": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "many": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "unknown": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        "twice": ErrorCode.DUPLICATE_RESOURCE,
        "missing": ErrorCode.RESOURCE_NOT_FOUND,
    }
    assert outcomes["few"][1] == "Too few iterations"
    assert list(describe(guarded)) == ["good"]


def test_a_deletion_of_one_mechanism_fails_if_only_the_other_is_there(guarded: Broker) -> None:
    alter(guarded, upsertion("alice"))
    outcomes = alter(guarded, ScramCredentialDeletion(name="alice", mechanism=2))
    assert outcomes["alice"][0] == ErrorCode.RESOURCE_NOT_FOUND


def test_who_may_not_learns_and_changes_nothing(guarded: Broker) -> None:
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    outcomes = alter(guarded, upsertion("b"), upsertion("a"), who=ALICE)
    assert outcomes == {"a": (refused, refused.message), "b": (refused, refused.message)}
    assert list(outcomes) == ["a", "b"]
    request = DescribeUserScramCredentialsRequest(users=[UserName(name="alice")])
    response = guarded.ask(request, 0, identity=ALICE)
    assert (response.error_code, response.error_message) == (refused, refused.message)
    assert [(each.user, each.error_code) for each in response.results] == [("", refused)]
    everybody = guarded.ask(DescribeUserScramCredentialsRequest(users=None), 0, identity=ALICE)
    assert (everybody.error_code, everybody.results) == (refused, [])
    guarded.allow(on_cluster(Operation.ALTER))
    assert alter(guarded, upsertion("a"), who=ALICE) == {"a": (0, None)}
