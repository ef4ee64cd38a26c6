"""`millrace config`: explain every setting, show those of a running broker or topic, change them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import click

from millrace.cli.options import BrokerAddress, broker_options, json_option, key_values
from millrace.cli.output import print_json, print_table

if TYPE_CHECKING:
    from confluent_kafka.admin import ConfigResource

    from millrace.metadata.config_definitions import Setting


@click.group(help="Explain, show and change settings.", no_args_is_help=True)
def config() -> None:
    pass


COMMAND: Final = config
_UPDATE_WORDS: Final = {
    "read-only": "only by a restart",
    "per-broker": "while running, for each broker",
    "cluster-wide": "while running",
}


@config.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--topic", "only_topic", is_flag=True, help="Only the settings of topics.")
@click.option("--broker", "only_broker", is_flag=True, help="Only the settings of brokers.")
@click.option("--markdown", is_flag=True, help="Print the whole reference as a Markdown page.")
@json_option
def docs(names: tuple[str, ...], only_topic: bool, only_broker: bool, markdown: bool, as_json: bool) -> None:
    """Explain all settings, or those whose name contains one of the NAMEs."""
    if markdown:
        if names or only_topic or only_broker or as_json:
            raise click.UsageError("--markdown prints everything and goes with no other option")
        from millrace.metadata.config_definitions.markdown import render_markdown

        click.echo(render_markdown(), nl=False)
        return
    from millrace.metadata.config_definitions import BROKER_SETTINGS, TOPIC_SETTINGS

    scopes = (("broker", BROKER_SETTINGS, only_topic), ("topic", TOPIC_SETTINGS, only_broker))
    wanted = {
        scope: _matching(settings.values(), names) for scope, settings, left_out in scopes if not left_out
    }
    if not any(wanted.values()):
        raise click.ClickException(
            f"no setting is called {' or '.join(names)}" if names else "nothing to explain"
        )
    for scope, settings in wanted.items():
        for setting in settings:
            if as_json:
                print_json({"scope": scope} | _explanation(setting))
            else:
                _print_explanation(scope, setting)


@config.command()
@click.option("--topic", "topic_name", metavar="NAME", help="The settings of this topic.")
@click.option("--group", "group_name", metavar="NAME", help="The settings of this group.")
@click.option("--broker", "broker_id", type=int, metavar="ID", help="The settings of this broker.")
@click.option("--all", "show_all", is_flag=True, help="Also show settings at their default.")
@json_option
@broker_options
def describe(
    topic_name: str | None,
    group_name: str | None,
    broker_id: int | None,
    show_all: bool,
    as_json: bool,
    **address: Any,
) -> None:
    """Show the settings of a topic, group or broker, and where each value comes from."""
    from millrace.cli import clients, settings

    resource = _resource(topic_name, group_name, broker_id)
    broker = BrokerAddress(**address)
    entries = settings.describe(clients.admin_client(broker), broker, resource)
    shown = [entry for entry in entries if show_all or entry.source != settings.DEFAULT_SOURCE]
    if as_json:
        for entry in shown:
            print_json(
                {
                    "name": entry.name,
                    "value": entry.value,
                    "source": entry.source,
                    "read_only": entry.read_only,
                    "sensitive": entry.sensitive,
                }
            )
    elif not shown:
        click.echo("all settings are at their defaults; --all shows them")
    else:
        rows = [(entry.name, "(hidden)" if entry.sensitive else entry.value, entry.source) for entry in shown]
        print_table(("SETTING", "VALUE", "SOURCE"), rows)


@config.command()
@click.option("--topic", "topic_name", metavar="NAME", help="Change this topic.")
@click.option("--group", "group_name", metavar="NAME", help="Change this group.")
@click.option("--broker", "broker_id", type=int, metavar="ID", help="Change this broker.")
@click.option("-s", "--set", "changes", multiple=True, metavar="KEY=VALUE", help="Set a setting. Repeatable.")
@click.option(
    "-d", "--delete", "deleted", multiple=True, metavar="KEY", help="Reset to its default. Repeatable."
)
@broker_options
def alter(
    topic_name: str | None,
    group_name: str | None,
    broker_id: int | None,
    changes: tuple[str, ...],
    deleted: tuple[str, ...],
    **address: Any,
) -> None:
    """Change settings of a topic, group or broker while it runs."""
    from millrace.cli import clients, settings

    wanted = key_values(changes, option="--set")
    if not wanted and not deleted:
        raise click.UsageError("nothing to change: give --set or --delete")
    resource = _resource(topic_name, group_name, broker_id)
    broker = BrokerAddress(**address)
    settings.alter(clients.admin_client(broker), broker, resource, wanted, deleted)
    click.echo(f"changed the settings of {_name_of(topic_name, group_name, broker_id)}")


def _resource(topic_name: str | None, group_name: str | None, broker_id: int | None) -> ConfigResource:
    from millrace.cli import settings

    if [topic_name, group_name, broker_id].count(None) != 2:
        raise click.UsageError("give one of --topic NAME, --group NAME and --broker ID")
    if topic_name is not None:
        return settings.topic_resource(topic_name)
    if group_name is not None:
        return settings.group_resource(group_name)
    assert broker_id is not None
    return settings.broker_resource(broker_id)


def _name_of(topic_name: str | None, group_name: str | None, broker_id: int | None) -> str:
    if topic_name is not None:
        return f"topic {topic_name}"
    return f"broker {broker_id}" if group_name is None else f"group {group_name}"


def _matching(settings: Iterable[Setting], names: tuple[str, ...]) -> list[Setting]:
    """The settings to explain; those that have no effect here only by their whole name, as there are many."""
    return [
        setting
        for setting in settings
        if not setting.internal
        and (not names or any(name in setting.name for name in names))
        and (not setting.without_effect or setting.name in names)
    ]


def _explanation(setting: Setting) -> dict[str, object]:
    from millrace.metadata.config_definitions import format_value

    return {
        "name": setting.name,
        "type": setting.type.name.lower(),
        "default": format_value(setting.default),
        "allowed": setting.allowed(),
        "update": setting.update.value,
        "importance": setting.importance.value,
        "doc": setting.doc,
    }


def _print_explanation(scope: str, setting: Setting) -> None:
    explanation = _explanation(setting)
    default = explanation["default"]
    shown = "none" if default is None else default or '""'
    click.secho(setting.name, bold=True)
    click.echo(click.wrap_text(setting.doc, width=96, initial_indent="    ", subsequent_indent="    "))
    click.echo(
        f"    {scope} setting, {explanation['type']}, default {shown}; allowed: {explanation['allowed']}"
    )
    click.echo(f"    can be changed: {_UPDATE_WORDS[setting.update.value]}\n")
