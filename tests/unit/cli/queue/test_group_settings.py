"""What is set on a group itself, and how it is changed."""

from __future__ import annotations

from typing import cast

import pytest

from millrace.cli.clients import RequestFailed
from millrace.cli.queue import group_settings
from millrace.client.broker_client import BrokerClient
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages import describe_configs as described
from millrace.wire.messages import incremental_alter_configs as altered
from tests.unit.cli.queue.fakes import Cluster


def test_only_what_is_set_on_the_group_is_told() -> None:
    cluster = Cluster()
    entry = described.DescribeConfigsResourceResult
    result = described.DescribeConfigsResult(
        configs=[
            entry(name="share.delivery.pause", value="true", config_source=8),
            entry(name="share.record.lock.duration.ms", value="30000", config_source=5),
            entry(name="errors.deadletterqueue.topic.name", value=None, config_source=8),
        ]
    )
    cluster.answers[ApiKey.DESCRIBE_CONFIGS] = lambda _: described.DescribeConfigsResponse(results=[result])
    client = cast("BrokerClient", cluster)
    assert group_settings.settings_of(client, "g") == {
        "errors.deadletterqueue.topic.name": "",
        "share.delivery.pause": "true",
    }
    (asked,) = cluster.asked
    assert (asked.resources[0].resource_type, asked.resources[0].resource_name) == (32, "g")
    result.error_code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    with pytest.raises(RequestFailed, match="GROUP_AUTHORIZATION_FAILED"):
        group_settings.settings_of(client, "g")


def test_settings_are_set_and_given_back_their_defaults() -> None:
    cluster = Cluster()
    told = altered.AlterConfigsResourceResponse(error_message="no")
    cluster.answers[ApiKey.INCREMENTAL_ALTER_CONFIGS] = lambda _: altered.IncrementalAlterConfigsResponse(
        responses=[told]
    )
    client = cast("BrokerClient", cluster)
    group_settings.change(client, "g", {"a": "1", "b": None})
    (asked,) = cluster.asked
    assert [(each.name, each.config_operation, each.value) for each in asked.resources[0].configs] == [
        ("a", 0, "1"),
        ("b", 1, None),
    ]
    told.error_code = ErrorCode.INVALID_CONFIG
    with pytest.raises(RequestFailed, match="g: no"):
        group_settings.change(client, "g", {"a": "x"})
