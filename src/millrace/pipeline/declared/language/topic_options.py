"""What a declared topic means in the options of the data source `millrace`."""

from __future__ import annotations

from datetime import UTC, datetime

from millrace.pipeline.declared.language.model import TopicSink, TopicSource

# Options of connections, which reading and writing share.
_SECURITY_PREFIXES = ("security.", "sasl.", "ssl.", "https.")


def source_options(source: TopicSource) -> dict[str, str]:
    """Options for reading; what the source's own `options` say wins over what we derive."""
    options = {"bootstrap.servers": source.bootstrap}
    if source.pattern is not None:
        options["subscribePattern"] = source.pattern
    else:
        options["subscribe"] = ",".join(source.topics)
    if not any(name.lower().startswith("starting") for name in source.options):
        options |= _start(source.starting)
    if source.group is not None:
        options["commitGroup"] = source.group
    return options | dict(source.options)


def sink_options(sink: TopicSink) -> dict[str, str]:
    options = {"bootstrap.servers": sink.bootstrap, "delivery": sink.delivery.replace("-", "_")}
    if sink.topic is not None:
        options["topic"] = sink.topic
    return options | dict(sink.options)


def dead_letter_options(source: TopicSource) -> dict[str, str]:
    """Dead letters go to the broker that the records came from, in the same way."""
    kept = {
        name: value
        for name, value in source.options.items()
        if name.removeprefix("kafka.").startswith(_SECURITY_PREFIXES)
    }
    return kept | {"bootstrap.servers": source.bootstrap, "topic": str(source.dead_letters)}


def _start(starting: str) -> dict[str, str]:
    if not starting[:1].isdigit():
        return {"startingOffsets": starting}
    moment = datetime.fromisoformat(starting)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return {
        "startingTimestamp": str(round(moment.timestamp() * 1000)),
        # A time behind the last record is no mistake: the source then reads what comes.
        "startingOffsetsByTimestampStrategy": "latest",
    }
