"""Who has which roles: a table changed step by step is the table made at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.security.acls.roles import MEMBERS_MAX, NO_ROLES, InvalidRole, Role, RoleTable, check_role
from millrace.security.principals import user

MEMBERS = ["User:a", "User:b", "Group:x", "Group:y"]
NAMES = ["reader", "writer", "operator"]
changes = st.dictionaries(
    st.sampled_from(NAMES),
    st.none() | st.lists(st.sampled_from(MEMBERS), unique=True, max_size=4).map(tuple),
    max_size=3,
)


@given(st.lists(changes, max_size=8))
def test_a_table_changed_step_by_step_is_the_one_made_at_once(
    steps: list[dict[str, tuple[str, ...] | None]],
) -> None:
    table, model = NO_ROLES, dict[str, Role]()
    for step in steps:
        roles = {name: None if members is None else Role(name, members) for name, members in step.items()}
        table = table.updated(roles)
        model = {name: role for name, role in {**model, **roles}.items() if role is not None}
    assert dict(table.roles) == model
    assert len(table) == len(model)
    fresh = RoleTable(model.values())
    assert table == fresh
    assert table != "something else"
    for member in MEMBERS:
        expected = tuple(sorted(role.name for role in model.values() if member in role.members))
        assert table.roles_of(member) == fresh.roles_of(member) == expected


def test_somebody_counts_as_their_groups_and_the_roles_of_both() -> None:
    table = RoleTable(
        [Role("reader", ("User:a",)), Role("writer", ("Group:x", "User:b")), Role("other", ("User:b",))]
    )
    assert table.principals(user("a"), ["x"]) == (
        "User:a",
        "User:*",
        "Group:x",
        "Role:reader",
        "Role:writer",
    )
    assert table.principals(user("c")) == ("User:c", "User:*")
    assert Role("reader", ()).principal == "Role:reader"


@pytest.mark.parametrize(
    "role,words",
    [
        (Role("", ()), "1 to 249 characters"),
        (Role("r" * 250, ()), "1 to 249 characters"),
        (Role("r", ("alice",)), "principalType:principalName"),
        (Role("r", ("Role:other",)), "a User or a Group"),
        (Role("r", ("User:*",)), "names nobody"),
        (Role("r", ("Group:",)), "names nobody"),
        (Role("r", tuple(f"User:{number}" for number in range(MEMBERS_MAX + 1))), "members"),
    ],
)
def test_what_cannot_be_a_role_is_refused(role: Role, words: str) -> None:
    with pytest.raises(InvalidRole, match=words):
        check_role(role)


def test_a_role_may_be_empty() -> None:
    check_role(Role("reader", ()))
    check_role(Role("reader", ("User:a", "Group:x")))
