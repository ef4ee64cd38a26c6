"""`millrace topic`: create, list, describe, alter and delete topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from millrace.cli.options import BrokerAddress, broker_options, json_option, key_values
from millrace.cli.output import log_line, print_json, print_table

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, TopicMetadata


@click.group(help="Create, list, describe, alter and delete topics.", no_args_is_help=True)
def topic() -> None:
    pass


COMMAND: Final = topic


@topic.command()
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...")
@click.option(
    "-p",
    "--partitions",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of partitions [the broker's default].",
)
@click.option(
    "-r",
    "--replication-factor",
    type=click.IntRange(min=1),
    metavar="N",
    help="Replicas of each partition [the broker's default].",
)
@click.option(
    "-c", "--config", "configs", multiple=True, metavar="KEY=VALUE", help="A topic setting. Repeatable."
)
@click.option("--if-not-exists", is_flag=True, help="A topic that is there already is no error.")
@broker_options
def create(
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    **address: Any,
) -> None:
    """Create topics."""
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import NewTopic

    from millrace.cli import clients

    settings = key_values(configs, option="--config")
    broker = BrokerAddress(**address)
    wanted = [
        NewTopic(
            name,
            num_partitions=partitions or -1,
            replication_factor=replication_factor or -1,
            config=dict(settings),
        )
        for name in dict.fromkeys(names)
    ]
    admin = clients.admin_client(broker)

    def failure(name: str, error: clients.RequestFailed) -> str | None:
        if if_not_exists and clients.error_code(error) == KafkaError.TOPIC_ALREADY_EXISTS:
            log_line(f"{name}: is there already")
            return None
        return str(error)

    futures = admin.create_topics(wanted, operation_timeout=broker.timeout_s)
    clients.report_each(futures, broker, done="created", failure=failure)


@topic.command("list")
@click.option("--internal", is_flag=True, help="Also topics that the broker keeps for itself.")
@json_option
@broker_options
def list_topics(internal: bool, as_json: bool, **address: Any) -> None:
    """List topics."""
    from millrace.cli import clients

    broker = BrokerAddress(**address)
    metadata = clients.cluster_metadata(clients.admin_client(broker), broker)
    rows = [
        (name, len(found.partitions), _replication_factor(found))
        for name, found in sorted(metadata.topics.items())
        if internal or not name.startswith("__")
    ]
    if as_json:
        for name, partitions, replicas in rows:
            print_json({"topic": name, "partitions": partitions, "replication_factor": replicas})
    else:
        print_table(("TOPIC", "PARTITIONS", "REPLICAS"), rows, right=("PARTITIONS", "REPLICAS"))


@topic.command()
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...")
@json_option
@broker_options
def describe(names: tuple[str, ...], as_json: bool, **address: Any) -> None:
    """Show partitions, offsets and settings of topics."""
    from millrace.cli import clients

    broker = BrokerAddress(**address)
    admin = clients.admin_client(broker)
    metadata = clients.cluster_metadata(admin, broker)
    unknown = [name for name in names if name not in metadata.topics]
    if unknown:
        raise click.ClickException(f"no such topic: {', '.join(unknown)}")
    for position, name in enumerate(names):
        description = _describe_topic(admin, broker, metadata.topics[name])
        if as_json:
            print_json(description)
        else:
            if position:
                click.echo()
            _print_description(description)


@topic.command()
@click.argument("name", metavar="TOPIC")
@click.option(
    "-p",
    "--partitions",
    type=click.IntRange(min=1),
    metavar="N",
    help="New number of partitions; it can only grow.",
)
@click.option(
    "-c", "--config", "configs", multiple=True, metavar="KEY=VALUE", help="Set a setting. Repeatable."
)
@click.option(
    "--delete-config", "deleted", multiple=True, metavar="KEY", help="Reset to its default. Repeatable."
)
@broker_options
def alter(
    name: str, partitions: int | None, configs: tuple[str, ...], deleted: tuple[str, ...], **address: Any
) -> None:
    """Add partitions to a topic or change its settings."""
    from confluent_kafka.admin import NewPartitions

    from millrace.cli import clients, settings

    changes = key_values(configs, option="--config")
    if partitions is None and not changes and not deleted:
        raise click.UsageError("nothing to change: give --partitions, --config or --delete-config")
    broker = BrokerAddress(**address)
    admin = clients.admin_client(broker)
    if partitions is not None:
        future = admin.create_partitions([NewPartitions(name, partitions)])[name]
        clients.answer_of(future, broker, subject=name)
        click.echo(f"{name} has {partitions} partitions")
    if changes or deleted:
        settings.alter(admin, broker, settings.topic_resource(name), changes, deleted)
        click.echo(f"changed the settings of {name}")


@topic.command()
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...")
@click.option("-y", "--yes", is_flag=True, help="Do not ask. (Without a terminal, nobody is asked.)")
@click.option("--if-exists", is_flag=True, help="A topic that is not there is no error.")
@broker_options
def delete(names: tuple[str, ...], yes: bool, if_exists: bool, **address: Any) -> None:
    """Delete topics with all their messages."""
    from confluent_kafka import KafkaError

    from millrace.cli import clients
    from millrace.cli.deletion import delete_each

    broker = BrokerAddress(**address)
    admin = clients.admin_client(broker)
    delete_each(
        names,
        lambda wanted: admin.delete_topics(wanted, operation_timeout=broker.timeout_s),
        broker,
        contents="messages",
        must_ask=not yes,
        ignored_code=KafkaError.UNKNOWN_TOPIC_OR_PART if if_exists else None,
    )


def _replication_factor(found: TopicMetadata) -> int:
    return max((len(partition.replicas) for partition in found.partitions.values()), default=0)


def _describe_topic(admin: AdminClient, broker: BrokerAddress, found: TopicMetadata) -> dict[str, Any]:
    from confluent_kafka import TopicCollection, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    from millrace.cli import clients, settings

    name = str(found.topic)
    partitions = [found.partitions[number] for number in sorted(found.partitions)]
    with_leader = [TopicPartition(name, each.id) for each in partitions if each.leader >= 0]
    bounds: dict[str, dict[int, int]] = {}
    for bound, spec in (("start", OffsetSpec.earliest()), ("end", OffsetSpec.latest())):
        futures = admin.list_offsets(dict.fromkeys(with_leader, spec)) if with_leader else {}
        bounds[bound] = {
            key.partition: clients.answer_of(future, broker, subject=name).offset
            for key, future in futures.items()
        }
    about = admin.describe_topics(TopicCollection([name]))[name]
    topic_id = clients.answer_of(about, broker, subject=name).topic_id
    entries = settings.describe(admin, broker, settings.topic_resource(name))
    return {
        "topic": name,
        "topic_id": str(topic_id),
        "replication_factor": _replication_factor(found),
        "configs": {entry.name: entry.value for entry in entries if entry.source == "DYNAMIC_TOPIC"},
        "partitions": [
            {
                "partition": each.id,
                "leader": each.leader if each.leader >= 0 else None,
                "replicas": list(each.replicas),
                "isr": list(each.isrs),
                "start_offset": bounds["start"].get(each.id),
                "end_offset": bounds["end"].get(each.id),
            }
            for each in partitions
        ],
    }


def _print_description(description: dict[str, Any]) -> None:
    configs = (
        ", ".join(f"{key}={value}" for key, value in description["configs"].items())
        or "all at their defaults"
    )
    click.echo(f"Topic:     {description['topic']}")
    click.echo(f"Id:        {description['topic_id']}")
    click.echo(f"Replicas:  {description['replication_factor']}")
    click.echo(f"Settings:  {configs}")
    numbers = ("PARTITION", "LEADER", "START", "END", "MESSAGES")
    rows = [
        (
            each["partition"],
            "none" if each["leader"] is None else each["leader"],
            ",".join(map(str, each["replicas"])),
            ",".join(map(str, each["isr"])),
            each["start_offset"],
            each["end_offset"],
            None if each["end_offset"] is None else each["end_offset"] - each["start_offset"],
        )
        for each in description["partitions"]
    ]
    print_table(("PARTITION", "LEADER", "REPLICAS", "ISR", "START", "END", "MESSAGES"), rows, right=numbers)
