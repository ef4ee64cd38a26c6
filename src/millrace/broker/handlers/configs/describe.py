"""DescribeConfigs: the values that count, and where they come from."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from millrace.broker.config import loggers
from millrace.broker.handlers.configs import security_resources
from millrace.broker.handlers.configs.resources import (
    ResourceType,
    check_topic,
    refusal_of,
    this_broker,
    unknown_type,
)
from millrace.broker.network.checks import on_cluster, on_group, on_topic
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.broker.wire_errors import error_code, error_message
from millrace.core.errors import MillraceError
from millrace.metadata.config_definitions import (
    BrokerLayers,
    ConfigEntry,
    ConfigSource,
    describe_broker,
    describe_group,
    describe_topic,
)
from millrace.security.acls.binding import Operation
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

DYNAMIC_BROKER_LOGGER: Final = 6
"""Where the protocol says that a logger's level comes from; no setting has this source."""
RESOURCES_PER_TURN: Final = 20
"""After so many resources other work of the loop gets its turn."""

Shared: TypeAlias = dict[
    tuple[tuple[tuple[str, str], ...], tuple[str, ...] | None], list[DescribeConfigsResourceResult]
]
"""Answers by what a topic sets itself and by the names asked for: most topics of a request share one."""


def describe_configs(
    ctx: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse | Awaitable[DescribeConfigsResponse]:
    if len(request.resources) > RESOURCES_PER_TURN:
        return _describe_many(ctx, request)
    shared: Shared = {}
    return DescribeConfigsResponse(
        results=[_describe(ctx, request, resource, shared) for resource in request.resources]
    )


async def _describe_many(ctx: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """Describe in steps: tools ask for all topics at once, and other clients want their turn in between."""
    shared: Shared = {}
    response = DescribeConfigsResponse()
    for place, resource in enumerate(request.resources, 1):
        response.results.append(_describe(ctx, request, resource, shared))
        if place % RESOURCES_PER_TURN == 0:
            await asyncio.sleep(0)
    return response


def _describe(
    ctx: RequestContext, request: DescribeConfigsRequest, resource: DescribeConfigsResource, shared: Shared
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(resource_type=resource.resource_type, resource_name=resource.resource_name)
    code = refusal_of(ctx, Operation.DESCRIBE_CONFIGS, resource.resource_type, resource.resource_name)
    if code is not None:
        result.error_code = code
        result.error_message = code.message
        return result
    try:
        match resource.resource_type:
            case ResourceType.TOPIC:
                result.configs = _topic_configs(ctx, request, resource, shared)
            case ResourceType.BROKER:
                result.configs = _configs(_broker_entries(ctx, resource), request)
            case ResourceType.GROUP:
                own = ctx.services.metadata.image.group_configs.get(resource.resource_name, {})
                layers = ctx.services.config.layers
                result.configs = _configs(describe_group(own, layers, _names(resource)), request)
            case ResourceType.BROKER_LOGGER:
                result.configs = _loggers(ctx, resource)
            case kind if kind in security_resources.TYPES:
                result.configs = security_resources.describe(
                    ctx, kind, resource.resource_name, _names(resource)
                )
            case _:
                raise unknown_type(resource.resource_type)
    except MillraceError as error:
        result.error_code = error_code(error)
        result.error_message = error_message(error)
    return result


def _topic_configs(
    ctx: RequestContext, request: DescribeConfigsRequest, resource: DescribeConfigsResource, shared: Shared
) -> list[DescribeConfigsResourceResult]:
    image = ctx.services.metadata.image
    check_topic(image, resource.resource_name)
    own = image.topics[resource.resource_name].configs
    names = _names(resource)
    key = (tuple(own.items()), None if names is None else tuple(names))
    configs = shared.get(key)
    if configs is None:
        configs = shared[key] = _configs(describe_topic(own, ctx.services.config.layers, names), request)
    return configs


def _broker_entries(ctx: RequestContext, resource: DescribeConfigsResource) -> list[ConfigEntry]:
    names = _names(resource)
    if this_broker(resource.resource_name, ctx.services.config.node_id, or_all=True) is None:
        return _cluster_defaults(ctx.services.metadata.image.default_broker_config, names)
    return describe_broker(ctx.services.config.layers, names)


def _names(resource: DescribeConfigsResource) -> Sequence[str] | None:
    """An empty list of names asks for all of them, as null does."""
    return resource.configuration_keys or None


def _cluster_defaults(configs: Mapping[str, str], names: Sequence[str] | None) -> list[ConfigEntry]:
    """Only what is set for all brokers: the rest is different on each."""
    chosen = [name for name in configs if names is None or name in names]
    layer = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    return [
        entry._replace(synonyms=tuple(synonym for synonym in entry.synonyms if synonym.source is layer))
        for entry in describe_broker(BrokerLayers(dynamic_default=configs), chosen)
    ]


def _configs(
    entries: Iterable[ConfigEntry], request: DescribeConfigsRequest
) -> list[DescribeConfigsResourceResult]:
    return [_config(entry, request) for entry in entries]


def _config(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = entry.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in synonyms
        ],
        config_type=entry.type,
        documentation=entry.documentation if request.include_documentation else None,
    )


def _loggers(ctx: RequestContext, resource: DescribeConfigsResource) -> list[DescribeConfigsResourceResult]:
    this_broker(resource.resource_name, ctx.services.config.node_id, or_all=False)
    names = resource.configuration_keys
    return [
        DescribeConfigsResourceResult(name=name, value=level, config_source=DYNAMIC_BROKER_LOGGER)
        for name, level in loggers.logger_levels().items()
        if not names or name in names
    ]


# v1 adds synonyms and sources, v3 documentation and types; v4 is the flexible encoding.
DESCRIBE_CONFIGS: Final = Api(
    ApiKey.DESCRIBE_CONFIGS,
    versions=(1, 4),
    handle=describe_configs,
    checks=(
        on_cluster(Operation.DESCRIBE_CONFIGS, "of brokers, roles and tenants"),
        on_topic(Operation.DESCRIBE_CONFIGS, "of topics"),
        on_group(Operation.DESCRIBE_CONFIGS, "of groups"),
    ),
)
