"""The generator in Go, built where there is a Go toolchain: requests from a client of another make.

What one epoll loop in Python can send is near to what a broker takes on a small machine, and such a loop
favours answers that come together. A client with a goroutine for each connection shows the other side.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.processes import run_bounded
from tools.kafka_distribution import PROJECT_ROOT

SOURCE: Final = Path(__file__).parent / "go" / "requests.go"
BUILT: Final = PROJECT_ROOT / ".cache" / "benchmarks"
BUILD_TIMEOUT_S: Final = 300.0
CONNECT_S: Final = 60.0


def has_go() -> bool:
    return shutil.which("go") is not None


def build() -> Path:
    """The generator, compiled if its source is new."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    program = BUILT / f"requests-{digest}"
    if not program.exists():
        BUILT.mkdir(parents=True, exist_ok=True)
        fresh = program.with_suffix(f".{os.getpid()}")
        run_bounded(
            ["go", "build", "-o", str(fresh), str(SOURCE)], timeout_s=BUILD_TIMEOUT_S, may_be_silent=True
        )
        fresh.replace(program)
    return program


def send(arguments: Mapping[str, Any], frames: Sequence[bytes], error_at: int) -> dict[str, float]:
    """Keep every connection busy with these frames; return the same figures as the epoll loop."""
    load = {
        "address": f"{arguments['host']}:{arguments['port']}",
        "connections": arguments["connections"],
        "warm_up_s": arguments["warm_up_s"],
        "seconds": arguments["seconds"],
        "error_at": error_at,
        "frames": [base64.b64encode(frame).decode() for frame in frames],
    }
    timeout_s = CONNECT_S + arguments["warm_up_s"] + arguments["seconds"]
    result: dict[str, float] = json.loads(run_bounded([str(build()), json.dumps(load)], timeout_s=timeout_s))
    return result
