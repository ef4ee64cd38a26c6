"""`millrace acl`: list, add and remove permissions, and say which of them decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from millrace.cli.options import BrokerAddress, broker_options, json_option
from millrace.cli.output import fail_with, log_line, print_json, print_table

if TYPE_CHECKING:
    from millrace.security.acls.binding import Acl
    from millrace.security.acls.filters import AclFilter

_Command = TypeVar("_Command", bound=Callable[..., Any])
HEADINGS: Final = ("PRINCIPAL", "PERMISSION", "OPERATION", "RESOURCE", "FROM")


@click.group(help="List, add, remove and explain permissions.", no_args_is_help=True)
def acl() -> None:
    pass


COMMAND: Final = acl


def _filter_options(command: _Command) -> _Command:
    for option in reversed(
        (
            click.argument("resource", required=False, metavar="[RESOURCE]"),
            click.option("--principal", metavar="NAME", help="Only of this one: alice, Role:ops."),
            click.option("--operation", metavar="NAME", help="Only this operation."),
            click.option("--allow", "permission", flag_value="ALLOW", help="Only what is allowed."),
            click.option("--deny", "permission", flag_value="DENY", help="Only what is denied."),
            click.option("--host", metavar="ADDRESS", help="Only what counts for this address alone."),
            click.option("--literal", "pattern", flag_value="LITERAL", help="Only for exactly this name."),
            click.option("--prefixed", "pattern", flag_value="PREFIXED", help="Only for this prefix."),
        )
    ):
        command = option(command)
    return command


@acl.command("list")
@_filter_options
@click.option("--matching", "pattern", flag_value="MATCH", help="All that count for a RESOURCE of this name.")
@json_option
@broker_options
def list_(as_json: bool, **options: Any) -> None:
    """List permissions: all, or those about a RESOURCE such as topic:orders."""
    from millrace.cli import broker_requests
    from millrace.cli.access import permissions

    wanted = _filter(options)
    with broker_requests.connected(_address(options)) as broker:
        found = permissions.read(broker, wanted)
    print_permissions(found, as_json=as_json)


@acl.command()
@click.argument("principal")
@click.argument("operation", metavar="OPERATION[,...]")
@click.argument("resource")
@click.option("--prefixed", is_flag=True, help="For every name that begins with the resource's name.")
@click.option("--deny", is_flag=True, help="Deny it, whatever else allows it.")
@click.option("--host", "hosts", multiple=True, metavar="ADDRESS", help="Only from this address. Repeatable.")
@broker_options
def add(
    principal: str,
    operation: str,
    resource: str,
    prefixed: bool,
    deny: bool,
    hosts: tuple[str, ...],
    **address: Any,
) -> None:
    """Allow PRINCIPAL to do OPERATION to RESOURCE.

    \b
    millrace acl add alice read,write topic:orders
    millrace acl add Role:ops all cluster
    millrace acl add 'User:*' read topic:public- --prefixed
    """
    from millrace.cli import broker_requests
    from millrace.cli.access import permissions, words
    from millrace.security.acls.binding import WILDCARD, Acl, PatternType, Permission
    from millrace.security.acls.explain import describe_acl

    kind, name = words.resource(resource)
    wanted = [
        Acl(
            kind,
            name,
            PatternType.PREFIXED if prefixed else PatternType.LITERAL,
            words.principal(principal),
            host,
            each,
            Permission.DENY if deny else Permission.ALLOW,
        )
        for each in words.operations(operation)
        for host in hosts or (WILDCARD,)
    ]
    with broker_requests.connected(BrokerAddress(**address)) as broker:
        outcomes = permissions.create(broker, wanted)
    failures = []
    for each, failure in zip(wanted, outcomes, strict=True):
        if failure is None:
            click.echo(describe_acl(each))
        else:
            failures.append(f"{describe_acl(each)}: {failure}")
    fail_with(failures)


@acl.command()
@_filter_options
@click.option("-y", "--yes", is_flag=True, help="Do not ask. (Without a terminal, nobody is asked.)")
@broker_options
def remove(yes: bool, **options: Any) -> None:
    """Remove the permissions that `millrace acl list` shows with the same options."""
    import sys

    from millrace.cli import broker_requests
    from millrace.cli.access import permissions
    from millrace.security.acls.explain import describe_acl
    from millrace.security.acls.filters import EVERYTHING

    wanted = _filter(options)
    if wanted == EVERYTHING:
        raise click.UsageError("say which: a RESOURCE, --principal or --operation")
    with broker_requests.connected(_address(options)) as broker:
        found = permissions.read(broker, wanted)
        if not found:
            log_line("no permission matches")
            return
        if not yes and sys.stdin.isatty():
            for each in found:
                click.echo(f"  {describe_acl(each)}", err=True)
            click.confirm(f"Remove {len(found)}?", abort=True, err=True)
        for each in permissions.delete(broker, found):
            click.echo(f"removed: {describe_acl(each)}")


@acl.command()
@click.argument("user")
@click.argument("operation")
@click.argument("resource")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="From where.")
@click.option(
    "--group", "groups", multiple=True, metavar="NAME", help="A group that their token or certificate names."
)
@json_option
@broker_options
def explain(
    user: str,
    operation: str,
    resource: str,
    host: str,
    groups: tuple[str, ...],
    as_json: bool,
    **address: Any,
) -> None:
    """Say whether USER may do OPERATION to RESOURCE, and which rule decides.

    \b
    millrace acl explain alice write topic:orders
    """
    from millrace.cli import broker_requests
    from millrace.cli.access import explanation, words
    from millrace.security.acls.explain import rule_text

    kind, name = words.resource(resource)
    (wish,) = words.operations(operation)[:1]
    with broker_requests.connected(BrokerAddress(**address)) as broker:
        rules = explanation.read_rules(broker, kind, name)
    found = rules.explain(words.principal(user), wish, kind, name, host=host, groups=groups)
    if as_json:
        print_json(
            {
                "principal": words.principal(user),
                "operation": words.shown(wish),
                "resource": resource,
                "host": host,
                "allowed": found.ruling.is_allowed,
                "rule": rule_text(found.ruling),
                "words": found.words,
                "notes": rules.notes,
            }
        )
        return
    for sentence in found.words:
        click.echo(sentence)
    for note in rules.notes:
        log_line(f"Note: {note}")


def print_permissions(found: list[Acl], *, as_json: bool) -> None:
    from millrace.cli.access import words

    if as_json:
        for each in found:
            print_json(
                {
                    "principal": each.principal,
                    "permission": words.shown(each.permission),
                    "operation": words.shown(each.operation),
                    "resource_type": words.shown(each.resource_type),
                    "resource": each.name,
                    "pattern": words.shown(each.pattern),
                    "host": each.host,
                }
            )
        return
    rows = [
        (
            each.principal,
            words.shown(each.permission),
            words.shown(each.operation),
            words.shown_resource(each),
            words.shown_host(each),
        )
        for each in found
    ]
    print_table(HEADINGS, rows)


def _address(options: dict[str, Any]) -> BrokerAddress:
    return BrokerAddress(**{name: options[name] for name in ("bootstrap", "command_config", "timeout_s")})


def _filter(options: dict[str, Any]) -> AclFilter:
    from millrace.cli.access import words
    from millrace.security.acls.binding import Operation, PatternType, Permission, ResourceType
    from millrace.security.acls.filters import AclFilter

    kind, name = ResourceType.ANY, None
    if options["resource"] is not None:
        kind, name = words.resource(options["resource"])
    elif options["pattern"] == "MATCH":
        raise click.UsageError("--matching needs a RESOURCE")
    principal, operation = options["principal"], options["operation"]
    return AclFilter(
        kind,
        name,
        PatternType[options["pattern"] or "ANY"],
        None if principal is None else words.principal(principal),
        options["host"],
        Operation.ANY if operation is None else words.operations(operation)[0],
        Permission[options["permission"] or "ANY"],
    )
