"""The rules for changing settings of topics and brokers on a running cluster. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millrace.metadata.commands import (
    Alteration,
    AlterOperation,
    BrokerResource,
    ConfigResource,
    GroupResource,
    TopicResource,
)
from millrace.metadata.config_definitions import (
    BROKER_SETTINGS,
    GROUP_OWN_SETTINGS,
    TOPIC_SETTINGS,
    BrokerLayers,
    ConfigType,
    Setting,
    UpdateMode,
    Value,
    broker_setting,
    broker_value,
    check_group_configs,
    check_topic_configs,
    group_value,
    refusal,
    split_list,
    topic_value,
    unknown_setting,
)
from millrace.metadata.errors import ContradictoryRequest, InvalidConfig, SettingNotDynamic, UnknownTopic
from millrace.metadata.image import Image


def altered_configs(
    image: Image, resource: ConfigResource, alterations: Sequence[Alteration], layers: BrokerLayers
) -> dict[str, str]:
    """Everything that is set for the resource after the alterations, or an error."""
    configs = dict(_present(image, resource))
    seen: dict[str, None] = {}
    for name, operation, value in alterations:
        if name in seen:
            raise ContradictoryRequest(f"the setting {name} is altered twice in one request")
        seen[name] = None
        if operation is AlterOperation.DELETE and _means_nothing(name):
            # Kafka's tools clear such settings without asking whether they are set, or can be.
            configs.pop(name, None)
            continue
        setting = _setting(resource, name)
        if operation is AlterOperation.DELETE:
            configs.pop(name, None)
            continue
        if value is None:
            raise ContradictoryRequest(f"the setting {name} is to be set, but without a value")
        if operation is not AlterOperation.SET:
            value = _changed_list(setting, operation, value, _effective(setting, resource, configs, layers))
        configs[name] = value
    _check(resource, configs, layers)
    return configs


def _means_nothing(name: str) -> bool:
    setting = broker_setting(name)
    return refusal(name) is not None if setting is None else bool(setting.without_effect)


def replaced_configs(
    image: Image, resource: ConfigResource, configs: Mapping[str, str], layers: BrokerLayers
) -> dict[str, str]:
    """Exactly these settings, checked."""
    _present(image, resource)
    for name in configs:
        _setting(resource, name)
    _check(resource, configs, layers)
    return dict(configs)


def _present(image: Image, resource: ConfigResource) -> Mapping[str, str]:
    match resource:
        case TopicResource(name):
            topic = image.topics.get(name)
            if topic is None:
                raise UnknownTopic(name)
            return topic.configs
        case BrokerResource(None):
            return image.default_broker_config
        case BrokerResource(node_id):
            assert node_id is not None
            return image.broker_configs.get(node_id, {})
        case GroupResource(group_id):
            if not group_id:
                raise ContradictoryRequest("a group's id cannot be empty")
            return image.group_configs.get(group_id, {})


def _setting(resource: ConfigResource, name: str) -> Setting:
    match resource:
        case TopicResource():
            setting = TOPIC_SETTINGS.get(name)
            if setting is None:
                raise unknown_setting(name, TOPIC_SETTINGS, "topic")
            return setting
        case BrokerResource(node_id):
            setting = broker_setting(name)
            if setting is None:
                raise unknown_setting(name, BROKER_SETTINGS, "broker")
            if setting.update is UpdateMode.READ_ONLY:
                raise SettingNotDynamic(
                    name, "a running broker cannot change it; set it in its file and restart"
                )
            if setting.update is UpdateMode.PER_BROKER and node_id is None:
                raise SettingNotDynamic(name, "it can be changed for one broker only, not for all at once")
            return setting
        case GroupResource():
            setting = GROUP_OWN_SETTINGS.get(name)
            if setting is None:
                raise unknown_setting(name, GROUP_OWN_SETTINGS, "group")
            return setting


def _check(resource: ConfigResource, configs: Mapping[str, str], layers: BrokerLayers) -> None:
    match resource:
        case TopicResource():
            check_topic_configs(configs)
        case BrokerResource():
            for name, text in configs.items():
                setting = broker_setting(name)
                assert setting is not None, name
                setting.parse(text)
        case GroupResource():
            check_group_configs(configs, layers)


def _effective(
    setting: Setting, resource: ConfigResource, configs: Mapping[str, str], layers: BrokerLayers
) -> Value:
    if setting.name in configs:
        return setting.parse(configs[setting.name])
    match resource:
        case TopicResource():
            return topic_value(setting.name, configs, layers)
        case BrokerResource():
            return broker_value(setting.name, layers) if setting.name in BROKER_SETTINGS else None
        case GroupResource():
            return group_value(setting.name, configs, layers)


def _changed_list(setting: Setting, operation: AlterOperation, text: str, present: Value) -> str:
    if setting.type is not ConfigType.LIST:
        raise InvalidConfig(
            setting.name, text, f"{operation.name} works on lists only, this is a {setting.type.name.lower()}"
        )
    assert present is None or isinstance(present, tuple), present
    items = dict.fromkeys(present or ())
    for item in split_list(text):
        if operation is AlterOperation.APPEND:
            items[item] = None
        else:
            items.pop(item, None)
    return ",".join(items)
