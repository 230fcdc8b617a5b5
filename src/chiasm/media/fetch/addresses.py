"""Which network addresses may be dialled.

Written out as lists, because `ipaddress.is_global` differs by Python release.
Sources: IANA special-purpose registries for IPv4 and IPv6; the cloud vendors' documentation for metadata services.
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address

_PRIVATE_V4 = tuple(
    IPv4Network(text) for text in ("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
)
_PRIVATE_V6 = tuple(IPv6Network(text) for text in ("::1/128", "fc00::/7"))
_NEVER_V4 = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # "this host"; Linux dials loopback for 0.0.0.0
        "100.100.100.200/32",  # metadata service
        "168.63.129.16/32",  # metadata service on a public address
        "169.254.0.0/16",  # link-local and metadata services
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
_GLOBAL_V6 = IPv6Network("2000::/3")
_NEVER_V6 = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments, Teredo among them
        "2001:db8::/32",
        "2002::/16",  # 6to4 carries any IPv4 address
        "3fff::/20",
        "fd00:ec2::/32",  # metadata service
        "fd20:ce::/32",  # metadata service
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")


def is_dialable(address: Address, *, private_allowed: bool = False) -> bool:
    """Say whether an address may be dialled.

    `private_allowed` admits private and loopback addresses. Link-local, metadata, multicast and reserved ones are
    denied even then. IPv4 inside IPv6 (mapped, NAT64) is judged by the IPv4 address.
    """
    if isinstance(address, IPv6Address):
        inner = _inner(address)
        if inner is None:
            return _is_dialable_v6(address, private_allowed=private_allowed)
        address = inner
    if any(address in network for network in _NEVER_V4):
        return False
    return private_allowed or not any(address in network for network in _PRIVATE_V4)


def _inner(address: IPv6Address) -> IPv4Address | None:
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None


def _is_dialable_v6(address: IPv6Address, *, private_allowed: bool) -> bool:
    if any(address in network for network in _NEVER_V6):
        return False
    if any(address in network for network in _PRIVATE_V6):
        return private_allowed
    return address in _GLOBAL_V6
