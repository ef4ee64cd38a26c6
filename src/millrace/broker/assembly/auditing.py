"""The audit, with the places where it is written."""

from __future__ import annotations

import asyncio
from importlib.metadata import version

from millrace.broker.assembly import part_settings
from millrace.broker.assembly.ground import Ground
from millrace.broker.assembly.logins import Logins
from millrace.broker.auditing.audit_file import AuditFile
from millrace.broker.auditing.audit_topic import AuditTopic
from millrace.broker.auditing.auditing import Auditing
from millrace.broker.auditing.writing import OutboxWriter
from millrace.broker.handlers.services import Services
from millrace.broker.network.connection import Connection
from millrace.broker.network.login import ListenerLogins
from millrace.metadata.errors import InvalidConfig
from millrace.security.acls.decisions import Access
from millrace.security.audit.auditor import Auditor
from millrace.security.audit.ocsf import Reporter
from millrace.security.audit.outbox import Outbox
from millrace.security.principals import Identity


def build_auditing(ground: Ground, services: Services, logins: Logins) -> Auditing | None:
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
    for listener in config.listeners:
        if listener.name in logins.by_listener:
            is_encrypted = listener.security_protocol.endswith("SSL")
            _follow_logins(
                auditor, services.access, logins.by_listener[listener.name], is_encrypted=is_encrypted
            )
    return Auditing(auditor, writers, services.access, broker=f"broker {config.node_id}")


def _follow_logins(auditor: Auditor, access: Access, logins: ListenerLogins, *, is_encrypted: bool) -> None:
    """Tell of all logins of a listener, and refuse them while the audit is closed."""

    def told(connection: Connection, mechanism: str, identity: Identity | None, reason: str) -> None:
        host = connection.endpoint.peer_host
        if identity is not None:
            auditor.logged_in(identity, host=host, listener=logins.listener, is_encrypted=is_encrypted)
            return
        auditor.login_failed(
            "" if connection.login is None else connection.login.session.claimed,
            mechanism=mechanism,
            host=host,
            listener=logins.listener,
            is_encrypted=is_encrypted,
            reason=reason,
        )

    def refuses(identity: Identity) -> str | None:
        refusal = auditor.refusal()
        if refusal is None or access.is_super(identity):
            # Brokers are super users: without them nothing could be mended, nor the audit be written.
            return None
        auditor.count_refused()
        return str(refusal)

    logins.told = told
    logins.refuses = refuses
