"""The command line that the examples share."""

from __future__ import annotations

import argparse


def parse_arguments(description: str | None, group: str, output_help: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", metavar="HOST:PORT")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", default=group)
    parser.add_argument("--output", required=True, metavar="FILE", help=output_help)
    parser.add_argument("--idle", type=float, default=15.0, help="seconds without messages until the end")
    parser.add_argument("--session-ms", type=int, default=10_000, help="time until a dead member is replaced")
    return parser.parse_args()
