"""Addresses that a URL from a stranger may lead to: public unicast addresses, and those that the configuration allows.

A name is resolved once, here, and the connection goes to the address that was checked. So a name cannot resolve to a
public address for the check and to a private one for the connection (DNS rebinding)."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from agentgrpo.core.errors import ConfigError

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""(host, port) -> its addresses as text, best first. Raises OSError."""

_SPECIAL = tuple(
    ipaddress.ip_network(text)
    for text in (
        # IANA's special-purpose registries, spelled out: those of ipaddress differ between Python releases
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24"),
        *("192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24"),
        *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        # IPv6: Teredo and other protocols, documentation, 6to4, AS112, more documentation
        *("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20"),
    )
)
_GLOBAL_IPV6 = ipaddress.IPv6Network("2000::/3")
"""The only IPv6 space with public unicast addresses: not loopback, mapped, NAT64, ULA, link-local, multicast."""
_NUMERIC = re.compile(r"\d*|0x[0-9a-f]*", re.IGNORECASE | re.ASCII)
_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", re.ASCII)
_WELL_KNOWN = ("example.com", "wikipedia.org")
_lookups = ThreadPoolExecutor(max_workers=8, thread_name_prefix="lookup")
"""Separate from the event loop's own threads: a name server that hangs holds up only name lookups."""


class Forbidden(ValueError):
    """The URL, or an address behind it, may not be reached."""


def is_public(address: Address) -> bool:
    """Whether `address` is a public unicast address."""
    if isinstance(address, ipaddress.IPv6Address) and (address not in _GLOBAL_IPV6 or address.scope_id is not None):
        return False
    return not any(address in network for network in _SPECIAL if network.version == address.version)


async def resolve(host: str, port: int) -> list[str]:
    """Resolve a name like the system does; returns addresses, best first. Raises OSError (socket.gaierror)."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_lookups, _lookup, host, port)


def _lookup(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Reachable:
    """The addresses that may be reached: public unicast addresses, those in `networks` ("10.1.0.0/16"), and all
    addresses of the names in `hosts`."""

    def __init__(self, *, hosts: Iterable[str] = (), networks: Iterable[str] = (), resolve: Resolve = resolve) -> None:
        self._hosts = frozenset(_name(host) for host in hosts)
        self._networks = tuple(_network(text) for text in networks)
        self._resolve = resolve

    async def addresses(self, host: str, port: int) -> list[Address]:
        """Return the addresses of `host`, best first, after checking each. Raises Forbidden if any of them may not be
        reached, and OSError if the name has no address."""
        host = _name(host)
        literal = _literal(host)
        texts = [literal] if literal else await self._resolve(host, port)
        if not texts:
            raise OSError(f"{host} has no address")
        found = [_address(text) for text in texts]
        if host not in self._hosts:
            for text, address in zip(texts, found, strict=True):
                if address is None or not self._allows(address):
                    what = f"{host} is" if literal else f"{host} leads to {text},"
                    raise Forbidden(f"{what} not a public address")
        return [address for address in found if address is not None]

    async def is_cut_off(self) -> bool:
        """Whether no name can be looked up here: even well-known names get no answer from any name server. Called after
        a failed lookup, because the name servers of a stranger's name may fail by themselves."""
        lookups = (self._resolve(host, 443) for host in _WELL_KNOWN)
        answers = await asyncio.gather(*lookups, return_exceptions=True)
        return all(isinstance(a, socket.gaierror) and a.errno == socket.EAI_AGAIN for a in answers)

    def _allows(self, address: Address) -> bool:
        return is_public(address) or any(address in n for n in self._networks if n.version == address.version)


def _literal(host: str) -> str | None:
    """Return `host` if it is an address, None if it is a name. Raises Forbidden for an IPv4 address in another form
    than 1.2.3.4: resolvers differ on decimal, octal and hexadecimal numbers and on omitted parts."""
    if _address(host) is not None:
        return host
    if not _NAME.fullmatch(host) or _NUMERIC.fullmatch(host.rpartition(".")[2]):
        raise Forbidden(f"{host} is not a name, and not an address as 1.2.3.4 is")
    return None


def _address(text: str) -> Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _name(host: str) -> str:
    """Return a host name for comparison: in lower case, without the root's dot."""
    return host.lower().removesuffix(".")


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as e:
        raise ConfigError(f"network {text!r}: {e}; allowed is an address or a network such as 10.1.0.0/16") from e
