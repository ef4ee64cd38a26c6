"""The names by which roles and tenants are reached over the wire."""

from __future__ import annotations

from millrace.security.config_resources import LIMITS, joined, split
from millrace.security.tenants import TenantLimits


def test_every_limit_of_a_tenant_has_a_setting() -> None:
    assert tuple(LIMITS.values()) == TenantLimits._fields


def test_lists_keep_names_of_certificates_whole() -> None:
    members = ("User:CN=alice,OU=ops", r"User:CN=a\;b,O=c", "Group:x")
    assert split(joined(members)) == members


def test_a_list_holds_each_principal_once_and_no_empty_one() -> None:
    assert split(" User:a ;;User:b; User:a;") == ("User:a", "User:b")
    assert split("") == ()
