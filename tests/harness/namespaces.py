"""Network namespaces joined by a bridge, with links that can be cut in one direction.

A link is cut by telling the sender a wrong hardware address of the receiver: its packets leave and reach
nobody, as on a broken wire. That needs `ip` and the right to use it, and no firewall. The bridge is in a
namespace of its own, where no rules of this machine apply.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

_PREFIX: Final = "mlr"
_NOBODY: Final = "02:00:00:00:00:fe"
_OWN_ADDRESS: Final = 254
_NUMBERS: Final = itertools.count(1)
_HUB: Final = "hub"


class NotPermitted(Exception):
    """No network namespaces here: no right to, or no `ip`."""


class Namespaces:
    def __init__(self, names: Sequence[str]) -> None:
        _require_permission()
        self._tag = f"{_PREFIX}{os.getpid()}x{next(_NUMBERS)}"
        self._names = list(names)
        self._cuts: list[tuple[str, str]] = []
        _sweep()
        self._subnet = _free_subnet()
        try:
            self._build()
        except subprocess.CalledProcessError as error:
            self.close()
            raise NotPermitted(error.stderr) from error

    def address(self, name: str) -> str:
        return f"{self._subnet}.{self._number(name)}"

    def prefix(self, name: str) -> tuple[str, ...]:
        """Words before a command that make it run in there; the process stays the one that was started."""
        return ("ip", "netns", "exec", self._space(name))

    def cut(self, source: str, target: str) -> None:
        self._point(source, target, _NOBODY)
        self._cuts.append((source, target))

    def heal(self) -> None:
        cuts, self._cuts = self._cuts, []
        for source, target in cuts:
            self._point(source, target, self._hardware(target))

    def close(self) -> None:
        for name in (*self._names, _HUB):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", self._space(name))

    def _build(self) -> None:
        hub = self._space(_HUB)
        _ip("netns", "add", hub)
        _ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", hub, "link", "set", "bridge", "up")
        _ip("link", "add", self._tag, "type", "veth", "peer", "name", "outside", "netns", hub)
        _ip("-n", hub, "link", "set", "outside", "master", "bridge", "up")
        _ip("addr", "add", f"{self._subnet}.{_OWN_ADDRESS}/24", "dev", self._tag)
        _ip("link", "set", self._tag, "up")
        for name in self._names:
            space = self._space(name)
            _ip("netns", "add", space)
            _ip("-n", space, "link", "add", "eth0", "type", "veth", "peer", "name", name, "netns", hub)
            _ip("-n", hub, "link", "set", name, "master", "bridge", "up")
            _ip("-n", space, "link", "set", "eth0", "address", self._hardware(name))
            _ip("-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")
        for source in self._names:
            for target in self._names:
                if source != target:
                    self._point(source, target, self._hardware(target))

    def _point(self, source: str, target: str, hardware: str) -> None:
        """Let one side believe that the other has this hardware address."""
        link = ("dev", "eth0", "nud", "permanent")
        _ip(*("-n", self._space(source), "neigh", "replace", self.address(target)), "lladdr", hardware, *link)

    def _number(self, name: str) -> int:
        return self._names.index(name) + 1

    def _space(self, name: str) -> str:
        return f"{self._tag}-{name}"

    def _hardware(self, name: str) -> str:
        return f"02:00:00:00:00:{self._number(name):02x}"


def _ip(*words: str) -> str:
    return subprocess.run(("ip", *words), check=True, capture_output=True, text=True, timeout=30).stdout


def _require_permission() -> None:
    if shutil.which("ip") is None:
        raise NotPermitted("there is no `ip`")
    if os.geteuid() != 0:
        raise NotPermitted("only root may")


def _sweep() -> None:
    """Remove what runs that were killed have left behind: names carry the number of their process."""
    with contextlib.suppress(subprocess.CalledProcessError):
        for name in _abandoned(_ip("netns", "list")):
            _ip("netns", "del", name)


def _abandoned(listing: str) -> Iterator[str]:
    for line in listing.splitlines():
        found = re.match(rf"({_PREFIX}(\d+)\S*)", line)
        if found and not Path(f"/proc/{found[2]}").exists():
            yield found[1]


def _free_subnet() -> str:
    taken = _ip("-4", "addr", "show")
    for number in range(1, 250):
        subnet = f"10.213.{number}"
        if f" {subnet}." not in taken:
            return subnet
    raise NotPermitted("no subnet is free")
