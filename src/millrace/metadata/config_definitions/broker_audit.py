"""The broker-level settings of the audit. They are read-only: whoever administers the cluster over the wire
is to be told of, and cannot end that over the wire."""

from __future__ import annotations

from typing import Final

from millrace.metadata.config_definitions.model import (
    Check,
    ConfigType,
    ListOf,
    OneOf,
    Range,
    Setting,
    Value,
)
from millrace.security.audit.events import DEFAULT_KINDS, Kind

AUDIT_KINDS: Final = tuple(kind.value for kind in Kind)


def _are_principals(value: Value) -> bool:
    assert isinstance(value, str), value
    return all(":" in one for one in value.split(";") if one.strip())


AUDIT_SETTINGS: Final = (
    Setting(
        name="audit.enable",
        type=ConfigType.BOOLEAN,
        default=False,
        doc="Whether the broker tells who did what to what, from where, and with which result.",
    ),
    Setting(
        name="audit.topic.enable",
        type=ConfigType.BOOLEAN,
        default=True,
        doc="Whether the audit goes into the topic __audit, as JSON of OCSF. Clients cannot write there; who "
        "may read it, permissions say.",
    ),
    Setting(
        name="audit.topic.retention.ms",
        type=ConfigType.LONG,
        default=604_800_000,
        doc="For how long the topic __audit keeps events. It counts when the topic is created.",
        valid=Range(1, also=(-1,)),
    ),
    Setting(
        name="audit.topic.replication.factor",
        type=ConfigType.SHORT,
        default=3,
        doc="The number of replicas of __audit, or of brokers if there are fewer when it is created.",
        valid=Range(1, 2**15 - 1),
    ),
    Setting(
        name="audit.log.file",
        type=ConfigType.STRING,
        default="",
        doc="A file for the audit, with lines as Kafka's authorizer logs them; empty for none.",
    ),
    Setting(
        name="audit.log.file.bytes.max",
        type=ConfigType.LONG,
        default=104_857_600,
        doc="A file of the audit that has grown to so many bytes is set aside, with a number behind its "
        "name.",
        valid=Range(4_096),
    ),
    Setting(
        name="audit.log.file.count",
        type=ConfigType.INT,
        default=10,
        doc="How many files of the audit are kept, with the one that is being written. The oldest goes.",
        valid=Range(1, 1_000),
    ),
    Setting(
        name="audit.event.types",
        type=ConfigType.LIST,
        default=tuple(kind.value for kind in DEFAULT_KINDS),
        doc="What is told: login, admin (changes of topics, settings, permissions, users), denied (whatever "
        "was refused), data (reads and writes, folded), describe (looks at what there is), lifecycle "
        "(brokers that start and stop).",
        valid=ListOf(AUDIT_KINDS),
    ),
    Setting(
        name="audit.excluded.principals",
        type=ConfigType.STRING,
        default="",
        doc="Whose logins, reads, writes and looks are not told: principals such as User:app, separated by "
        "semicolons. What they administer and what they are refused is told all the same.",
        valid=Check(_are_principals, "principals as Type:name, separated by semicolons"),
    ),
    Setting(
        name="audit.excluded.topics",
        type=ConfigType.LIST,
        default=(),
        doc="Topics of which reads, writes and looks are not told. Refusals are.",
    ),
    Setting(
        name="audit.failure",
        type=ConfigType.STRING,
        default="open",
        doc="What happens while the audit cannot be written, because its file or topic refuses: open goes "
        "on, and counts what is lost; closed refuses logins and administrative requests until it can be "
        "written.",
        valid=OneOf(("open", "closed")),
    ),
    Setting(
        name="audit.queue.max.events",
        type=ConfigType.INT,
        default=10_000,
        doc="How many events may wait to be written, for the file and for the topic each.",
        valid=Range(1),
    ),
)
