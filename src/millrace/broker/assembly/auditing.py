"""The audit, with the places where it is written."""

from __future__ import annotations

import asyncio
from importlib.metadata import version

from millrace.broker.assembly import part_settings
from millrace.broker.assembly.ground import Ground
from millrace.broker.auditing.audit_file import AuditFile
from millrace.broker.auditing.audit_topic import AuditTopic
from millrace.broker.auditing.auditing import Auditing
from millrace.broker.auditing.writing import OutboxWriter
from millrace.broker.handlers.services import Services
from millrace.metadata.errors import InvalidConfig
from millrace.security.audit.auditor import Auditor
from millrace.security.audit.ocsf import Reporter
from millrace.security.audit.outbox import Outbox


def build_auditing(ground: Ground, services: Services) -> Auditing | None:
    """The audit that the settings ask for; None if they ask for none."""
    config, surroundings = ground.config.now, ground.surroundings
    if not part_settings.is_audited(config):
        return None
    release = version("millrace")
    events_max = part_settings.audit_events_max(config)
    writers = []
    plan, file = part_settings.audit_topic(config), part_settings.audit_file(config)
    if file is not None:
        lane = None if surroundings.lanes is None else surroundings.lanes.audit
        writers.append(OutboxWriter(Outbox("file", events_max), AuditFile(file, lane).write))
    if plan is not None:
        topic = AuditTopic(
            services.metadata,
            services.partitions,
            plan,
            clock=surroundings.clock,
            node_id=config.node_id,
            reporter=lambda: Reporter(release, services.metadata.image.cluster_id, config.node_id),
        )
        topic.topic.start(ground.background)
        writers.append(OutboxWriter(Outbox("topic", events_max), topic.write))
    if not writers:
        raise InvalidConfig(
            "audit.enable", "true", "it needs a place: audit.topic.enable=true, or a path as audit.log.file"
        )
    auditor = Auditor(
        part_settings.audit_policy(config),
        [writer.outbox for writer in writers],
        clock=surroundings.clock,
        loop_time=asyncio.get_running_loop().time,
        run_id=surroundings.ids.topic_id().hex(),
    )
    return Auditing(auditor, writers, services.access, broker=f"broker {config.node_id}")
