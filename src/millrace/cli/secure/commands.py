"""`millrace secure`: everything that a secured broker and its clients need, in one go."""

from __future__ import annotations

import os
import re
import secrets
import socket
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from millrace.cli.secure.certificates import Pair
    from millrace.cli.secure.settings_files import Login, Place

DEFAULT_LISTEN: Final = "127.0.0.1:9092"
PASSWORD_BYTES: Final = 24
_LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
_EVERYWHERE: Final = ("", "0.0.0.0", "[::]")
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,60}")
_made_directory = click.argument(
    "directory", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR"
)
_hosts_option = click.option(
    "--host", "hosts", multiple=True, metavar="NAME", help="A name or address of the broker. Repeatable."
)
_days_option = click.option(
    "--days", type=click.IntRange(min=1), default=365, show_default=True, help="How long it counts."
)


@click.group(help="Make certificates, users and settings for secured brokers.", no_args_is_help=True)
def secure() -> None:
    pass


COMMAND: Final = secure


@secure.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), metavar="DIR")
@_hosts_option
@click.option(
    "-l",
    "--listen",
    default=DEFAULT_LISTEN,
    show_default=True,
    metavar="HOST:PORT",
    help="Where the broker listens. An empty host means all interfaces.",
)
@click.option("--user", default="admin", show_default=True, help="The first user, who may do everything.")
@click.option(
    "-d",
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where messages go. [DIR/data]",
)
@_days_option
def init(
    directory: Path, hosts: tuple[str, ...], listen: str, user: str, data_dir: Path | None, days: int
) -> None:
    """Make an authority, a broker's certificate, a first user, and all settings, in DIR.

    Nobody but you can read the files. The password of the first user is made up, and stands in the files for
    clients alone.
    """
    from millrace.cli.secure import certificates
    from millrace.cli.secure.settings_files import BROKER_USER, Place

    certificates.require_package()
    if not _NAME.fullmatch(user) or user == BROKER_USER:
        raise click.BadParameter(f"must be letters, digits, `.`, `_`, `-`, and not {BROKER_USER}")
    place = Place(
        directory=directory.resolve(),
        listen=listen,
        advertised=_advertised(listen, hosts),
        data=(data_dir or directory / "data").resolve(),
    )
    make_all(place, user, _all_hosts(hosts, listen), days)
    _tell(directory, user)


def make_all(place: Place, user: str, hosts: Sequence[str], days: int) -> None:
    """The authority, the broker's certificate for these hosts, the users and all settings."""
    from millrace.cli.secure import certificates, settings_files
    from millrace.cli.secure.settings_files import BROKER_USER, Login

    certificates.require_package()
    _make_directory(place.directory)
    now = _now()
    authority = certificates.make_authority("Millrace authority", now)
    broker = certificates.make_certificate(authority, BROKER_USER, list(hosts), now, days)
    admin, between = (Login(name, secrets.token_urlsafe(PASSWORD_BYTES)) for name in (user, BROKER_USER))
    _write(place.authority, authority.certificate)
    _write(place.authority_key, authority.key)
    _write(place.broker_store, broker.together)
    _write(place.first_users, _first_users(admin, between))
    texts = {
        "broker.toml": settings_files.broker_settings(
            place, user, between, secrets.token_urlsafe(PASSWORD_BYTES)
        ),
        "client.properties": settings_files.java_properties(place, admin),
        "client.librdkafka.properties": settings_files.librdkafka_properties(place, admin),
        "client.spark.json": settings_files.spark_options(place, admin),
    }
    for name, text in texts.items():
        _write(place.directory / name, text.encode())


@secure.group(help="Renew certificates, and make them for clients.", no_args_is_help=True)
def cert() -> None:
    pass


