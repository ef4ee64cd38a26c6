"""Millrace as users run it: the installed `millrace serve` command in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from typing_extensions import override

from tests.harness.process import BrokerProcess, free_port

MILLRACE: Final = str(Path(sys.executable).with_name("millrace"))


class MillraceProcess(BrokerProcess):
    kind = "millrace"

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(directory, settings)
        self.http_port = free_port()
        self.prefix: tuple[str, ...] = ()
        self.set_http_port = True

    @override
    def command(self) -> Sequence[str]:
        words = [*self.prefix, MILLRACE, "serve", "--data-dir", str(self.data_dir)]
        if "listeners" not in self.settings:
            words += ["--listen", self.bootstrap]
        settings = dict(self.settings)
        if self.set_http_port:
            settings.setdefault("metrics.listener", f"{self.host}:{self.http_port}")
        for key, value in settings.items():
            words += ["--set", f"{key}={value}"]
        return words

    @override
    def environment(self) -> dict[str, str]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("MILLRACE_")}
        return clean | {"PYTHONUNBUFFERED": "1"}

    def http(self, path: str, timeout_s: float = 30.0) -> tuple[int, str]:
        """Status and body of a GET on the small HTTP port."""
        try:
            with urllib.request.urlopen(
                f"http://{self.host}:{self.http_port}{path}", timeout=timeout_s
            ) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()


def run_millrace(*words: str, timeout_s: float = 60.0, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a `millrace` command to its end."""
    return subprocess.run(
        [MILLRACE, *words], capture_output=True, text=True, input=stdin, timeout=timeout_s, check=False
    )
