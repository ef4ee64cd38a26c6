"""Wrong words for archive, replay and backfill are found before Spark starts."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from millrace.cli.pipeline.lake import COMMANDS
from millrace.core.errors import MillraceError

ARCHIVE = ["archive", "orders", "--to", "lake"]
REPLAY = ["replay", "orders", "--archive", "lake", "--into", "orders-2"]


@pytest.mark.parametrize(
    "words, complaint",
    [
        (["archive", "orders"], "Missing option '--to'"),
        ([*ARCHIVE, "--retention", "90"], "'90' is not a duration such as 90s, 1h30m or 7d"),
        ([*ARCHIVE, "--retention", "12h"], "whole days only"),
        ([*ARCHIVE, "--vacuum-after", "1s"], "whole hours only"),
        ([*ARCHIVE, "--vacuum-after", "90m"], "whole hours only"),
        ([*ARCHIVE, "--schema", "order.avsc"], "--schema and --message need --decode"),
        ([*ARCHIVE, "--decode", "avro"], "--decode avro needs --schema"),
        ([*ARCHIVE, "--decode", "xml"], "'xml' is not one of 'json', 'avro', 'protobuf'"),
        (["archive", "orders", "--to", "ftp://host/lake"], "no archive can be kept at ftp: URLs"),
        (["archive", "or/ders", "--to", "lake"], "no name of a topic"),
        (["replay", "orders", "--archive", "lake"], "Missing option '--into'"),
        ([*REPLAY, "--from", "yesterday"], "'yesterday' is none of: beginning, end, a time"),
        ([*REPLAY, "--from", "9", "--to", "3"], "nothing lies between '9' and '3'"),
        ([*REPLAY, "--config", "retention.ms"], "is not of the form key=value"),
        (["backfill", "orders"], "Missing option '--archive'"),
        (["backfill", "orders", "--archive", "lake", "--format", "csv"], "'csv' is not one of"),
    ],
)
def test_a_mistake_is_named(words: list[str], complaint: str) -> None:
    answer = CliRunner().invoke(COMMANDS[words[0]], words[1:])
    assert answer.exit_code != 0
    error = str(answer.exception) if isinstance(answer.exception, MillraceError) else answer.stderr
    assert complaint in error


def test_what_is_replayed_is_compressed_unless_somebody_says_otherwise() -> None:
    """An archive of 112 MB became 405 MB in the topic."""
    from millrace.pipeline.lake.replay import ReplayOptions
    from millrace.pipeline.lake.topics import BrokerOptions
    from millrace.wire.compression import Codec

    (option,) = [option for option in COMMANDS["replay"].params if option.name == "compression"]
    assert option.default == "zstd"
    broker = BrokerOptions(bootstrap="127.0.0.1:9092", properties={}, timeout_ms=1)
    assert ReplayOptions(root="lake", topic="a", into="b", broker=broker).codec is Codec.ZSTD
