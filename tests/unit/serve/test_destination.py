"""Where an address leads. The addresses have the kernel's own form: ip(7), ipv6(7), unix(7), vsock(7), packet(7)."""

from __future__ import annotations

import socket
import struct

import pytest

from fairlead.serve.proof.destination import Leads, destination
from fairlead.serve.proof.names import no_such_name, question


def in4(host, port):
    return struct.pack("=HH", socket.AF_INET, socket.htons(port)) + socket.inet_aton(host) + bytes(8)


def in6(host, port):
    head = struct.pack("=HHI", socket.AF_INET6, socket.htons(port), 0)
    return head + socket.inet_pton(socket.AF_INET6, host) + bytes(4)


def unix(name):
    return struct.pack("=H", socket.AF_UNIX) + name


@pytest.mark.parametrize(
    ("address", "leads", "shown"),
    [
        (in4("127.0.0.1", 8000), Leads.INSIDE, "127.0.0.1:8000/tcp"),
        (in4("127.9.9.9", 8000), Leads.INSIDE, "127.9.9.9:8000/tcp"),
        (in4("0.0.0.0", 8000), Leads.INSIDE, "0.0.0.0:8000/tcp"),
        (in4("127.0.0.53", 53), Leads.DNS, "127.0.0.53:53/tcp"),
        (in4("10.0.0.1", 53), Leads.OUTSIDE, "10.0.0.1:53/tcp"),
        (in4("169.254.169.254", 80), Leads.OUTSIDE, "169.254.169.254:80/tcp"),
        (in4("224.0.0.251", 5353), Leads.OUTSIDE, "224.0.0.251:5353/tcp"),
        (in6("::1", 80), Leads.INSIDE, "[::1]:80/tcp"),
        (in6("::ffff:127.0.0.1", 80), Leads.INSIDE, "127.0.0.1:80/tcp"),
        (in6("::ffff:8.8.8.8", 80), Leads.OUTSIDE, "8.8.8.8:80/tcp"),
        (in6("fe80::1", 80), Leads.OUTSIDE, "[fe80::1]:80/tcp"),
        (in6("::", 53), Leads.DNS, "[::]:53/tcp"),
        (unix(b"/run/proxy.sock\0\0\0"), Leads.UNIX, "unix:/run/proxy.sock"),
        (unix(b"rel.sock"), Leads.UNIX, "unix:rel.sock"),
        (unix(b"\0abstract"), Leads.INSIDE, "unix:abstract"),
        (unix(b""), Leads.INSIDE, "unix:abstract"),
        (struct.pack("=HHIII", 40, 0, 1024, 2, 0), Leads.OUTSIDE, "vsock:2:1024"),
        (struct.pack("=HHiHBB8s", 17, 8, 1, 0, 0, 6, bytes(8)), Leads.OUTSIDE, "packet"),
        (struct.pack("=HHII", socket.AF_NETLINK, 0, 0, 0), Leads.NOWHERE, "family 16"),
        (bytes(16), Leads.NOWHERE, "family 0"),
        (b"", Leads.NOWHERE, "no address"),
        (in4("8.8.8.8", 53)[:6], Leads.OUTSIDE, "family 2"),
    ],
)
def test_an_address_leads_where_it_says(address, leads, shown):
    found = destination(address, socket.SOCK_STREAM)
    assert (found.leads, found.shown) == (leads, shown)


def test_datagrams_are_told_from_streams():
    assert destination(in4("8.8.8.8", 53), socket.SOCK_DGRAM).shown == "8.8.8.8:53/udp"


def query(name, kind=1):
    labels = b"".join(bytes([len(part)]) + part for part in name.split(b".") if part)
    return b"\x12\x34\x01\x00" + struct.pack(">HHHH", 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)


def test_the_answer_is_that_there_is_no_such_name():
    """RFC 1035 4.1.1: the same number and question, QR and RCODE 3."""
    asked = query(b"huggingface.co", 28)
    name, kind, end = question(asked + b"an OPT record of EDNS")
    assert (name, kind, end) == ("huggingface.co", "AAAA", len(asked))
    answer = no_such_name(asked, end)
    assert answer[:2] == asked[:2]
    assert answer[2] & 0x80
    assert answer[3] & 0x0F == 3
    assert answer[12:] == asked[12:]


@pytest.mark.parametrize(
    "raw", [b"", bytes(12), query(b"a" * 63 + b".b")[:40], query(b"x")[:-1], b"\0\0\x80\0\0\1" + bytes(8)]
)
def test_bytes_that_are_no_query_are_refused(raw):
    with pytest.raises(ValueError):
        question(raw)
