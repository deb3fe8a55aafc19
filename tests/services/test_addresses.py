"""Which addresses are public, and which texts are addresses at all."""

from __future__ import annotations

import ipaddress

import pytest

from agentgrpo.core.errors import ConfigError
from agentgrpo.services.addresses import Forbidden, Reachable, is_public, resolve
from tests.services.web import Names

PUBLIC = ("1.1.1.1", "93.184.215.14", "172.15.255.255", "172.32.0.1", "192.167.1.1", "223.255.255.255", "100.63.0.1")
PUBLIC_6 = ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", "2a00:1450:4001::1", "2001:4860:4860::8888")
PRIVATE = {
    "this network": ("0.0.0.0", "0.1.2.3"),
    "private": ("10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.0.1"),
    "loopback": ("127.0.0.1", "127.1.2.3", "127.255.255.255"),
    "carrier-grade NAT": ("100.64.0.1", "100.127.255.255"),
    "link-local and cloud metadata": ("169.254.169.254", "169.254.0.1"),
    "protocols": ("192.0.0.1", "192.0.0.192", "192.88.99.1", "192.31.196.1", "192.175.48.1"),
    "documentation and benchmarks": ("192.0.2.1", "198.51.100.1", "203.0.113.1", "198.18.0.1", "198.19.255.255"),
    "multicast, reserved, broadcast": ("224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),
    "IPv6 loopback and unspecified": ("::1", "::"),
    "IPv4-mapped": ("::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:1.1.1.1", "::ffff:7f00:1"),
    "IPv4-compatible and translated": ("::127.0.0.1", "::ffff:0:127.0.0.1"),
    "NAT64": ("64:ff9b::7f00:1", "64:ff9b::1.1.1.1", "64:ff9b:1::a00:1"),
    "6to4": ("2002:7f00:1::", "2002:a00:1::1", "2002:101:101::1"),
    "Teredo and other protocols": ("2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:20::1", "2001:1::1"),
    "IPv6 documentation": ("2001:db8::1", "3fff::1"),
    "unique local": ("fc00::1", "fd00:ec2::254", "fdff::1"),
    "IPv6 link-local": ("fe80::1", "fe80::1%eth0", "2606:2800::1%eth0", "fec0::1"),
    "IPv6 multicast": ("ff02::1", "ff0e::1"),
    "discard-only and segment routing": ("100::1", "5f00::1"),
}


@pytest.mark.parametrize("text", PUBLIC + PUBLIC_6)
async def test_public_addresses_are_public(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))
    assert [str(a) for a in await Reachable(resolve=Names()).addresses(text, 80)] == [text]


@pytest.mark.parametrize("group", PRIVATE)
async def test_all_others_are_not(group: str) -> None:
    texts = PRIVATE[group]
    assert [is_public(ipaddress.ip_address(text)) for text in texts] == [False] * len(texts)
    for text in texts:
        rule = Reachable(resolve=Names(innocent_example=[[text]]))
        with pytest.raises(Forbidden, match=r"innocent.example leads to .*, not a public address"):
            await rule.addresses("innocent.example", 80)
        with pytest.raises(Forbidden, match="is not a public address"):
            await rule.addresses(text, 80)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "2130706433",
            "0x7f000001",
            "0X7F000001",
            "017700000001",
            "0177.0.0.1",
            "0x7f.0.0.1",
            "127.1",
            "127.0.1",
            "0",
        ),
        *("127.0.0.01", "1.1.1.1.", "127.0.0.0x1", "1.1.1.256", "1.1.1", "1.1.1.1.1", "999", "..", "", "localhost.."),
        *("0x", "1.0x", "::ffff:127.0.0.1:80", ":", "127.0.0.1%25"),
    ],
)
async def test_addresses_in_disguise_are_never_asked_of_a_name_server(text: str) -> None:
    names = Names()
    rule = Reachable(resolve=names)
    if text == "1.1.1.1.":  # the root's dot, and a plain address before it
        assert [str(a) for a in await rule.addresses(text, 80)] == ["1.1.1.1"]
    else:
        with pytest.raises(Forbidden):
            await rule.addresses(text, 80)
    assert names.asked == []


async def test_one_private_address_among_public_ones_is_enough() -> None:
    rule = Reachable(resolve=Names(mixed_example=[["1.1.1.1", "10.0.0.1"]]))
    with pytest.raises(Forbidden, match=r"leads to 10\.0\.0\.1"):
        await rule.addresses("mixed.example", 80)


async def test_a_name_without_addresses_is_an_error_of_its_own() -> None:
    rule = Reachable(resolve=Names(empty_example=[[]]))
    for host in ("empty.example", "unknown.example"):
        with pytest.raises(OSError, match=host):
            await rule.addresses(host, 80)


async def test_what_is_allowed_by_name_or_network_and_nothing_else() -> None:
    names = Names(wiki_corp=[["10.1.2.3"]], git_corp=[["10.1.9.9"]], sub_wiki_corp=[["10.1.2.3"]])
    by_name = Reachable(hosts=["Wiki.Corp."], resolve=names)
    by_network = Reachable(networks=["10.1.2.0/24", "fd00::/8"], resolve=names)
    assert [str(a) for a in await by_name.addresses("WIKI.corp", 80)] == ["10.1.2.3"]
    assert [str(a) for a in await by_network.addresses("wiki.corp", 80)] == ["10.1.2.3"]
    assert [str(a) for a in await by_network.addresses("fd00::1", 80)] == ["fd00::1"]
    elsewhere = [(by_name, "git.corp"), (by_name, "sub.wiki.corp"), (by_name, "10.1.2.3")]
    for rule, host in [*elsewhere, (by_network, "git.corp"), (by_network, "::ffff:10.1.2.3")]:
        with pytest.raises(Forbidden):
            await rule.addresses(host, 80)


async def test_this_machine_s_own_names() -> None:
    assert set(await resolve("localhost", 80)) <= {"127.0.0.1", "::1"}
    for host in ("localhost", "LOCALHOST", "localhost."):
        with pytest.raises(Forbidden, match="not a public address"):
            await Reachable().addresses(host, 80)


def test_a_network_that_is_none() -> None:
    with pytest.raises(ConfigError, match=r"network '10.1.0.1/16': .*; allowed is an address or a network"):
        Reachable(networks=["10.1.0.1/16"])
