"""The broker-level settings of security: who may do what."""

from __future__ import annotations

from typing import Final

from millrace.metadata.config_definitions.model import (
    Check,
    ConfigType,
    Importance,
    OneOf,
    Setting,
    Value,
)

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def _are_principals(value: Value) -> bool:
    assert isinstance(value, str), value
    principals = [item.strip() for item in value.split(";") if item.strip()]
    return all(kind and name for kind, _, name in (one.partition(":") for one in principals))


SECURITY_SETTINGS: Final = (
    Setting(
        name="authorizer.class.name",
        type=ConfigType.STRING,
        default="",
        doc="Whether permissions are checked: the name of Kafka's authorizer turns them on, empty lets "
        "everybody do everything. The permissions are in the cluster's metadata.",
        valid=OneOf(("", STANDARD_AUTHORIZER)),
    ),
    Setting(
        name="super.users",
        type=ConfigType.STRING,
        default="",
        doc="Who may do everything, whatever the permissions say: principals such as User:admin, separated "
        "by semicolons.",
        valid=Check(_are_principals, "principals as Type:name, separated by semicolons"),
    ),
    Setting(
        name="allow.everyone.if.no.acl.found",
        type=ConfigType.BOOLEAN,
        default=False,
        doc="Whether everybody may use what no permission names at all. A single permission, for whomever, "
        "closes it to all others.",
        importance=Importance.LOW,
    ),
)
