"""`millrace token`: delegation tokens, with which work that is spread over machines logs in for somebody.

The secret of a token is written into a file that only its owner can read, and read from there again: it is
never printed, and never an argument.
"""

from __future__ import annotations

import base64
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from millrace.cli.moments import parse_duration_ms
from millrace.cli.options import BrokerAddress, broker_options, json_option
from millrace.cli.output import print_json, print_table

if TYPE_CHECKING:
    from millrace.cli.broker_requests import Connection

_PERIOD: Final = "1h, 30m, 7d"
_token_file = click.argument(
    "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE"
)


@click.group(help="Create, list, renew and end delegation tokens.", no_args_is_help=True)
def token() -> None:
    pass


COMMAND: Final = token


@token.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE")
@click.option("--owner", metavar="PRINCIPAL", help="For whom it is. [whoever asks]")
@click.option(
    "--renewer", "renewers", multiple=True, metavar="PRINCIPAL", help="Who may renew it. Repeatable."
)
@click.option("--max-lifetime", metavar="TIME", help=f"How long it may be renewed: {_PERIOD}. [the broker's]")
@json_option
@broker_options
def create(
    file: Path,
    owner: str | None,
    renewers: tuple[str, ...],
    max_lifetime: str | None,
    as_json: bool,
    **address: Any,
) -> None:
    """Create a token, and write the client properties that log in with it to FILE."""
    from millrace.cli import broker_requests
    from millrace.cli.access import words
    from millrace.security.principals import parse_principal
    from millrace.wire.api_keys import ApiKey
    from millrace.wire.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest

    if file.exists():
        raise click.ClickException(f"{file}: is there already")
    whom = None if owner is None else parse_principal(words.principal(owner))
    given = [parse_principal(words.principal(each)) for each in renewers]
    request = CreateDelegationTokenRequest(
        owner_principal_type=None if whom is None else whom.kind,
        owner_principal_name=None if whom is None else whom.name,
        renewers=[CreatableRenewers(principal_type=each.kind, principal_name=each.name) for each in given],
        max_lifetime_ms=_period_ms(max_lifetime),
    )
    with broker_requests.connected(BrokerAddress(**address)) as broker:
        answer = broker.ask(ApiKey.CREATE_DELEGATION_TOKEN, 3, request)
    broker_requests.raise_for(answer.error_code, "token")
    write_secret(file, token_properties(answer.token_id, answer.hmac))
    document = {
        "token_id": answer.token_id,
        "owner": f"{answer.principal_type}:{answer.principal_name}",
        "expires": _moment(answer.expiry_timestamp_ms),
        "ends": _moment(answer.max_timestamp_ms),
        "file": str(file),
    }
    if as_json:
        print_json(document)
    else:
        click.echo(f"created token {document['token_id']} of {document['owner']}: {file}")
        click.echo(f"it expires at {document['expires']}, and can be renewed until {document['ends']}")


@token.command("list")
@click.option("--owner", "owners", multiple=True, metavar="PRINCIPAL", help="Only of these. Repeatable.")
@json_option
@broker_options
def list_(owners: tuple[str, ...], as_json: bool, **address: Any) -> None:
    """List tokens that you own or may renew, and others that you may see."""
    from millrace.cli import broker_requests
    from millrace.cli.access import words
    from millrace.security.principals import parse_principal
    from millrace.wire.api_keys import ApiKey
    from millrace.wire.messages.describe_delegation_token import (
        DescribeDelegationTokenOwner,
        DescribeDelegationTokenRequest,
    )

    given = [parse_principal(words.principal(each)) for each in owners]
    wanted = [
        DescribeDelegationTokenOwner(principal_type=each.kind, principal_name=each.name) for each in given
    ]
    with broker_requests.connected(BrokerAddress(**address)) as broker:
        request = DescribeDelegationTokenRequest(owners=wanted or None)
        answer = broker.ask(ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, request)
    broker_requests.raise_for(answer.error_code, "tokens")
    found = [
        {
            "token_id": each.token_id,
            "owner": f"{each.principal_type}:{each.principal_name}",
            "renewers": [f"{one.principal_type}:{one.principal_name}" for one in each.renewers],
            "issued": _moment(each.issue_timestamp),
            "expires": _moment(each.expiry_timestamp),
            "ends": _moment(each.max_timestamp),
        }
        for each in sorted(answer.tokens, key=lambda each: int(each.expiry_timestamp))
    ]
    if as_json:
        for document in found:
            print_json(document)
        return
    rows = [
        (each["token_id"], each["owner"], ", ".join(each["renewers"]), each["expires"], each["ends"])
        for each in found
    ]
    print_table(("TOKEN", "OWNER", "RENEWERS", "EXPIRES", "ENDS"), rows)


