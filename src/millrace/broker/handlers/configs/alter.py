"""AlterConfigs and IncrementalAlterConfigs: every resource is changed as a whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from millrace.broker.config import loggers
from millrace.broker.handlers.configs import security_resources
from millrace.broker.handlers.configs.outcomes import outcomes_of
from millrace.broker.handlers.configs.resources import ResourceType, refusal_of, this_broker, unknown_type
from millrace.broker.network.checks import on_cluster, on_group, on_topic
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.broker.wire_errors import error_code, error_message
from millrace.core.errors import MillraceError
from millrace.metadata.commands import (
    Alteration,
    AlterOperation,
    BrokerResource,
    ConfigResource,
    GroupResource,
    TopicResource,
)
from millrace.metadata.errors import ContradictoryRequest, InvalidConfig
from millrace.metadata.security.commands import AlterRole, AlterTenant
from millrace.metadata.topic_names import check_topic_name
from millrace.security.acls.binding import Operation
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages import alter_configs as full
from millrace.wire.messages import incremental_alter_configs as incremental

Resource = TypeVar("Resource", full.AlterConfigsResource, incremental.AlterConfigsResource)
Result = TypeVar("Result", full.AlterConfigsResourceResponse, incremental.AlterConfigsResourceResponse)
Wanted = TypeVar("Wanted")
Place = tuple[int, str]
Outcome = MillraceError | ErrorCode | None
Change = tuple[ConfigResource, Sequence[Alteration]]


async def alter_configs(ctx: RequestContext, request: full.AlterConfigsRequest) -> full.AlterConfigsResponse:
    def read(resource: full.AlterConfigsResource) -> tuple[ConfigResource, dict[str, str]]:
        return _metadata_resource(ctx, resource), _exact_configs(resource)

    wanted, outcomes = _read_all(ctx, request.resources, read)
    replaced = ctx.services.metadata.replace_configs(
        list(wanted.values()), validate_only=request.validate_only
    )
    decided = await outcomes_of(replaced, len(wanted))
    outcomes.update(zip(wanted, decided, strict=True))
    return full.AlterConfigsResponse(
        responses=_results(full.AlterConfigsResourceResponse, request.resources, outcomes)
    )


async def incremental_alter_configs(
    ctx: RequestContext, request: incremental.IncrementalAlterConfigsRequest
) -> incremental.IncrementalAlterConfigsResponse:
    def read(
        resource: incremental.AlterConfigsResource,
    ) -> Change | AlterRole | AlterTenant | None:
        alterations = [_alteration(config) for config in resource.configs]
        if resource.resource_type in security_resources.TYPES:
            kind, name = resource.resource_type, resource.resource_name
            return security_resources.alter(ctx, kind, name, alterations)
        if resource.resource_type == ResourceType.BROKER_LOGGER:
            _alter_loggers(ctx, resource.resource_name, alterations, validate_only=request.validate_only)
            return None
        return _metadata_resource(ctx, resource), alterations

    found, outcomes = _read_all(ctx, request.resources, read)
    metadata, is_trial = ctx.services.metadata, request.validate_only
    wanted = {place: change for place, change in found.items() if isinstance(change, tuple)}
    altered = metadata.alter_configs(list(wanted.values()), validate_only=is_trial)
    decided = await outcomes_of(altered, len(wanted))
    outcomes.update(zip(wanted, decided, strict=True))
    named = {place: change for place, change in found.items() if isinstance(change, AlterRole | AlterTenant)}
    if named:
        changed = metadata.security.alter_settings(list(named.values()), validate_only=is_trial)
        decided = await outcomes_of(changed, len(named))
        outcomes.update(zip(named, decided, strict=True))
    return incremental.IncrementalAlterConfigsResponse(
        responses=_results(incremental.AlterConfigsResourceResponse, request.resources, outcomes)
    )


def _read_all(
    ctx: RequestContext, resources: Iterable[Resource], read: Callable[[Resource], Wanted]
) -> tuple[dict[Place, Wanted], dict[Place, Outcome]]:
    """What each resource of a request is to become, and why nothing comes of the others: they make no sense,
    or the client may not."""
    counts: dict[Place, int] = {}
    for resource in resources:
        place = (resource.resource_type, resource.resource_name)
        counts[place] = counts.get(place, 0) + 1
    wanted: dict[Place, Wanted] = {}
    outcomes: dict[Place, Outcome] = {}
    for resource in resources:
        place = (resource.resource_type, resource.resource_name)
        try:
            if counts[place] > 1:
                raise ContradictoryRequest("each resource may be there at most once in a request")
            code = refusal_of(ctx, Operation.ALTER_CONFIGS, *place)
            if code is not None:
                outcomes[place] = code
                continue
            wanted[place] = read(resource)
        except MillraceError as error:
            outcomes[place] = error
    return wanted, outcomes


def _results(
    kind: Callable[..., Result], resources: Iterable[Resource], outcomes: dict[Place, Outcome]
) -> list[Result]:
    """What became of each resource, in the order of the request."""
    results = []
    for resource in resources:
        outcome = outcomes.get((resource.resource_type, resource.resource_name))
        results.append(
            kind(
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                error_code=_code(resource.resource_type, outcome),
                error_message=_message(outcome),
            )
        )
    return results


def _metadata_resource(
    ctx: RequestContext, resource: full.AlterConfigsResource | incremental.AlterConfigsResource
) -> ConfigResource:
    match resource.resource_type:
        case ResourceType.TOPIC:
            check_topic_name(resource.resource_name)
            return TopicResource(resource.resource_name)
        case ResourceType.BROKER:
            return BrokerResource(
                this_broker(resource.resource_name, ctx.services.config.node_id, or_all=True)
            )
        case ResourceType.GROUP:
            return GroupResource(resource.resource_name)
        case _:
            raise unknown_type(resource.resource_type)


def _exact_configs(resource: full.AlterConfigsResource) -> dict[str, str]:
    configs: dict[str, str] = {}
    for config in resource.configs:
        if config.value is None:
            raise ContradictoryRequest(f"the setting {config.name} is to be set, but without a value")
        if config.name in configs:
            raise ContradictoryRequest(f"the setting {config.name} is altered twice in one request")
        configs[config.name] = config.value
    return configs


def _alteration(config: incremental.AlterableConfig) -> Alteration:
    try:
        operation = AlterOperation(config.config_operation)
    except ValueError:
        raise ContradictoryRequest(
            f"the setting {config.name}: there is no operation {config.config_operation}"
        ) from None
    return Alteration(config.name, operation, config.value)


def _alter_loggers(
    ctx: RequestContext, broker: str, alterations: Sequence[Alteration], *, validate_only: bool
) -> None:
    """Change levels at once: they live in this process alone and are forgotten with it."""
    this_broker(broker, ctx.services.config.node_id, or_all=False)
    for name, operation, level in alterations:
        if operation not in (AlterOperation.SET, AlterOperation.DELETE):
            raise ContradictoryRequest(
                f"logger {name}: a level is set or deleted, {operation.name} means nothing"
            )
        if operation is AlterOperation.SET and level is None:
            raise ContradictoryRequest(f"logger {name} is to be set, but without a level")
    # The first round only checks: either every logger changes or none.
    for is_rehearsal in (True, False):
        for name, operation, level in alterations:
            new_level = level if operation is AlterOperation.SET else None
            loggers.set_level(name, new_level, validate_only=validate_only or is_rehearsal)


def _message(outcome: Outcome) -> str | None:
    if outcome is None:
        return None
    return outcome.message if isinstance(outcome, ErrorCode) else error_message(outcome)


def _code(resource_type: int, outcome: Outcome) -> ErrorCode:
    if outcome is None:
        return ErrorCode.NONE
    if isinstance(outcome, ErrorCode):
        return outcome
    if resource_type == ResourceType.BROKER and isinstance(outcome, InvalidConfig):
        # Kafka tells topics and brokers apart here, and clients may rely on it.
        return ErrorCode.INVALID_REQUEST
    return error_code(outcome)


# v2 is the flexible encoding.
ALTER_CONFIGS: Final = Api(
    ApiKey.ALTER_CONFIGS,
    versions=(0, 2),
    handle=alter_configs,
    checks=(
        on_cluster(Operation.ALTER_CONFIGS, "of brokers"),
        on_topic(Operation.ALTER_CONFIGS, "of topics"),
        on_group(Operation.ALTER_CONFIGS, "of groups"),
    ),
)
# v1 is the flexible encoding.
INCREMENTAL_ALTER_CONFIGS: Final = Api(
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    versions=(0, 1),
    handle=incremental_alter_configs,
    checks=(
        on_cluster(Operation.ALTER_CONFIGS, "of brokers"),
        on_cluster(Operation.ALTER, "of roles and tenants"),
        on_topic(Operation.ALTER_CONFIGS, "of topics"),
        on_group(Operation.ALTER_CONFIGS, "of groups"),
    ),
)
