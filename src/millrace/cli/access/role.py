"""`millrace role`: named sets of permissions, and who has them."""

from __future__ import annotations

from typing import Any, Final

import click

from millrace.cli.options import BrokerAddress, broker_options, json_option
from millrace.cli.output import log_line, print_json, print_table


@click.group(help="Create roles, give them to users and groups, and take them away.", no_args_is_help=True)
def role() -> None:
    pass


COMMAND: Final = role


@role.command("list")
@json_option
@broker_options
def list_(as_json: bool, **address: Any) -> None:
    """List roles and those who have them."""
    from millrace.cli import broker_requests
    from millrace.cli.access import named_settings

    with broker_requests.connected(BrokerAddress(**address)) as broker:
        roles = named_settings.read_roles(broker)
    if as_json:
        for each in roles:
            print_json({"role": each.name, "members": each.members})
    else:
        print_table(("ROLE", "MEMBERS"), [(each.name, ", ".join(each.members)) for each in roles])


@role.command()
@click.argument("name", metavar="ROLE")
@click.option("--member", "members", multiple=True, metavar="PRINCIPAL", help="Who has it. Repeatable.")
@broker_options
def create(name: str, members: tuple[str, ...], **address: Any) -> None:
    """Create a role. `millrace acl add Role:NAME ...` says what it may do."""
    from millrace.cli import broker_requests
    from millrace.cli.access import named_settings, words
    from millrace.security.config_resources import MEMBERS, ROLE_TYPE, joined

    given = [words.principal(member) for member in members]
    with broker_requests.connected(BrokerAddress(**address)) as broker:
        named_settings.require_absent(broker, ROLE_TYPE, name)
        made = named_settings.Change(MEMBERS, named_settings.SET, joined(given))
        named_settings.change(broker, ROLE_TYPE, name, [made])
    click.echo(f"created role {name}")


@role.command()
@click.argument("name", metavar="ROLE")
@click.argument("members", nargs=-1, required=True, metavar="PRINCIPAL...")
@broker_options
def grant(name: str, members: tuple[str, ...], **address: Any) -> None:
    """Give a role to users and groups: alice, Group:staff."""
    from millrace.cli.access import named_settings

    _change_members(BrokerAddress(**address), name, members, named_settings.APPEND)
    click.echo(f"gave role {name} to {', '.join(members)}")


@role.command()
@click.argument("name", metavar="ROLE")
@click.argument("members", nargs=-1, required=True, metavar="PRINCIPAL...")
@broker_options
def revoke(name: str, members: tuple[str, ...], **address: Any) -> None:
    """Take a role away from users and groups."""
    from millrace.cli.access import named_settings

    _change_members(BrokerAddress(**address), name, members, named_settings.SUBTRACT)
    click.echo(f"took role {name} from {', '.join(members)}")


@role.command()
@click.argument("name", metavar="ROLE")
@click.option("--with-acls", is_flag=True, help="Remove its permissions, too.")
@broker_options
def delete(name: str, with_acls: bool, **address: Any) -> None:
    """Delete a role. Permissions that name it stay unless --with-acls is given, and count for nobody."""
    from millrace.cli import broker_requests
    from millrace.cli.access import named_settings, permissions
    from millrace.security.acls.filters import AclFilter
    from millrace.security.acls.roles import Role
    from millrace.security.config_resources import MEMBERS, ROLE_TYPE

    with broker_requests.connected(BrokerAddress(**address)) as broker:
        named_settings.require_present(broker, ROLE_TYPE, name)
        left = permissions.read(broker, AclFilter(principal=Role(name, ()).principal))
        gone = named_settings.Change(MEMBERS, named_settings.DELETE, None)
        named_settings.change(broker, ROLE_TYPE, name, [gone])
        if left and with_acls:
            permissions.delete(broker, left)
    click.echo(f"deleted role {name}")
    if left and not with_acls:
        log_line(f"{len(left)} permissions still name it: `millrace acl remove --principal Role:{name}`")


@role.command()
@click.argument("name", metavar="ROLE")
@json_option
@broker_options
def describe(name: str, as_json: bool, **address: Any) -> None:
    """Show who has a role, and what it may do."""
    from millrace.cli import broker_requests
    from millrace.cli.access import named_settings, permissions
    from millrace.cli.access.acl import print_permissions
    from millrace.security.acls.explain import describe_acl
    from millrace.security.acls.filters import AclFilter
    from millrace.security.config_resources import ROLE_TYPE

    with broker_requests.connected(BrokerAddress(**address)) as broker:
        named_settings.require_present(broker, ROLE_TYPE, name)
        (found,) = named_settings.read_roles(broker, [name])
        granted = permissions.read(broker, AclFilter(principal=found.principal))
    if as_json:
        rules = [describe_acl(each) for each in granted]
        print_json({"role": name, "members": found.members, "permissions": rules})
        return
    click.echo(f"Role:     {name}")
    click.echo(f"Members:  {', '.join(found.members) or 'nobody'}\n")
    print_permissions(granted, as_json=False)


def _change_members(address: BrokerAddress, name: str, members: tuple[str, ...], operation: int) -> None:
    from millrace.cli import broker_requests
    from millrace.cli.access import named_settings, words
    from millrace.security.config_resources import MEMBERS, ROLE_TYPE, joined

    given = joined(words.principal(member) for member in members)
    with broker_requests.connected(address) as broker:
        named_settings.require_present(broker, ROLE_TYPE, name)
        named_settings.change(broker, ROLE_TYPE, name, [named_settings.Change(MEMBERS, operation, given)])
