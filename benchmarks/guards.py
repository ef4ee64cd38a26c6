"""What permissions and quotas cost: brokers that check them beside brokers that do not.

Nobody is refused and nobody is slowed: what is measured is the looking.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import Final

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

ACLS: Final = "acls"
QUOTAS: Final = "quotas"
GUARDS: Final = (ACLS, QUOTAS)
ACLS_COUNT: Final = 10_000
ACLS_PER_REQUEST: Final = 1_000
TIMEOUT_S: Final = 60.0
EVERYBODY: Final = "User:ANONYMOUS"
"""Who clients of a plain listener are."""
AUTHORIZER: Final = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
QUOTA_ARGUMENTS: Final = (
    ("--default-user", "producer_byte_rate=1000000000000", "consumer_byte_rate=1000000000000"),
    ("--default-user", "request_percentage=1000000"),
)
"""More than anybody takes."""


@dataclass(frozen=True, slots=True)
class Guard:
    """One of GUARDS, with the command of the Millrace that it is set by."""

    name: str
    command: tuple[str, ...]

    @property
    def settings(self) -> tuple[str, ...]:
        """While it is measured."""
        return (AUTHORIZER,) if self.name == ACLS else ()

    @property
    def first_settings(self) -> tuple[str, ...]:
        """While it is set: somebody must be allowed to give permissions."""
        return (*self.settings, f"super.users={EVERYBODY}") if self.name == ACLS else ()

    def apply(self, bootstrap: str) -> None:
        """Set permissions or quotas on a broker that runs with the first settings."""
        if self.name == ACLS:
            _create_acls(bootstrap)
        else:
            for arguments in QUOTA_ARGUMENTS:
                subprocess.run(
                    [*self.command, "quota", "set", "-b", bootstrap, *arguments],
                    capture_output=True,
                    timeout=TIMEOUT_S,
                    check=True,
                )


def acls(count: int = ACLS_COUNT) -> list[AclBinding]:
    """So many permissions: what the benchmark needs, by a literal `*` and by prefixes, and for the rest those
    of others on other names."""
    found = [
        _allow(ResourceType.TOPIC, "bench", ResourcePatternType.PREFIXED, EVERYBODY),
        _allow(ResourceType.GROUP, "*", ResourcePatternType.LITERAL, EVERYBODY),
        _allow(ResourceType.TRANSACTIONAL_ID, "*", ResourcePatternType.LITERAL, EVERYBODY),
        _allow(ResourceType.BROKER, "kafka-cluster", ResourcePatternType.LITERAL, EVERYBODY),
    ]
    for number in range(count - len(found)):
        pattern = ResourcePatternType.PREFIXED if number % 4 == 0 else ResourcePatternType.LITERAL
        found.append(_allow(ResourceType.TOPIC, f"team-{number}", pattern, f"User:user-{number % 500}"))
    return found


def _create_acls(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 4})
    wanted = acls()
    for start in range(0, len(wanted), ACLS_PER_REQUEST):
        made = admin.create_acls(wanted[start : start + ACLS_PER_REQUEST], request_timeout=TIMEOUT_S)
        for each in made.values():
            each.result(TIMEOUT_S)


def _allow(
    resource_type: ResourceType, name: str, pattern: ResourcePatternType, principal: str
) -> AclBinding:
    return AclBinding(resource_type, name, pattern, principal, "*", AclOperation.ALL, AclPermissionType.ALLOW)
