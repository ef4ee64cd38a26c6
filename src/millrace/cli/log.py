"""`millrace log`: show and check the files of a data directory. Needs no broker and changes nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from millrace.cli.options import json_option
from millrace.cli.output import log_line, print_json, progress

if TYPE_CHECKING:
    from millrace.log.inspection.verify import VerifyResult

_PATH: Final = click.Path(exists=True, path_type=Path)


@click.group(help="Look into the log files of a data directory.", no_args_is_help=True)
def log() -> None:
    pass


COMMAND: Final = log


@log.command()
@click.argument("path", type=_PATH, metavar="DIR")
@click.option("--records", is_flag=True, help="Also show the records inside the batches.")
@click.option(
    "--only",
    "types",
    multiple=True,
    metavar="TYPE",
    help="Only rows of this type, such as batch. Repeatable.",
)
@json_option
def dump(path: Path, records: bool, types: tuple[str, ...], as_json: bool) -> None:
    """Show what is in the files of DIR: a data directory, a partition's directory, or one file."""
    from millrace.log.disk.volume import DiskVolume
    from millrace.log.inspection.dump import dump as dump_rows

    current_file = ""
    for row in dump_rows(DiskVolume(), str(path), with_records=records):
        if types and row["type"] not in types:
            continue
        if as_json:
            print_json(row)
            continue
        if row["file"] != current_file:
            current_file = row["file"]
            click.secho(current_file, bold=True)
        click.echo("  " + _row_text(row))


@log.command()
@click.argument("path", type=_PATH, metavar="DIR")
@click.option("--deep", is_flag=True, help="Also decompress and walk every record.")
@json_option
def verify(path: Path, deep: bool, as_json: bool) -> None:
    """Check the files of DIR: checksums, offsets in order, indexes that agree with their segment.

    The exit code is 1 if there is a problem. This repairs nothing: a broker does that when it starts, and
    when it scrubs its logs in the background. The first lines say when each log was last scrubbed.
    """
    from millrace.log.disk.volume import DiskVolume
    from millrace.log.inspection.verify import scrub_times
    from millrace.log.inspection.verify import verify as verify_files

    for name, scrubbed_ms in scrub_times(DiskVolume(), str(path)):
        if as_json:
            print_json({"log": name, "scrubbed_at_ms": scrubbed_ms})
        else:
            click.echo(f"{name}: {_scrubbed_text(scrubbed_ms)}")

    with progress("verifying", total=100) as bar:
        shown = 0

        def on_progress(done_bytes: int, total_bytes: int) -> None:
            nonlocal shown
            percent = 100 * done_bytes // total_bytes if total_bytes else 100
            bar.advance(percent - shown, note=f"{done_bytes / 2**20:,.0f} of {total_bytes / 2**20:,.0f} MiB")
            shown = percent

        result = verify_files(DiskVolume(), str(path), deep=deep, progress=on_progress)
    _report(result, as_json=as_json)


def _scrubbed_text(scrubbed_ms: int | None) -> str:
    if scrubbed_ms is None:
        return "not scrubbed yet"
    return f"last scrubbed {datetime.fromtimestamp(scrubbed_ms / 1000, UTC).isoformat(timespec='seconds')}"


def _report(result: VerifyResult, *, as_json: bool) -> None:
    for problem in result.problems:
        if as_json:
            print_json({"path": problem.path, "position": problem.position, "problem": problem.what})
        else:
            place = f" at byte {problem.position}" if problem.position >= 0 else ""
            click.echo(f"{problem.path}{place}: {problem.what}")
    counts = f"{result.files:,} files, {result.batches:,} batches, {result.bytes / 2**20:,.1f} MiB"
    if not result.is_sound:
        number = len(result.problems)
        raise click.ClickException(f"{number:,} {'problem' if number == 1 else 'problems'} in {counts}")
    log_line(f"no problems in {counts}")


def _row_text(row: dict[str, Any]) -> str:
    fields = (
        f"{name}={value}" for name, value in row.items() if name not in ("type", "file") and value is not None
    )
    return f"{row['type']}  {' '.join(fields)}"
