"""kcat, the command-line client: installed, or Debian's package unpacked into `.cache` without root."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.kafka_distribution import PROJECT_ROOT

_CACHE: Final = PROJECT_ROOT / ".cache" / "kcat"
_PACKAGES: Final = ("kcat", "librdkafka1", "libyajl2")
_FETCH_TIMEOUT_S: Final = 120


class KcatUnavailable(Exception):
    """kcat is neither installed nor to be had; the message says why."""


@dataclass(frozen=True, slots=True)
class Kcat:
    binary: str
    library_path: str

    def run(
        self, *words: str, stdin: bytes = b"", timeout_s: float = 60.0
    ) -> subprocess.CompletedProcess[bytes]:
        environment = dict(os.environ)
        if self.library_path:
            environment["LD_LIBRARY_PATH"] = self.library_path
        return subprocess.run(
            [self.binary, *words],
            input=stdin,
            capture_output=True,
            timeout=timeout_s,
            env=environment,
            check=False,
        )


def locate_kcat(cache: Path = _CACHE) -> Kcat:
    """An installed kcat, else the one in `.cache`, fetched on first use."""
    installed = shutil.which("kcat") or shutil.which("kafkacat")
    if installed is not None:
        return Kcat(installed, "")
    root = cache / "root"
    if not (cache / ".complete").exists():
        _fetch_once(cache, root)
    libraries = sorted({str(path.parent) for path in root.glob("usr/lib/*/librdkafka.so*")})
    kcat = Kcat(str(root / "usr/bin/kcat"), ":".join(libraries))
    answer = kcat.run("-V")
    if answer.returncode != 0:
        raise KcatUnavailable(f"the unpacked kcat does not start: {answer.stderr.decode(errors='replace')}")
    return kcat


def _fetch_once(cache: Path, root: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise KcatUnavailable("kcat is not installed, and without apt-get and dpkg it cannot be fetched")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (cache / ".complete").exists():
            return
        _must_run(["apt-get", "download", *_PACKAGES], cache)
        for package in sorted(cache.glob("*.deb")):
            _must_run(["dpkg", "-x", package.name, str(root)], cache)
        (cache / ".complete").touch()


def _must_run(command: list[str], directory: Path) -> None:
    try:
        answer = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise KcatUnavailable(f"{command[0]} took longer than {_FETCH_TIMEOUT_S} s") from error
    if answer.returncode != 0:
        raise KcatUnavailable(f"{' '.join(command)} failed: {answer.stderr.strip()[-500:]}")
