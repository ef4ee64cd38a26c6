"""`millrace tenant`: parts of a cluster's names with their own administrators, members and limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from millrace.cli.options import BrokerAddress, broker_options, json_option, key_values
from millrace.cli.output import print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millrace.cli.access.named_settings import Change
    from millrace.security.tenants import Tenant

_LIMIT_NAMES: Final = (
    "Limits: bytes.in.per.second, bytes.out.per.second, request.percentage, partitions.max, "
    "stored.bytes.max, connections.max."
)
_limit_option = click.option(
    "--limit", "limits", multiple=True, metavar="NAME=VALUE", help="What it may take. Repeatable."
)
_when_full_option = click.option(
    "--when-full",
    type=click.Choice(("hold", "reject")),
    help="What becomes of records once it stores as much as it may: clients wait, or are refused.",
)


@click.group(help="Create, change and delete tenants.", no_args_is_help=True)
def tenant() -> None:
    pass


COMMAND: Final = tenant


@tenant.command("list")
@json_option
@broker_options
def list_(as_json: bool, **address: Any) -> None:
    """List tenants."""
    from millrace.cli import broker_requests
    from millrace.cli.access import named_settings

    with broker_requests.connected(BrokerAddress(**address)) as broker:
        found = named_settings.read_tenants(broker)
    if as_json:
        for each in found:
            print_json(_document(each))
        return
    rows = [
        (each.name, f"{each.prefix}*", ", ".join(each.administrators), len(each.members), _limits(each))
        for each in found
    ]
    print_table(("TENANT", "NAMES", "ADMINISTRATORS", "MEMBERS", "LIMITS"), rows, right=("MEMBERS",))


@tenant.command(epilog=_LIMIT_NAMES)
@click.argument("name", metavar="TENANT")
@click.option("--prefix", required=True, help="What its topics, groups and transactional ids begin with.")
@click.option("--admin", "admins", multiple=True, metavar="PRINCIPAL", help="May do everything. Repeatable.")
@click.option(
    "--member", "members", multiple=True, metavar="PRINCIPAL", help="May read and write. Repeatable."
)
@_limit_option
@_when_full_option
@broker_options
def create(
    name: str,
    prefix: str,
    admins: tuple[str, ...],
    members: tuple[str, ...],
    limits: tuple[str, ...],
    when_full: str | None,
    **address: Any,
) -> None:
    """Create a tenant: all names that begin with a prefix, and those who use them."""
    from millrace.cli import broker_requests
    from millrace.cli.access import named_settings, words
    from millrace.cli.access.named_settings import SET, Change
    from millrace.security.config_resources import ADMINISTRATORS, MEMBERS, PREFIX, TENANT_TYPE, joined

    changes = [Change(PREFIX, SET, prefix)]
    for setting, given in ((ADMINISTRATORS, admins), (MEMBERS, members)):
        if given:
            changes.append(Change(setting, SET, joined(words.principal(each) for each in given)))
    changes += _limit_changes(limits, (), when_full)
    with broker_requests.connected(BrokerAddress(**address)) as broker:
        named_settings.require_absent(broker, TENANT_TYPE, name)
        named_settings.change(broker, TENANT_TYPE, name, changes)
    click.echo(f"created tenant {name}")


@tenant.command(epilog=_LIMIT_NAMES)
@click.argument("name", metavar="TENANT")
@click.option("--add-admin", "new_admins", multiple=True, metavar="PRINCIPAL", help="Repeatable.")
@click.option("--remove-admin", "old_admins", multiple=True, metavar="PRINCIPAL", help="Repeatable.")
@click.option("--add-member", "new_members", multiple=True, metavar="PRINCIPAL", help="Repeatable.")
@click.option("--remove-member", "old_members", multiple=True, metavar="PRINCIPAL", help="Repeatable.")
@_limit_option
@click.option("--no-limit", "unlimited", multiple=True, metavar="NAME", help="Take a limit away. Repeatable.")
@_when_full_option
@broker_options
def alter(
    name: str, limits: tuple[str, ...], unlimited: tuple[str, ...], when_full: str | None, **options: Any
) -> None:
    """Change who belongs to a tenant, and what it may take. Its prefix stays."""
    from millrace.cli import broker_requests
    from millrace.cli.access import named_settings
    from millrace.security.config_resources import TENANT_TYPE

    changes = [*_member_changes(options), *_limit_changes(limits, unlimited, when_full)]
    if not changes:
        raise click.UsageError("nothing to change")
    address = {key: options[key] for key in ("bootstrap", "command_config", "timeout_s")}
    with broker_requests.connected(BrokerAddress(**address)) as broker:
        named_settings.require_present(broker, TENANT_TYPE, name)
        # One setting is changed once in a request: who is added and who is removed go one after the other.
        while changes:
            together = list({change.setting: change for change in reversed(changes)}.values())
            named_settings.change(broker, TENANT_TYPE, name, together[::-1])
            changes = [change for change in changes if change not in together]
    click.echo(f"changed tenant {name}")


@tenant.command()
@click.argument("name", metavar="TENANT")
@broker_options
def delete(name: str, **address: Any) -> None:
    """Delete a tenant. Its topics and groups stay, and belong to nobody."""
    from millrace.cli import broker_requests
    from millrace.cli.access import named_settings
    from millrace.security.config_resources import PREFIX, TENANT_TYPE

    with broker_requests.connected(BrokerAddress(**address)) as broker:
        named_settings.require_present(broker, TENANT_TYPE, name)
        gone = named_settings.Change(PREFIX, named_settings.DELETE, None)
        named_settings.change(broker, TENANT_TYPE, name, [gone])
    click.echo(f"deleted tenant {name}")


@tenant.command()
@click.argument("name", metavar="TENANT")
@json_option
@broker_options
def describe(name: str, as_json: bool, **address: Any) -> None:
    """Show a tenant: its names, its people and its limits."""
    from millrace.cli import broker_requests
    from millrace.cli.access import named_settings
    from millrace.security.config_resources import TENANT_TYPE

    with broker_requests.connected(BrokerAddress(**address)) as broker:
        named_settings.require_present(broker, TENANT_TYPE, name)
        (found,) = named_settings.read_tenants(broker, [name])
    if as_json:
        print_json(_document(found))
        return
    click.echo(f"Tenant:          {found.name}")
    click.echo(f"Names:           {found.prefix}*")
    click.echo(f"Administrators:  {', '.join(found.administrators) or 'nobody'}")
    click.echo(f"Members:         {', '.join(found.members) or 'nobody'}")
    click.echo(f"Limits:          {_limits(found) or 'none'}")
    click.echo(f"When full:       {found.when_full.value}")


def _member_changes(options: dict[str, Any]) -> Iterator[Change]:
    from millrace.cli.access import words
    from millrace.cli.access.named_settings import APPEND, SUBTRACT, Change
    from millrace.security.config_resources import ADMINISTRATORS, MEMBERS, joined

    for option, setting, operation in (
        ("new_admins", ADMINISTRATORS, APPEND),
        ("old_admins", ADMINISTRATORS, SUBTRACT),
        ("new_members", MEMBERS, APPEND),
        ("old_members", MEMBERS, SUBTRACT),
    ):
        if options[option]:
            yield Change(setting, operation, joined(words.principal(each) for each in options[option]))


def _limit_changes(
    limits: tuple[str, ...], unlimited: tuple[str, ...], when_full: str | None
) -> Iterator[Change]:
    from millrace.cli.access.named_settings import DELETE, SET, Change
    from millrace.security.config_resources import LIMITS, WHEN_FULL

    given: dict[str, str | None] = {**key_values(limits, option="--limit")}
    for name in unlimited:
        if name in given:
            raise click.UsageError(f"--limit and --no-limit both name {name}")
        given[name] = None
    for name, value in given.items():
        if name not in LIMITS:
            raise click.UsageError(f"a tenant has no limit {name}; there are {', '.join(LIMITS)}")
        yield Change(name, DELETE if value is None else SET, value)
    if when_full is not None:
        yield Change(WHEN_FULL, SET, when_full)


def _limits(found: Tenant) -> str:
    from millrace.security.config_resources import LIMITS

    bounds = found.limits._asdict()
    return ", ".join(f"{name}={bounds[field]}" for name, field in LIMITS.items() if bounds[field] is not None)


def _document(found: Tenant) -> dict[str, Any]:
    return {
        "tenant": found.name,
        "prefix": found.prefix,
        "administrators": found.administrators,
        "members": found.members,
        "limits": {name: bound for name, bound in found.limits._asdict().items() if bound is not None},
        "when_full": found.when_full.value,
    }
