"""The one table of all settings. Documentation, DescribeConfigs, loading and validation all come from it."""

from __future__ import annotations

from typing import Final

from millrace.metadata.config_definitions.broker_log import LOG_SETTINGS
from millrace.metadata.config_definitions.broker_server import SERVER_SETTINGS
from millrace.metadata.config_definitions.listener_settings import broker_setting, split_name
from millrace.metadata.config_definitions.model import (
    ConfigSource,
    ConfigType,
    Importance,
    Setting,
    Synonym,
    UpdateMode,
    Value,
    format_value,
    split_list,
    unknown_name,
)
from millrace.metadata.config_definitions.refused import refusal, unknown_setting
from millrace.metadata.config_definitions.resolution import (
    BrokerLayers,
    ConfigEntry,
    ConfigSynonym,
    TopicSettings,
    broker_value,
    check_group_configs,
    check_topic_configs,
    describe_broker,
    describe_group,
    describe_topic,
    group_value,
    listener_value,
    to_log_config,
    topic_settings,
    topic_value,
)
from millrace.metadata.config_definitions.tables import (
    BROKER_SETTINGS,
    GROUP_OWN_SETTINGS,
    TOPIC_SETTINGS,
)

__all__: Final = [
    "BROKER_SETTINGS",
    "GROUP_OWN_SETTINGS",
    "LOG_SETTINGS",
    "SERVER_SETTINGS",
    "TOPIC_SETTINGS",
    "BrokerLayers",
    "ConfigEntry",
    "ConfigSource",
    "ConfigSynonym",
    "ConfigType",
    "Importance",
    "Setting",
    "Synonym",
    "TopicSettings",
    "UpdateMode",
    "Value",
    "broker_setting",
    "broker_value",
    "check_group_configs",
    "check_topic_configs",
    "describe_broker",
    "describe_group",
    "describe_topic",
    "format_value",
    "group_value",
    "listener_value",
    "refusal",
    "split_list",
    "split_name",
    "to_log_config",
    "topic_settings",
    "topic_value",
    "unknown_name",
    "unknown_setting",
]
