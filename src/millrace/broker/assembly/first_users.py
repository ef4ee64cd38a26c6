"""The users of a cluster that has none yet: without them nobody could log in to make any."""

from __future__ import annotations

import logging

from millrace.broker.assembly import part_settings
from millrace.broker.assembly.ground import Ground
from millrace.metadata.security.commands import AlterCredentials
from millrace.metadata.service import Metadata

log = logging.getLogger(__name__)


async def add_first_users(ground: Ground, metadata: Metadata) -> None:
    """Store the users of the file, if one is set and the cluster has no user at all.

    Whoever is deleted later stays away, as long as there is anybody else. Brokers that start together may all
    do this: they store the same."""
    users = part_settings.first_users(ground.config.now)
    if not users or len(metadata.image.security.credentials):
        return
    requests = [
        AlterCredentials(
            user=name,
            written={mechanism.label: credential for mechanism, credential in credentials.items()},
        )
        for name, credentials in users.items()
    ]
    for outcome in await metadata.security.alter_credentials(requests):
        if outcome is not None:
            raise outcome
    log.info("added the first users", extra={"users": ", ".join(users)})
