"""`millrace log`: what is in the files, and whether it is sound."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from millrace.cli.main import CLI
from millrace.wire.records import Record, build_batch


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    directory = tmp_path / "orders-0"
    directory.mkdir()
    record = Record(offset=0, timestamp=5, key=b"k", value=b"v", headers=())
    (directory / "00000000000000000000.log").write_bytes(build_batch([record]))
    return directory


def test_dump_shows_batches_and_on_request_records(partition: Path) -> None:
    plain = CliRunner().invoke(CLI, ["log", "dump", str(partition)])
    assert plain.exit_code == 0, plain.output
    assert plain.output.splitlines()[0] == "orders-0/00000000000000000000.log"
    assert "base_offset=0 last_offset=0 records=1" in plain.output
    assert "key=k" not in plain.output
    assert "key=k value=v" in CliRunner().invoke(CLI, ["log", "dump", str(partition), "--records"]).output


def test_dump_as_json_is_one_row_on_each_line(partition: Path) -> None:
    result = CliRunner().invoke(
        CLI, ["log", "dump", str(partition), "--json", "--records", "--only", "record"]
    )
    (row,) = [json.loads(line) for line in result.output.splitlines()]
    assert (row["key"], row["value"], row["timestamp"]) == ("k", "v", 5)


def test_verify_is_content_with_sound_files(partition: Path) -> None:
    result = CliRunner().invoke(CLI, ["log", "verify", "--deep", str(partition)])
    assert result.exit_code == 0, result.output
    assert "no problems in 1 files, 1 batches" in result.stderr


def test_verify_names_the_place_of_damage_and_fails(partition: Path) -> None:
    file = partition / "00000000000000000000.log"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)

    result = CliRunner().invoke(CLI, ["log", "verify", str(partition)])

    assert result.exit_code == 1
    assert f"{file} at byte 0: " in result.stdout
    assert "Error: 1 problem in " in result.stderr
    (problem,) = CliRunner().invoke(CLI, ["log", "verify", "--json", str(partition)]).stdout.splitlines()
    assert json.loads(problem)["position"] == 0


def test_a_path_that_does_not_exist_is_wrong_usage(tmp_path: Path) -> None:
    assert CliRunner().invoke(CLI, ["log", "verify", str(tmp_path / "absent")]).exit_code == 2


def test_verify_says_when_each_log_was_last_scrubbed(partition: Path) -> None:
    (partition.parent / "scrub-time-checkpoint").write_text(
        f"0\n1\n{partition.name.replace('-', ' ')} 1700000000000\n"
    )
    wanted = f"{partition.name}: last scrubbed 2023-11-14T22:13:20+00:00"
    for path in (partition, partition.parent):
        assert wanted in CliRunner().invoke(CLI, ["log", "verify", str(path)]).stdout.splitlines()