@cert.command()
@_made_directory
@_hosts_option
@_days_option
def renew(directory: Path, hosts: tuple[str, ...], days: int) -> None:
    """Make a new broker certificate, from the same authority, for the same hosts and those given.

    A broker that runs takes it within ten seconds, and drops no connection.
    """
    from millrace.cli.secure import certificates
    from millrace.cli.secure.settings_files import BROKER_USER

    certificates.require_package()
    store = directory / "broker.pem"
    known = certificates.hosts_of(_read(store))
    made = certificates.make_certificate(_authority(directory), BROKER_USER, [*known, *hosts], _now(), days)
    new = directory / ".broker.pem.new"
    new.unlink(missing_ok=True)
    _write(new, made.together)
    # In one step: a broker may look at the file at any moment.
    new.replace(store)
    click.echo(f"renewed {store}: {days} days, for {', '.join(dict.fromkeys([*known, *hosts]))}")


@cert.command()
@_made_directory
@click.argument("name")
@_days_option
def client(directory: Path, name: str, days: int) -> None:
    """Make a certificate for a client, with NAME in it, for listeners with ssl.client.auth.

    Its principal is User:CN=NAME, unless ssl.principal.mapping.rules say otherwise.
    """
    from millrace.cli.secure import certificates

    certificates.require_package()
    if not _NAME.fullmatch(name):
        raise click.BadParameter("must be letters, digits, `.`, `_`, `-`", param_hint="'NAME'")
    made = certificates.make_certificate(_authority(directory), name, (), _now(), days)
    file = directory / f"client-{name}.pem"
    _write(file, made.together)
    click.echo(
        f"wrote {file}: give it as ssl.keystore.location, or ssl.certificate.location and ssl.key.location"
    )


def _advertised(listen: str, hosts: tuple[str, ...]) -> str:
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) <= 65535:
        raise click.BadParameter(f"{listen!r} is not of the form HOST:PORT", param_hint="'--listen'")
    if host not in _EVERYWHERE:
        return listen
    name = hosts[0] if hosts else socket.gethostname()
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def _all_hosts(hosts: tuple[str, ...], listen: str) -> list[str]:
    """Under all of these the broker may be reached."""
    own = listen.rpartition(":")[0]
    named = () if own in _EVERYWHERE else (own.strip("[]"),)
    return list(dict.fromkeys((*hosts, *named, *_LOCAL_HOSTS, socket.gethostname())))


def _first_users(*logins: Login) -> bytes:
    from millrace.security.credentials.first_users import render_first_users
    from millrace.security.credentials.scram import ITERATIONS_MIN, ScramMechanism, derive_credential

    mechanism = ScramMechanism.SHA_512
    users = {
        login.user: {
            mechanism: derive_credential(
                mechanism,
                login.password,
                salt=secrets.token_hex(16).encode(),
                iterations=ITERATIONS_MIN,
            )
        }
        for login in logins
    }
    return render_first_users(users).encode()


def _authority(directory: Path) -> Pair:
    from millrace.cli.secure.certificates import Pair

    return Pair(_read(directory / "ca.pem"), _read(directory / "ca-key.pem"))


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise click.ClickException(f"{file}: is not there; `millrace secure init` makes it") from None


def _make_directory(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    if any(directory.iterdir()):
        raise click.ClickException(f"{directory}: is not empty, and nothing in it is overwritten")
    directory.chmod(0o700)


def _write(file: Path, content: bytes) -> None:
    """A new file for its owner alone, from its first moment on."""
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise click.ClickException(f"{file}: is there already") from None
    with os.fdopen(handle, "wb") as stream:
        stream.write(content)


def _now() -> datetime:
    return datetime.fromtimestamp(time.time(), UTC)


def _tell(directory: Path, user: str) -> None:
    click.echo(f"""\
Made an authority, a certificate and the user {user} in {directory}.
Keep ca-key.pem elsewhere: whoever has it can pose as the broker.

Start the broker:
  millrace serve --config {directory}/broker.toml

In another terminal:
  export MILLRACE_CLIENT_CONFIG={directory}/client.properties
  millrace topic create orders
  millrace user add alice
  millrace acl add alice read,write topic:orders
  millrace acl explain alice write topic:orders

Other clients: {directory}/client.librdkafka.properties (librdkafka, kcat -F), client.properties (Java), and
client.spark.json (options of the Spark source and sink). They log in as {user}, who may do everything: make
users of their own for your programs.""")
