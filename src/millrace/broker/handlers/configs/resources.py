"""What can have settings, and ListConfigResources, which lists it."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

from millrace.broker.handlers.configs import security_resources
from millrace.broker.network.checks import on_cluster
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.core.ids import NodeId
from millrace.metadata.errors import ContradictoryRequest, UnknownTopic
from millrace.metadata.image import Image
from millrace.metadata.topic_names import AUDIT_TOPIC, check_topic_name
from millrace.security.acls.binding import Operation
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)


class ResourceType(enum.IntEnum):
    """The numbers are the protocol's. Client metrics have no settings here."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


def unknown_type(resource_type: int) -> ContradictoryRequest:
    return ContradictoryRequest(f"there are no settings of the resource type {resource_type} here")


def check_topic(image: Image, name: str) -> None:
    """Raise InvalidTopicName or UnknownTopic unless there is such a topic."""
    check_topic_name(name)
    if name not in image.topics:
        raise UnknownTopic(name)


def refusal_of(ctx: RequestContext, operation: Operation, resource_type: int, name: str) -> ErrorCode | None:
    """Why the client may not do this to what has settings; None if it may. Types that do not exist are left
    to others."""
    decisions = ctx.decisions
    match resource_type:
        case ResourceType.TOPIC if not decisions.allows_on_topic(operation, name):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        case ResourceType.TOPIC if (
            name == AUDIT_TOPIC
            and operation is Operation.ALTER_CONFIGS
            # Who may change the settings of all topics shall not, by the way, shorten what is told of them.
            and not decisions.allows_on_cluster(operation)
        ):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        case ResourceType.GROUP if not decisions.allows_on_group(operation, name):
            return ErrorCode.GROUP_AUTHORIZATION_FAILED
        case ResourceType.BROKER | ResourceType.BROKER_LOGGER | ResourceType.CLIENT_METRICS if (
            not decisions.allows_on_cluster(operation)
        ):
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        case _:
            return None


def this_broker(name: str, node_id: NodeId, *, or_all: bool) -> NodeId | None:
    """The broker that a resource's name means, None for all brokers. A broker answers for no other one."""
    if name == "" and or_all:
        return None
    if name != str(node_id):
        what = f"broker {node_id}" + (" or, without a name, all brokers" if or_all else "")
        raise ContradictoryRequest(f"this broker knows the settings of {what}, not of {name!r}")
    return node_id


def list_config_resources(
    ctx: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    wanted = request.resource_types or list(ResourceType)
    if ctx.api_version == 0:
        # This version was made for client metrics alone and has no field to say so.
        wanted = [ResourceType.CLIENT_METRICS]
    known = (*ResourceType, *security_resources.TYPES)
    if any(resource_type not in known for resource_type in wanted):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    is_allowed = ctx.decisions.allows_on_cluster(Operation.DESCRIBE_CONFIGS)
    if not is_allowed and not security_resources.may_list(ctx, wanted):
        return ListConfigResourcesResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    image = ctx.services.metadata.image
    brokers = [str(node_id) for node_id in image.brokers]
    names: dict[int, Iterable[str]] = {
        ResourceType.TOPIC: sorted(image.topics),
        ResourceType.BROKER: brokers,
        ResourceType.BROKER_LOGGER: brokers,
        ResourceType.GROUP: sorted(image.group_configs),
        # Only for those who ask for them: tools made for Kafka know neither.
        **{kind: security_resources.listed(ctx, kind) for kind in security_resources.TYPES if kind in wanted},
    }
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=resource_type)
            for resource_type in dict.fromkeys(wanted)
            for name in names.get(resource_type, ())
        ]
    )


# v1 lists every kind of resource, not only client metrics.
LIST_CONFIG_RESOURCES: Final = Api(
    ApiKey.LIST_CONFIG_RESOURCES,
    versions=(0, 1),
    handle=list_config_resources,
    checks=(on_cluster(Operation.DESCRIBE_CONFIGS, "or only one's own tenant"),),
)
