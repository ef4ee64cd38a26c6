"""The reference page of all settings, made from the table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from millrace.metadata.config_definitions.model import (
    INT_MAX,
    LONG_MAX,
    Setting,
    UpdateMode,
    Value,
    format_value,
)
from millrace.metadata.config_definitions.tables import BROKER_SETTINGS, KAFKA_ONLY, TOPIC_SETTINGS

_HEAD = """# Configuration

<!-- Made from the table in src/millrace/metadata/config_definitions by `make docs`. Do not edit. -->

A broker reads its settings from a TOML or `.properties` file (`--config`), from `--set name=value`, and from
variables such as `MILLRACE_LOG_RETENTION_MS` for `log.retention.ms`. A later one of these is stronger. Names
and defaults are Kafka's wherever the thing exists there; where a default differs, the reason is given. A
name that nobody knows and a value that is not allowed end the start with an error.

```toml
listeners = "PLAINTEXT://0.0.0.0:9092"
log.retention.hours = 24

# In quotes when another name goes on where this one ends, as max.connections.per.ip does.
"max.connections" = 5000
```

Settings marked *while running* also change on a running broker, with `millrace config alter` or any Kafka
tool: for one broker, or for all of them at once unless *for each broker* is said. What is set for a topic
counts before what is set for its broker, that before what is set for all brokers, and that before the file.
"""

_TOPIC_HEAD = """Every one of them can be changed while running. Without a value of its own, a topic takes
the first of the broker settings named under *default* that has one.
"""

_UPDATE_WORDS = {
    UpdateMode.READ_ONLY: "only by a restart",
    UpdateMode.PER_BROKER: "while running, for each broker",
    UpdateMode.CLUSTER_WIDE: "while running",
}


def render_markdown() -> str:
    """The whole page."""
    lines = [
        _HEAD,
        "## Settings of a broker\n",
        *_section(BROKER_SETTINGS.values()),
        "## Settings of a topic\n",
        _TOPIC_HEAD,
        *_section(TOPIC_SETTINGS.values()),
        "## Settings of Kafka without meaning here\n",
        "| setting | why |",
        "|---|---|",
        *(f"| `{name}` | {reason} |" for name, reason in KAFKA_ONLY.items()),
    ]
    return "\n".join(lines) + "\n"


def _section(settings: Iterable[Setting]) -> Iterator[str]:
    for setting in settings:
        if setting.internal:
            continue
        yield f"### `{setting.name}`\n"
        yield f"{setting.doc}\n"
        is_topic = setting.name in TOPIC_SETTINGS and TOPIC_SETTINGS[setting.name] is setting
        kind = f"{setting.type.name.lower()}, {setting.importance.value} importance"
        yield f"- {kind}; allowed: {setting.allowed()}"
        yield f"- default: {_default(setting, is_topic=is_topic)}"
        if setting.deviates:
            yield f"- unlike Kafka: {setting.deviates}"
        if not is_topic:
            yield f"- changes: {_UPDATE_WORDS[setting.update]}"
        yield ""


def _default(setting: Setting, *, is_topic: bool) -> str:
    value = _shown(setting.default)
    if not is_topic:
        return value
    return f"{value}, from " + ", ".join(f"`{synonym.name}`" for synonym in setting.synonyms)


def _shown(value: Value) -> str:
    if value is None:
        return "none"
    text = format_value(value)
    if value in (INT_MAX, LONG_MAX) or (isinstance(value, float) and value > LONG_MAX):
        return f"`{text}` (no limit)"
    return f"`{text}`" if text else "empty"
