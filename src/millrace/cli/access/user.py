"""`millrace user`: who can log in by SCRAM, and by PLAIN with the same password."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from millrace.cli.options import BrokerAddress, broker_options, json_option
from millrace.cli.output import log_line, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millrace.cli.broker_requests import Connection
    from millrace.security.credentials.scram import ScramMechanism

_MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_DEFAULT: Final = "SCRAM-SHA-512"
_ITERATIONS: Final = (4_096, 16_384)
_password_option = click.option(
    "--password-file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    metavar="FILE",
    help="Where the password stands, `-` for standard input. [asks for it]",
)
_iterations_option = click.option(
    "--iterations",
    type=click.IntRange(*_ITERATIONS),
    default=_ITERATIONS[0],
    show_default=True,
    metavar="N",
    help="How often it is hashed.",
)


@click.group(help="Add and delete users, and change passwords.", no_args_is_help=True)
def user() -> None:
    pass


COMMAND: Final = user


@user.command("list")
@json_option
@broker_options
def list_(as_json: bool, **address: Any) -> None:
    """List users and the mechanisms that they can log in by."""
    from millrace.cli import broker_requests

    with broker_requests.connected(BrokerAddress(**address)) as broker:
        found = _credentials(broker, None)
    if as_json:
        for name, kinds in sorted(found.items()):
            print_json({"user": name, "credentials": [_document(*kind) for kind in kinds.items()]})
        return
    rows = [
        (name, mechanism, iterations)
        for name, kinds in sorted(found.items())
        for mechanism, iterations in sorted(kinds.items())
    ]
    print_table(("USER", "MECHANISM", "ITERATIONS"), rows, right=("ITERATIONS",))


@user.command()
@click.argument("name", metavar="USER")
@click.option(
    "--mechanism",
    "mechanisms",
    multiple=True,
    type=click.Choice(_MECHANISMS, case_sensitive=False),
    default=(_DEFAULT,),
    show_default=True,
    help="Repeatable.",
)
@_iterations_option
@_password_option
@broker_options
def add(
    name: str, mechanisms: tuple[str, ...], iterations: int, password_file: Path | None, **address: Any
) -> None:
    """Add a user. The password is asked for, or read from a file; the broker gets it salted and hashed."""
    from millrace.cli import broker_requests
    from millrace.cli.access import passwords
    from millrace.cli.clients import RequestFailed

    with broker_requests.connected(BrokerAddress(**address)) as broker:
        if name in _credentials(broker, [name]):
            raise RequestFailed(f"user {name} is there already; `millrace user passwd` changes the password")
        password = passwords.read_password(password_file, user=name)
        _alter(broker, name, passwords.salted(name, password, _named(mechanisms), iterations))
    click.echo(f"added user {name}")


@user.command()
@click.argument("name", metavar="USER")
@_iterations_option
@_password_option
@broker_options
def passwd(name: str, iterations: int, password_file: Path | None, **address: Any) -> None:
    """Change a password, for all mechanisms that the user has."""
    from millrace.cli import broker_requests
    from millrace.cli.access import passwords

    with broker_requests.connected(BrokerAddress(**address)) as broker:
        kinds = _required(broker, name)
        password = passwords.read_password(password_file, user=name)
        _alter(broker, name, passwords.salted(name, password, _named(sorted(kinds)), iterations))
    click.echo(f"changed the password of {name}")


@user.command()
@click.argument("name", metavar="USER")
@click.option(
    "--mechanism", type=click.Choice(_MECHANISMS, case_sensitive=False), help="Only the credential for this."
)
@broker_options
def delete(name: str, mechanism: str | None, **address: Any) -> None:
    """Delete a user's credentials. Permissions and roles of that name stay."""
    from millrace.cli import broker_requests

    with broker_requests.connected(BrokerAddress(**address)) as broker:
        kinds = [mechanism] if mechanism is not None else sorted(_required(broker, name))
        _alter(broker, name, deleted=_named(kinds))
    click.echo(f"deleted user {name}" if mechanism is None else f"deleted {mechanism} of {name}")


