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
from millrace.metadata.config_definitions.refused import refused_settings
from millrace.metadata.config_definitions.tables import BROKER_SETTINGS, GROUP_OWN_SETTINGS, TOPIC_SETTINGS

_HEAD = """# Configuration

<!-- Made from the table in src/millrace/metadata/config_definitions by `make docs`. Do not edit. -->

A broker reads its settings from a TOML or `.properties` file (`--config`), from `--set name=value`, and from
variables such as `MILLRACE_LOG_RETENTION_MS` for `log.retention.ms`. The last of these that names a setting
wins. Names and defaults are Kafka's wherever the thing exists there; where a default differs, the reason is
given. An unknown name, or a value that is not allowed, stops the start with an error.

```toml
listeners = "PLAINTEXT://0.0.0.0:9092"
log.retention.hours = 24

# In quotes when another name goes on where this one ends, as max.connections.per.ip does.
"max.connections" = 5000
```

Settings marked *while running* also change on a running broker, with `millrace config alter` or any Kafka
tool: for one broker, or for all of them at once unless *for each broker* is said. A topic's own value wins
over that of its broker, that over the one for all brokers, and that over the file.

A listener may have its own value of every `ssl.` and `sasl.` setting and of `connections.max.reauth.ms`, as
`listener.name.<listener>.<setting>`, and one of its mechanisms, as
`listener.name.<listener>.<mechanism>.<setting>`; both names in lower case.
"""

_TOPIC_HEAD = """Every one of them can be changed while running. Without a value of its own, a topic takes
the first of the broker settings named under *default* that has one.
"""

_GROUP_HEAD = """Every one of them can be changed while running, also before the group exists. Without a value
of its own, a group takes that of the broker setting named under *default*.
"""

_WITHOUT_EFFECT_HEAD = """Kafka 4.3 knows these settings, and here they mean nothing. They are accepted from
files, with `--set` and from Kafka's tools, checked as Kafka checks them, and described with the value that
was set. A broker says at its start which of them were set.
"""

_REFUSED_HEAD = """To ignore these would leave something open that is to be shut, or break a promise in
silence. So they are errors, as is any name that Kafka does not know either.
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
        "## Settings of a group\n",
        _GROUP_HEAD,
        *_section(GROUP_OWN_SETTINGS.values()),
        "## Accepted, without effect\n",
        _WITHOUT_EFFECT_HEAD,
        *_without_effect("broker", BROKER_SETTINGS.values()),
        *_without_effect("topic", TOPIC_SETTINGS.values()),
        "## Settings of Kafka that are refused\n",
        _REFUSED_HEAD,
        "| setting | why |",
        "|---|---|",
        *(f"| `{name}` | {reason} |" for name, reason in refused_settings()),
    ]
    return "\n".join(lines) + "\n"


def _section(settings: Iterable[Setting]) -> Iterator[str]:
    for setting in settings:
        if setting.internal or setting.without_effect:
            continue
        yield f"### `{setting.name}`\n"
        yield f"{setting.doc}\n"
        is_own = _is_own(setting)
        kind = f"{setting.type.name.lower()}, {setting.importance.value} importance"
        yield f"- {kind}; allowed: {setting.allowed()}"
        yield f"- default: {_default(setting, is_own=is_own)}"
        if setting.deviates:
            yield f"- unlike Kafka: {setting.deviates}"
        if not is_own:
            yield f"- changes: {_UPDATE_WORDS[setting.update]}"
        yield ""


def _without_effect(kind: str, settings: Iterable[Setting]) -> Iterator[str]:
    yield f"| setting of a {kind} | type, default | allowed | why it has no effect |"
    yield "|---|---|---|---|"
    for setting in settings:
        if setting.without_effect:
            columns = (
                f"`{setting.name}`",
                f"{setting.type.name.lower()}, {_shown(setting.default)}",
                setting.allowed(),
                setting.without_effect,
            )
            yield f"| {' | '.join(columns)} |"
    yield ""


def _is_own(setting: Setting) -> bool:
    """Whether a topic or a group sets it for itself."""
    return any(table.get(setting.name) is setting for table in (TOPIC_SETTINGS, GROUP_OWN_SETTINGS))


def _default(setting: Setting, *, is_own: bool) -> str:
    value = _shown(setting.default)
    if not is_own or not setting.synonyms:
        return value
    return f"{value}, from " + ", ".join(f"`{synonym.name}`" for synonym in setting.synonyms)


def _shown(value: Value) -> str:
    if value is None:
        return "none"
    text = format_value(value)
    if value in (INT_MAX, LONG_MAX) or (isinstance(value, float) and value > LONG_MAX):
        return f"`{text}` (no limit)"
    return f"`{text}`" if text else "empty"
