"""The part of the image is a value: equal by what it holds, whenever it came about."""

from __future__ import annotations

from dataclasses import replace

from millrace.metadata.security.image import EMPTY_SECURITY
from millrace.security.acls.binding import Operation, ResourceType
from millrace.security.acls.index import AclIndex
from millrace.security.principals import user
from tests.unit.security.acls.models import acl


def test_images_with_the_same_content_are_equal_whenever_it_changed() -> None:
    one = replace(EMPTY_SECURITY, acls=AclIndex([acl("a")]), access_revision=3)
    assert one == replace(one, acls=AclIndex([acl("a")]), access_revision=9)
    assert one != EMPTY_SECURITY


def test_the_authorizer_of_an_image_knows_all_that_decides() -> None:
    image = replace(
        EMPTY_SECURITY, acls=AclIndex([acl("a")]), tenant_acls=AclIndex([acl("b")]), access_revision=3
    )
    rules = image.authorizer(super_users=frozenset({"User:boss"}), is_open_without_acl=True)

    def may(who: str, name: str) -> bool:
        return rules.allows(rules.subject(user(who), "h"), Operation.READ, ResourceType.TOPIC, name)

    assert rules.revision == 3
    assert may("me", "a")
    assert may("me", "b")
    assert not may("you", "a")
    assert may("you", "c")
    assert may("boss", "a")
