"""The tables by name: settings that do something, and those of Kafka that are accepted without effect."""

from __future__ import annotations

from typing import Final

from millrace.metadata.config_definitions.broker_audit import AUDIT_SETTINGS
from millrace.metadata.config_definitions.broker_cluster import CLUSTER_SETTINGS
from millrace.metadata.config_definitions.broker_consumer_groups import (
    CONSUMER_GROUP_SETTINGS,
    CONSUMER_OWN_SETTINGS,
)
from millrace.metadata.config_definitions.broker_delayed import DELAYED_SETTINGS
from millrace.metadata.config_definitions.broker_groups import GROUP_SETTINGS
from millrace.metadata.config_definitions.broker_log import LOG_SETTINGS
from millrace.metadata.config_definitions.broker_quotas import CONNECTION_SETTINGS, QUOTA_SETTINGS
from millrace.metadata.config_definitions.broker_replication import REPLICATION_SETTINGS
from millrace.metadata.config_definitions.broker_sasl import SASL_SETTINGS
from millrace.metadata.config_definitions.broker_security import SECURITY_SETTINGS
from millrace.metadata.config_definitions.broker_server import SERVER_SETTINGS
from millrace.metadata.config_definitions.broker_share_groups import (
    SHARE_GROUP_SETTINGS,
    SHARE_OWN_SETTINGS,
)
from millrace.metadata.config_definitions.broker_share_state import SHARE_STATE_SETTINGS
from millrace.metadata.config_definitions.broker_streams_groups import (
    STREAMS_GROUP_SETTINGS,
    STREAMS_OWN_SETTINGS,
)
from millrace.metadata.config_definitions.broker_transactions import TRANSACTION_SETTINGS
from millrace.metadata.config_definitions.model import Setting
from millrace.metadata.config_definitions.topic import OWN_TOPIC_SETTINGS
from millrace.metadata.config_definitions.without_effect import SERVER_WITHOUT_EFFECT
from millrace.metadata.config_definitions.without_effect_features import (
    FEATURES_WITHOUT_EFFECT,
    TOPICS_WITHOUT_EFFECT,
)

__all__: Final = ["BROKER_SETTINGS", "GROUP_OWN_SETTINGS", "TOPIC_SETTINGS"]

BROKER_SETTINGS: Final[dict[str, Setting]] = {
    setting.name: setting
    for setting in sorted(
        LOG_SETTINGS
        + SERVER_SETTINGS
        + SECURITY_SETTINGS
        + QUOTA_SETTINGS
        + CONNECTION_SETTINGS
        + SASL_SETTINGS
        + CLUSTER_SETTINGS
        + GROUP_SETTINGS
        + CONSUMER_GROUP_SETTINGS
        + SHARE_GROUP_SETTINGS
        + STREAMS_GROUP_SETTINGS
        + TRANSACTION_SETTINGS
        + SHARE_STATE_SETTINGS
        + DELAYED_SETTINGS
        + REPLICATION_SETTINGS
        + AUDIT_SETTINGS
        + SERVER_WITHOUT_EFFECT
        + FEATURES_WITHOUT_EFFECT,
        key=lambda setting: setting.name,
    )
}

GROUP_OWN_SETTINGS: Final[dict[str, Setting]] = {
    **CONSUMER_OWN_SETTINGS,
    **SHARE_OWN_SETTINGS,
    **STREAMS_OWN_SETTINGS,
}
"""What can be set for one group, whether it exists yet or not."""

TOPIC_SETTINGS: Final[dict[str, Setting]] = {
    **OWN_TOPIC_SETTINGS,
    **{setting.name: setting for setting in TOPICS_WITHOUT_EFFECT},
}
