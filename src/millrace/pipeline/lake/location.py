"""Where archives are: one Delta table for each topic below a root folder or object store URL."""

from __future__ import annotations

import os
import re
from typing import Final
from urllib.parse import unquote, urlsplit

from millrace.pipeline.lake.errors import ArchiveError
from millrace.pipeline.topic_names import is_topic_name

SCHEMES: Final = ("file", "s3", "s3a", "gs", "abfs", "abfss", "hdfs", "viewfs")


def root_url(text: str) -> str:
    """A root as Spark wants it: an absolute path, or a URL of a file system that Hadoop knows."""
    word = text.strip()
    if not word:
        raise ArchiveError(
            "the place of the archive is empty: give a folder or a URL such as s3a://bucket/archive"
        )
    scheme = _scheme(word)
    if scheme is None:
        return os.path.abspath(os.path.expanduser(word))
    if scheme not in SCHEMES:
        raise ArchiveError(
            f"{text!r}: no archive can be kept at {scheme}: URLs; a folder, or one of {', '.join(SCHEMES)}"
        )
    if scheme == "file":
        return os.path.abspath(unquote(urlsplit(word).path))
    # Hadoop knows Amazon's store by the name of its third client.
    return "s3a://" + word.partition("://")[2].rstrip("/") if scheme == "s3" else word.rstrip("/")


def table_path(root: str, topic: str) -> str:
    """The table of one topic below a root."""
    if not is_topic_name(topic):
        raise ArchiveError(f"{topic!r} is no name of a topic: letters, digits, '.', '_' and '-', at most 249")
    return f"{root_url(root)}/{topic}"


def is_local(path: str) -> bool:
    return _scheme(path) in (None, "file")


def quoted(path: str) -> str:
    """The table as Spark's SQL names it."""
    return "delta.`" + path.replace("`", "``") + "`"


def arrow_url(path: str) -> str:
    """The same place as pyarrow names it."""
    return "s3://" + path.partition("://")[2] if path.startswith("s3a://") else path


def _scheme(word: str) -> str | None:
    head, separator, _ = word.partition(":")
    # One letter would be a drive, and `./a:b` is a folder.
    return head.lower() if separator and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]+", head) else None
