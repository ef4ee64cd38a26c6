"""The two ends of a connection inside one process: a client gets one, and the test plays the broker at the
other."""

from __future__ import annotations

import socket

from millrace.core.override import override


class NearSocket(socket.socket):
    """A unix socket takes no options of TCP."""

    @override
    def setsockopt(self, *_: object) -> None:
        pass


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """The client's end and the broker's."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(5)
    return NearSocket(ours.family, ours.type, ours.proto, ours.detach()), theirs
