"""Which addresses a URL from a stranger may lead to: public unicast ones, and what the configuration allows by name.

A name is resolved here, once, and what is checked is what is connected to: a name that resolves to a public address
when it is checked and to a private one when it is used (DNS rebinding) has no second chance."""

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
        # IANA's special-purpose registries, spelled out: what ipaddress knows of them differs between Python releases
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
"""Apart from the event loop's own threads: a name server that hangs holds up only those who ask for names."""


class Forbidden(ValueError):
    """The URL, or an address that it leads to, may not be reached."""


def is_public(address: Address) -> bool:
    """Whether it is a public unicast address."""
    if isinstance(address, ipaddress.IPv6Address) and (address not in _GLOBAL_IPV6 or address.scope_id is not None):
        return False
    return not any(address in network for network in _SPECIAL if network.version == address.version)


async def resolve(host: str, port: int) -> list[str]:
    """As the system resolves names. Raises OSError (socket.gaierror)."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_lookups, _lookup, host, port)


def _lookup(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Reachable:
    """The rule: public unicast addresses, the addresses in `networks` ("10.1.0.0/16"), and whatever the names in
    `hosts` resolve to."""

    def __init__(self, *, hosts: Iterable[str] = (), networks: Iterable[str] = (), resolve: Resolve = resolve) -> None:
        self._hosts = frozenset(_name(host) for host in hosts)
        self._networks = tuple(_network(text) for text in networks)
        self._resolve = resolve

    async def addresses(self, host: str, port: int) -> list[Address]:
        """The addresses of `host`, all of them checked, best first. Raises Forbidden, also where only one of them may
        not be reached, and OSError where the name has none."""
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
        """Whether no name can be looked up here: names that everybody knows get no answer, not even that there is no
        such name. For after a failure that looks like it, as a stranger's name may be such that its servers fail."""
        lookups = (self._resolve(host, 443) for host in _WELL_KNOWN)
        answers = await asyncio.gather(*lookups, return_exceptions=True)
        return all(isinstance(a, socket.gaierror) and a.errno == socket.EAI_AGAIN for a in answers)

    def _allows(self, address: Address) -> bool:
        return is_public(address) or any(address in n for n in self._networks if n.version == address.version)


def _literal(host: str) -> str | None:
    """`host` if it is an address, None if it is a name. Raises Forbidden for addresses that are written otherwise than
    1.2.3.4: in decimal, octal, hexadecimal or with parts left out, resolvers read them in different ways."""
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
    """As it is compared: lower case, without the root's dot."""
    return host.lower().removesuffix(".")


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as e:
        raise ConfigError(f"network {text!r}: {e}; allowed is an address or a network such as 10.1.0.0/16") from e
