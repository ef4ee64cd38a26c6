"""What the scanner of TLS `sslyze` finds."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.harness import sslyze
from tests.harness.millrace import MillraceProcess
from tests.harness.process import free_port
from tests.harness.tls_files import Authority

STRONGER_CURVES = {"secp521r1", "X448"}
"""Than those that the profile names. Python 3.11 can choose one curve, or all that OpenSSL has."""


@pytest.mark.timeout(600)
def test_nothing_is_below_the_recommended_profile(tmp_path: Path) -> None:
    scanner = sslyze.command()
    broker = MillraceProcess(tmp_path / "broker")
    port = free_port()
    broker.settings |= {
        "listeners": f"PLAINTEXT://127.0.0.1:{broker.port},SSL://127.0.0.1:{port}",
        "inter.broker.listener.name": "PLAINTEXT",
        "ssl.keystore.location": str(Authority(tmp_path).issue("localhost")),
    }
    broker.start()
    try:
        words = [str(scanner), "--mozilla_config=intermediate", f"localhost:{port}"]
        scan = subprocess.run(words, capture_output=True, text=True, timeout=170, check=False)
        assert "SCAN RESULTS FOR LOCALHOST" in scan.stdout.upper(), scan.stdout + scan.stderr
        found = dict(re.findall(r"^ +\* (\w+): (.*)$", scan.stdout, re.MULTILINE))
        below = {name: text for name, text in found.items() if name.islower()}
        for name in ("maximum_certificate_lifespan", "certificate_path_validation"):
            # A matter of the certificates that tests make.
            below.pop(name, None)
        curves = below.pop("tls_curves", "")
        assert set(re.findall(r"'(\w+)'", curves)) <= STRONGER_CURVES
        assert not below
        assert 'reason="protocol"' in broker.http("/metrics")[1]
        assert broker.answers()
    finally:
        broker.end()
