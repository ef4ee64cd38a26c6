"""Which quotas are described: by name, the default, any, and strictly these parts."""

from __future__ import annotations

import pytest

from millrace.core.errors import MillraceError
from millrace.security.quotas.describe import Component, matching_quotas
from millrace.security.quotas.entities import InvalidQuota, QuotaEntity, UnsupportedQuotaEntity, entity
from millrace.security.quotas.precedence import QuotaTable

EXACT, DEFAULT, ANY = 0, 1, 2
ENTITIES = {
    "pair": entity(user="me", client_id="c"),
    "user": entity(user="me"),
    "default user": entity(user=None),
    "client": entity(client_id="c"),
    "ip": entity(ip="::1"),
    "tenant": entity(tenant="t"),
}
TABLE = QuotaTable([(whom, {"k": 1.0}) for whom in ENTITIES.values()])


def found(*components: Component, is_strict: bool = False) -> list[str]:
    names: dict[QuotaEntity, str] = {whom: name for name, whom in ENTITIES.items()}
    return sorted(names[whom] for whom, _ in matching_quotas(TABLE, components, is_strict=is_strict))


def test_parts_match_by_name_by_default_and_by_being_there() -> None:
    assert found(Component("user", EXACT, "me")) == ["pair", "user"]
    assert found(Component("user", DEFAULT, None)) == ["default user"]
    assert found(Component("user", ANY, None)) == ["default user", "pair", "user"]
    assert found(Component("user", ANY, None), Component("client-id", EXACT, "c")) == ["pair"]
    assert found(Component("tenant", ANY, None)) == ["tenant"]


def test_strict_refuses_parts_that_were_not_asked_for() -> None:
    assert found(Component("user", EXACT, "me"), is_strict=True) == ["user"]
    assert found(Component("user", ANY, None), Component("client-id", ANY, None), is_strict=True) == ["pair"]


def test_without_parts_everything_is_found_or_strictly_nothing() -> None:
    # Tools made for Kafka do not know tenants: they are shown to those who ask for the type.
    assert found() == sorted({*ENTITIES} - {"tenant"})
    assert found(is_strict=True) == []


@pytest.mark.parametrize(
    "components,kind,words",
    [
        ([Component("", ANY, None)], InvalidQuota, "Invalid empty entity type"),
        ([Component("user", ANY, None)] * 2, InvalidQuota, "more than once"),
        ([Component("team", ANY, None)], UnsupportedQuotaEntity, "Unsupported entity type team"),
        ([Component("user", EXACT, None)], InvalidQuota, "set match string to null"),
        ([Component("user", DEFAULT, "x")], InvalidQuota, "MATCH_TYPE_DEFAULT"),
        ([Component("user", ANY, "x")], InvalidQuota, "MATCH_TYPE_SPECIFIED"),
        ([Component("user", 7, None)], InvalidQuota, "Unknown match type 7"),
        ([Component("ip", ANY, None), Component("user", ANY, None)], InvalidQuota, "should not be used with"),
    ],
)
def test_questions_that_make_no_sense_are_refused(
    components: list[Component], kind: type[MillraceError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        matching_quotas(TABLE, components, is_strict=False)
