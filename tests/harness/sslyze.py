"""The TLS scanner `sslyze`, in an environment of its own: it wants an older `cryptography` than ours."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path
from typing import Final

from tools.kafka_distribution import PROJECT_ROOT

PINNED: Final = (
    "sslyze==6.3.1",
    "nassl==5.4.0",
    "tls-parser==2.0.2",
    "cryptography==46.0.7",
    "pydantic==2.14.3",
)
_HOME: Final = PROJECT_ROOT / ".cache" / "sslyze-6.3.1"
_TIMEOUT_S: Final = 280


def command() -> Path:
    """The scanner's program; the first call installs it."""
    _HOME.parent.mkdir(exist_ok=True)
    complete = _HOME / ".complete"
    # Two runs of the tests may come at once.
    with (_HOME.parent / "sslyze.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            _run(str(PROJECT_ROOT / "tools" / "make_venv"), sys.executable, str(_HOME))
            pip = (str(_HOME / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet")
            _run(*pip, "install", *PINNED)
            complete.touch()
    return _HOME / "bin" / "sslyze"


def _run(*words: str) -> None:
    ended = subprocess.run(words, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
