"""Guards hold nobody up who takes part in the benchmark, and are as many as is said."""

from __future__ import annotations

from benchmarks.guards import ACLS, ACLS_COUNT, EVERYBODY, QUOTAS, Guard, acls


def test_there_are_as_many_permissions_as_is_said_and_few_are_the_benchmarks_own() -> None:
    found = acls()
    assert len(found) == len(set(found)) == ACLS_COUNT
    own = [acl for acl in found if acl.principal == EVERYBODY]
    assert len(own) == 4


def test_nobody_is_a_super_user_while_it_is_measured() -> None:
    guard = Guard(ACLS, ("millrace",))
    assert not [setting for setting in guard.settings if setting.startswith("super.users")]
    assert set(guard.settings) < set(guard.first_settings)
    assert Guard(QUOTAS, ("millrace",)).settings == ()