@user.command()
@click.argument("name", metavar="USER")
@json_option
@broker_options
def describe(name: str, as_json: bool, **address: Any) -> None:
    """Show how a user can log in, with roles and permissions."""
    from millrace.cli import broker_requests
    from millrace.cli.access import named_settings, permissions
    from millrace.cli.access.acl import print_permissions
    from millrace.cli.clients import RequestFailed
    from millrace.security.acls.explain import describe_acl
    from millrace.security.acls.filters import AclFilter
    from millrace.security.principals import user as user_principal

    whom = str(user_principal(name))
    with broker_requests.connected(BrokerAddress(**address)) as broker:
        kinds = _credentials(broker, [name]).get(name, {})
        try:
            granted = permissions.read(broker, AclFilter(principal=whom))
        except RequestFailed as error:
            log_line(f"Note: {error}")
            granted = []
        try:
            roles = [each.name for each in named_settings.read_roles(broker) if whom in each.members]
        except named_settings.NoSuchKind:
            roles = []
    if as_json:
        print_json(
            {
                "user": name,
                "credentials": [_document(*kind) for kind in sorted(kinds.items())],
                "roles": roles,
                "permissions": [describe_acl(each) for each in granted],
            }
        )
        return
    shown = ", ".join(f"{mechanism} ({times} iterations)" for mechanism, times in sorted(kinds.items()))
    click.echo(f"User:    {name}")
    click.echo(f"Logs in: {shown or 'not by a password that is stored here'}")
    click.echo(f"Roles:   {', '.join(roles) or 'none'}\n")
    print_permissions(granted, as_json=False)


def _credentials(broker: Connection, names: Sequence[str] | None) -> dict[str, dict[str, int]]:
    """The iterations by mechanism of these users, or of all; who has no credential is left out."""
    from millrace.cli.broker_requests import raise_for
    from millrace.security.credentials.scram import scram_mechanism
    from millrace.wire.api_keys import ApiKey
    from millrace.wire.error_codes import ErrorCode
    from millrace.wire.messages.describe_user_scram_credentials import (
        DescribeUserScramCredentialsRequest,
        UserName,
    )

    wanted = None if names is None else [UserName(name=name) for name in names]
    request = DescribeUserScramCredentialsRequest(users=wanted)
    answer = broker.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, request)
    raise_for(answer.error_code, "users", answer.error_message)
    found: dict[str, dict[str, int]] = {}
    for result in answer.results:
        if result.error_code == ErrorCode.RESOURCE_NOT_FOUND:
            continue
        raise_for(result.error_code, f"user {result.user}", result.error_message)
        for info in result.credential_infos:
            mechanism = scram_mechanism(info.mechanism)
            label = f"unknown ({info.mechanism})" if mechanism is None else mechanism.label
            found.setdefault(result.user, {})[label] = info.iterations
    return found


def _required(broker: Connection, name: str) -> dict[str, int]:
    from millrace.cli.clients import RequestFailed

    kinds = _credentials(broker, [name]).get(name)
    if kinds is None:
        raise RequestFailed(f"there is no user {name}; `millrace user add` makes one")
    return kinds


def _alter(
    broker: Connection, name: str, upserted: Sequence[Any] = (), deleted: Sequence[ScramMechanism] = ()
) -> None:
    from millrace.cli.broker_requests import raise_for
    from millrace.wire.api_keys import ApiKey
    from millrace.wire.messages.alter_user_scram_credentials import (
        AlterUserScramCredentialsRequest,
        ScramCredentialDeletion,
    )

    request = AlterUserScramCredentialsRequest(
        upsertions=list(upserted),
        deletions=[ScramCredentialDeletion(name=name, mechanism=each.value) for each in deleted],
    )
    for result in broker.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, request).results:
        raise_for(result.error_code, f"user {result.user}", result.error_message)


def _named(labels: Sequence[str]) -> list[ScramMechanism]:
    from millrace.security.credentials.scram import ScramMechanism

    wanted = dict.fromkeys(label.upper() for label in labels)
    return [mechanism for mechanism in ScramMechanism if mechanism.label in wanted]


def _document(mechanism: str, iterations: int) -> dict[str, object]:
    return {"mechanism": mechanism, "iterations": iterations}