@token.command()
@_token_file
@click.option("--for", "period", metavar="TIME", help=f"How long from now: {_PERIOD}. [the broker's]")
@broker_options
def renew(file: Path, period: str | None, **address: Any) -> None:
    """Renew the token in FILE."""
    from millrace.cli import broker_requests
    from millrace.wire.api_keys import ApiKey
    from millrace.wire.messages.renew_delegation_token import RenewDelegationTokenRequest

    hmac = token_hmac(file)
    period_ms = _period_ms(period)
    with broker_requests.connected(BrokerAddress(**address)) as broker:
        request = RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms)
        _report(broker, ApiKey.RENEW_DELEGATION_TOKEN, request, file)


@token.command()
@_token_file
@click.option("--in", "period", metavar="TIME", help=f"After this time: {_PERIOD}. [at once]")
@broker_options
def expire(file: Path, period: str | None, **address: Any) -> None:
    """End the token in FILE. The file stays."""
    from millrace.cli import broker_requests
    from millrace.wire.api_keys import ApiKey
    from millrace.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest

    hmac = token_hmac(file)
    period_ms = _period_ms(period)
    with broker_requests.connected(BrokerAddress(**address)) as broker:
        request = ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms)
        _report(broker, ApiKey.EXPIRE_DELEGATION_TOKEN, request, file)


def token_properties(token_id: str, hmac: bytes) -> str:
    """How Java's clients, and our own connections, log in with a token."""
    password = base64.b64encode(hmac).decode()
    return (
        "sasl.mechanism=SCRAM-SHA-512\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{token_id}" password="{password}" tokenauth="true";\n'
    )


def token_hmac(file: Path) -> bytes:
    """The secret of the token in a file; no message shows it."""
    from millrace.core.properties import parse_properties
    from millrace.security.credentials.jaas import parse_jaas_config
    from millrace.security.errors import InvalidJaasConfig

    try:
        given = parse_properties(file.read_text(encoding="utf-8"))["sasl.jaas.config"]
        return base64.b64decode(parse_jaas_config(given).options["password"], validate=True)
    except (KeyError, ValueError, InvalidJaasConfig):
        raise click.ClickException(f"{file}: is no file of `millrace token create`") from None


def write_secret(file: Path, content: str) -> None:
    """Write a new file that only its owner can read. One that is there is not touched."""
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise click.ClickException(f"{file}: is there already") from None
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(content)


def _report(broker: Connection, key: int, request: object, file: Path) -> None:
    from millrace.cli.broker_requests import raise_for

    answer = broker.ask(key, 2, request)
    raise_for(answer.error_code, f"the token in {file}")
    click.echo(f"the token in {file} expires at {_moment(answer.expiry_timestamp_ms)}")


def _period_ms(text: str | None) -> int:
    """-1 leaves it to the broker."""
    if text is None:
        return -1
    period_ms = parse_duration_ms(text)
    if period_ms <= 0:
        raise click.BadParameter(f"{text!r} is no time such as {_PERIOD}")
    return period_ms


def _moment(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
