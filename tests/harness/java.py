"""One JVM for the whole session: Kafka's Java clients and tools, driven by JSON lines through its pipes."""

from __future__ import annotations

import json
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tools.kafka_distribution import PROJECT_ROOT, KafkaDistribution, locate

_SOURCE: Final = PROJECT_ROOT / "tests" / "compat" / "java" / "CompatHost.java"
_ANSWER_DEADLINE_S: Final = 120.0


class JavaHost:
    """The running JVM. Its commands are those of `CompatHost.java`; answers come back as parsed JSON."""

    def __init__(self, directory: Path, distribution: KafkaDistribution | None = None) -> None:
        self._distribution = distribution or locate()
        self._errors_path = directory / "java-host.err"
        self.token_file: Final = directory / "java-host.jwt"
        """Where clients in it may read their OAUTHBEARER token: a JVM knows such places from its start on."""
        self._process: subprocess.Popen[bytes] | None = None
        self._pending = b""

    def _start(self) -> None:
        directory = self._errors_path.parent
        directory.mkdir(parents=True, exist_ok=True)
        with self._errors_path.open("ab") as errors:
            self._process = subprocess.Popen(
                [
                    self._distribution.java,
                    "-Xmx512m",
                    "-XX:+UseSerialGC",
                    "-XX:TieredStopAtLevel=1",
                    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
                    f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.token_file.as_uri()}",
                    "-cp",
                    self._distribution.classpath,
                    str(_SOURCE),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )

    def stop(self) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    def call(self, command: Mapping[str, Any], deadline_s: float = _ANSWER_DEADLINE_S) -> Any:
        """Send one command, wait for its answer. A failed command answers {"error": ..., "message": ...}."""
        if self._process is None:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()
        return json.loads(self._answer_line(deadline_s))

    def admin(self, bootstrap: str, call: str, /, **arguments: Any) -> Any:
        config = {
            "bootstrap.servers": bootstrap,
            "request.timeout.ms": "10000",
            "default.api.timeout.ms": "20000",
        }
        return self.call({"op": "admin", "config": config, "call": call, "arguments": arguments})

    def tool(
        self, main: str, words: Sequence[str], stdin: str = "", drop: str = "", deadline_s: float = 120.0
    ) -> Any:
        """Run a tool's main in the JVM: status, stdout (without lines that match `drop`), stderr, thrown."""
        command = {"op": "tool", "main": main, "args": list(words), "stdin": stdin}
        return self.call(command | ({"drop": drop} if drop else {}), deadline_s)

    def _answer_line(self, deadline_s: float) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        deadline = time.monotonic() + deadline_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise AssertionError(f"no answer from the JVM in {deadline_s} s\n{self._errors_tail()}")
                chunk = self._process.stdout.read1(1 << 20)  # type: ignore[attr-defined]
                if not chunk:
                    raise AssertionError(f"the JVM ended:\n{self._errors_tail()}")
                self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _errors_tail(self) -> str:
        return "\n".join(self._errors_path.read_text(errors="replace").splitlines()[-30:])
