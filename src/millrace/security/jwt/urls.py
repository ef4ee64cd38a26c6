"""Which URLs a broker may fetch keys from: those that its operator listed, and no link-local ones.

A broker stands in a network that its clients do not reach. A URL that somebody sets must not make it fetch
what they could not (fault S18): so there is a list, only https, or files where a setting says so, no
addresses of link-local services such as a cloud's metadata, and every redirect is judged like the first URL.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import Final
from urllib.parse import SplitResult, urljoin, urlsplit

from millrace.security.errors import RefusedUrl

URL_LENGTH_MAX: Final = 2_048
REDIRECTS_MAX: Final = 3


def check_url(url: str, allowed: Collection[str], *, are_files_allowed: bool = False) -> SplitResult:
    """The parts of a URL that may be fetched; raises RefusedUrl, which shows nothing of it but its scheme."""
    if (
        len(url) > URL_LENGTH_MAX
        or not url.isascii()
        or any(ord(one) <= ord(" ") or one in "\\\x7f" for one in url)
    ):
        raise RefusedUrl("it is too long, or has characters that do not belong into a URL")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise RefusedUrl("it cannot be read") from None
    if parts.scheme == "file":
        if not are_files_allowed:
            raise RefusedUrl("files are read only where a setting allows it")
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise RefusedUrl("a file has no host and a whole path")
    elif parts.scheme == "https":
        _check_host(parts)
    else:
        raise RefusedUrl(f"its scheme {parts.scheme!r:.20} is neither https nor file")
    if parts.fragment or url not in allowed:
        raise RefusedUrl("it is not on the list of allowed URLs")
    return parts


def check_redirect(url: str, location: str, allowed: Collection[str], *, followed: int) -> str:
    """Where a redirect leads, if one may go there; `followed` counts those before it. Raises RefusedUrl."""
    if followed >= REDIRECTS_MAX:
        raise RefusedUrl(f"it leads over more than {REDIRECTS_MAX} redirects")
    try:
        target = urljoin(url, location)
    except ValueError:
        raise RefusedUrl("a redirect leads nowhere") from None
    # Never to a file: what an answer from the network says is not the operator's wish.
    check_url(target, allowed)
    return target


def check_address(address: str) -> None:
    """An address that a name was resolved to, before it is connected to; raises RefusedUrl."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        raise RefusedUrl("its host has no address") from None
    if isinstance(found, ipaddress.IPv6Address):
        found = found.ipv4_mapped or found.sixtofour or found
    is_odd = found.is_reserved and not found.is_loopback
    if found.is_link_local or found.is_multicast or found.is_unspecified or is_odd:
        raise RefusedUrl("its host is link-local, or no host at all")


def _check_host(parts: SplitResult) -> None:
    if parts.username is not None or parts.password is not None:
        raise RefusedUrl("it has a user name or a password in it")
    host = parts.hostname
    if not host:
        raise RefusedUrl("it has no host")
    # `http://2852039166/` and `0xA9.0xFE.0xA9.0xFE` are addresses to many a resolver.
    if host.rpartition(".")[2].lower().startswith("0x") or host.rpartition(".")[2].isdigit() or ":" in host:
        check_address(host)
