"""Settings of share groups over the wire: what is set, and what is changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millrace.cli.broker_requests import raise_for
from millrace.client.broker_client import BrokerClient
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from millrace.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

PAUSE: Final = "share.delivery.pause"
DEAD_LETTER_TOPIC: Final = "errors.deadletterqueue.topic.name"
OFFSET_RESET: Final = "share.auto.offset.reset"

_GROUP_RESOURCE: Final = 32
_SET_ON_THE_GROUP: Final = 8
_SET: Final = 0
_DELETE: Final = 1
_DESCRIBE_VERSION: Final = 4
_ALTER_VERSION: Final = 1


def settings_of(client: BrokerClient, group: str) -> dict[str, str]:
    """What is set on the group itself; all else has its default."""
    resource = DescribeConfigsResource(
        resource_type=_GROUP_RESOURCE, resource_name=group, configuration_keys=None
    )
    request = DescribeConfigsRequest(resources=[resource])
    (told,) = client.request(ApiKey.DESCRIBE_CONFIGS, _DESCRIBE_VERSION, request).results
    raise_for(told.error_code, group, told.error_message)
    return {
        each.name: each.value or ""
        for each in sorted(told.configs, key=lambda each: str(each.name))
        if each.config_source == _SET_ON_THE_GROUP
    }


def change(client: BrokerClient, group: str, changes: Mapping[str, str | None]) -> None:
    """Set settings of the group, or with None give them back their defaults."""
    configs = [
        AlterableConfig(name=name, config_operation=_DELETE if value is None else _SET, value=value)
        for name, value in changes.items()
    ]
    resource = AlterConfigsResource(resource_type=_GROUP_RESOURCE, resource_name=group, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource])
    (told,) = client.request(ApiKey.INCREMENTAL_ALTER_CONFIGS, _ALTER_VERSION, request).responses
    raise_for(told.error_code, group, told.error_message)
