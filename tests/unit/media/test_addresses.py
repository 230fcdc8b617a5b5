from ipaddress import ip_address

import pytest

from chiasm.media.fetch.addresses import is_dialable

PUBLIC = [
    "1.1.1.1",
    "93.184.216.34",
    "2606:4700::1111",
    "::ffff:1.1.1.1",
    "64:ff9b::101:101",
    "172.15.0.1",
    "172.32.0.1",
]
PRIVATE = [
    "10.0.0.1",
    "100.64.0.1",
    "127.0.0.1",
    "127.255.255.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "::1",
    "fc00::1",
    "fdff::1",
    "::ffff:10.0.0.1",
    "64:ff9b::a00:1",
]
NEVER = [
    "0.0.0.0",
    "0.1.2.3",
    "169.254.169.254",
    "168.63.129.16",
    "100.100.100.200",
    "192.0.0.192",
    "192.0.2.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::7f00:1",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:101:101::",
    "64:ff9b:1::1",
    "3fff::1",
    "100::1",
    "fd00:ec2::254",
    "fd20:ce::254",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
]


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses(text):
    assert is_dialable(ip_address(text))


@pytest.mark.parametrize("text", PRIVATE)
def test_private_addresses_only_on_request(text):
    assert not is_dialable(ip_address(text))
    assert is_dialable(ip_address(text), private_allowed=True)


@pytest.mark.parametrize("text", NEVER)
def test_others_never(text):
    assert not is_dialable(ip_address(text))
    assert not is_dialable(ip_address(text), private_allowed=True)
