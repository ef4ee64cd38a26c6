"""`millrace quota`: how much users, client ids, addresses and tenants may take."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from millrace.cli.options import BrokerAddress, broker_options, json_option, key_values
from millrace.cli.output import print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from millrace.cli.broker_requests import Connection

_Command = TypeVar("_Command", bound=Callable[..., Any])
_DEFAULT: Final = "(default)"
_TENANT_LIMITS: Final = {
    "producer_byte_rate": "bytes.in.per.second",
    "consumer_byte_rate": "bytes.out.per.second",
    "request_percentage": "request.percentage",
}
"""The quotas of a tenant are its limits, and have other names there."""
_KEYS: Final = (
    "Keys: producer_byte_rate, consumer_byte_rate (bytes per second), request_percentage (of one thread), "
    "controller_mutation_rate (partitions per second); of addresses: connection_creation_rate (per second)."
)


@click.group(help="Limit what users, client ids, addresses and tenants take.", no_args_is_help=True)
def quota() -> None:
    pass


COMMAND: Final = quota


def _entity_options(command: _Command) -> _Command:
    for option in reversed(
        (
            click.option("--user", metavar="NAME", help="This user."),
            click.option("--default-user", is_flag=True, help="Every user without a quota of their own."),
            click.option("--client-id", metavar="NAME", help="This client id, of the user if one is given."),
            click.option("--default-client-id", is_flag=True, help="Every other client id."),
            click.option("--ip", metavar="ADDRESS", help="This address."),
            click.option("--default-ip", is_flag=True, help="Every other address."),
            click.option("--tenant", metavar="NAME", help="This tenant."),
        )
    ):
        command = option(command)
    return command


@quota.command("list")
@_entity_options
@json_option
@broker_options
def list_(as_json: bool, **options: Any) -> None:
    """List quotas: all, or those of whom the options name."""
    from millrace.cli import broker_requests

    wanted = _entity(options)
    with broker_requests.connected(_address(options)) as broker:
        found = _read(broker, wanted) if "tenant" not in wanted else []
        if not wanted or "tenant" in wanted:
            found += _of_tenants(broker, wanted.get("tenant"))
    if as_json:
        for whom, limits in found:
            print_json({"entity": whom, "quotas": limits})
        return
    rows = [
        (_shown(whom), key, f"{value:.15g}")
        for whom, limits in found
        for key, value in sorted(limits.items())
    ]
    print_table(("WHO", "QUOTA", "VALUE"), rows, right=("VALUE",))


@quota.command("set", epilog=_KEYS)
@click.argument("pairs", nargs=-1, required=True, metavar="KEY=VALUE...")
@_entity_options
@broker_options
def set_(pairs: tuple[str, ...], **options: Any) -> None:
    """Set quotas of one user, client id, address or tenant."""
    changes: dict[str, float | None] = {}
    for key, text in key_values(pairs, option="KEY=VALUE").items():
        try:
            changes[key] = float(text)
        except ValueError:
            raise click.BadParameter(f"{key}={text}: is no number", param_hint="'KEY=VALUE'") from None
    click.echo(f"changed the quotas of {_change(options, changes)}")


@quota.command(epilog=_KEYS)
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@_entity_options
@broker_options
def remove(keys: tuple[str, ...], **options: Any) -> None:
    """Remove quotas of one user, client id, address or tenant."""
    click.echo(f"removed quotas of {_change(options, dict.fromkeys(keys))}")


def _address(options: Mapping[str, Any]) -> BrokerAddress:
    return BrokerAddress(**{name: options[name] for name in ("bootstrap", "command_config", "timeout_s")})


def _entity(options: Mapping[str, Any]) -> dict[str, str | None]:
    """Whom the options name, by the protocol's types; None as a name is the default."""
    found: dict[str, str | None] = {}
    for option, kind in (("user", "user"), ("client_id", "client-id"), ("ip", "ip"), ("tenant", "tenant")):
        name, is_default = options[option], options.get(f"default_{option}", False)
        if name is not None and is_default:
            raise click.UsageError(f"--{kind} and --default-{kind} name different ones: give one of them")
        if name is not None or is_default:
            found[kind] = name
    if len(found) > 1 and ("ip" in found or "tenant" in found):
        raise click.UsageError("--ip and --tenant go with no other option")
    return found


