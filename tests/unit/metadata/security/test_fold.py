"""A change of security touches its own part of the image, and shares the rest."""

from __future__ import annotations

from millrace.metadata.fold import fold
from millrace.metadata.image import EMPTY
from millrace.metadata.security import records
from millrace.metadata.security.fold import fold_security
from millrace.metadata.security.image import EMPTY_SECURITY
from millrace.metadata.store import ChangeBatch, KeyChange
from millrace.security.acls.roles import Role
from tests.unit.security.acls.models import acl


def test_other_parts_of_the_image_stay_the_same_objects() -> None:
    change = KeyChange(records.acl_key(acl("a")), records.PERMISSION, 4)
    changed = fold(EMPTY, ChangeBatch(4, (change,)))
    assert set(changed.security.acls) == {acl("a")}
    assert changed.topology_revision == EMPTY.topology_revision, "clients ask for no metadata anew"
    assert changed.topics is EMPTY.topics
    assert changed.security.roles is EMPTY_SECURITY.roles
    assert changed.security.quotas is EMPTY_SECURITY.quotas
    again = fold(changed, ChangeBatch(5, ()))
    assert again.security is changed.security


def test_one_batch_may_set_and_remove() -> None:
    image = fold_security(EMPTY_SECURITY, [KeyChange(records.acl_key(acl("a")), b"{}", 1)], 1)
    image = fold_security(
        image,
        [
            KeyChange(records.acl_key(acl("a")), None, 2),
            KeyChange(records.acl_key(acl("b")), b"{}", 2),
            KeyChange(records.role_key("r"), records.encode_role(Role("r", ())), 2),
        ],
        2,
    )
    assert set(image.acls) == {acl("b")}
    assert dict(image.revisions) == {records.role_key("r"): 2}