def _order(part: tuple[str, str | None]) -> int:
    from millrace.security.quotas.entities import ENTITY_TYPES

    return ENTITY_TYPES.index(part[0]) if part[0] in ENTITY_TYPES else len(ENTITY_TYPES)


def _shown(whom: Mapping[str, str | None]) -> str:
    return " ".join(f"{kind}={_DEFAULT if name is None else name}" for kind, name in whom.items())


def _read(
    broker: Connection, wanted: Mapping[str, str | None]
) -> list[tuple[dict[str, str | None], dict[str, float]]]:
    from millrace.cli.broker_requests import raise_for
    from millrace.security.quotas.describe import MatchType
    from millrace.wire.api_keys import ApiKey
    from millrace.wire.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest

    components = [
        ComponentData(
            entity_type=kind, match_type=MatchType.DEFAULT if name is None else MatchType.EXACT, match=name
        )
        for kind, name in wanted.items()
    ]
    request = DescribeClientQuotasRequest(components=components, strict=False)
    answer = broker.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, request)
    raise_for(answer.error_code, "quotas", answer.error_message)
    found = [
        (
            # Brokers tell the parts in any order.
            dict(sorted({part.entity_type: part.entity_name for part in entry.entity}.items(), key=_order)),
            {limit.key: limit.value for limit in entry.values},
        )
        for entry in answer.entries or ()
    ]
    return sorted(found, key=lambda each: _shown(each[0]))


def _of_tenants(
    broker: Connection, wanted: str | None
) -> list[tuple[dict[str, str | None], dict[str, float]]]:
    """The quotas of tenants are their limits, and come another way; Apache Kafka has none."""
    from millrace.cli.access import named_settings

    try:
        tenants = named_settings.read_tenants(broker)
    except named_settings.NoSuchKind:
        return []
    quotas = [tenant.quotas() for tenant in tenants if wanted in (None, tenant.name)]
    return [(dict(whom.parts), limits) for whom, limits in quotas if limits]


def _change(options: Mapping[str, Any], changes: Mapping[str, float | None]) -> str:
    """Set, or remove by None; says of whom."""
    from millrace.cli import broker_requests

    whom = _entity(options)
    if not whom:
        raise click.UsageError("say whose: --user, --client-id, --ip, --tenant, or a default")
    with broker_requests.connected(_address(options)) as broker:
        if "tenant" in whom:
            _change_tenant(broker, str(whom["tenant"]), changes)
        else:
            _alter(broker, whom, changes)
    return _shown(whom)


def _alter(broker: Connection, whom: Mapping[str, str | None], changes: Mapping[str, float | None]) -> None:
    from millrace.cli.broker_requests import raise_for
    from millrace.wire.api_keys import ApiKey
    from millrace.wire.messages.alter_client_quotas import (
        AlterClientQuotasRequest,
        AlterClientQuotasRequestEntityData,
        AlterClientQuotasRequestEntryData,
        OpData,
    )

    parts = [
        AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name) for kind, name in whom.items()
    ]
    ops = [OpData(key=key, value=value or 0.0, remove=value is None) for key, value in changes.items()]
    entry = AlterClientQuotasRequestEntryData(entity=parts, ops=ops)
    answer = broker.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, AlterClientQuotasRequest(entries=[entry]))
    for result in answer.entries:
        raise_for(result.error_code, _shown(whom), result.error_message)


def _change_tenant(broker: Connection, name: str, changes: Mapping[str, float | None]) -> None:
    from millrace.cli.access import named_settings
    from millrace.security.config_resources import TENANT_TYPE

    unknown = [key for key in changes if key not in _TENANT_LIMITS]
    if unknown:
        raise click.UsageError(
            f"a tenant has no quota {', '.join(unknown)}; it has {', '.join(_TENANT_LIMITS)}"
        )
    named_settings.require_present(broker, TENANT_TYPE, name)
    named_settings.change(
        broker,
        TENANT_TYPE,
        name,
        [
            named_settings.Change(
                _TENANT_LIMITS[key],
                named_settings.DELETE if value is None else named_settings.SET,
                None if value is None else f"{value:.15g}",
            )
            for key, value in changes.items()
        ],
    )
