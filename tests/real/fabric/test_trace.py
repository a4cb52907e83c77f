"""What a tape holds is what went over the wire: held against the kernel's own copy of it, and read by Wireshark."""

from __future__ import annotations

import secrets
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from ipaddress import IPv6Address
from pathlib import Path

import msgspec
import pytest

from fairlead.fabric.mrc.headers import Opcode
from fairlead.fabric.mrc.packets import Sack, Write, decode
from fairlead.fabric.transport.context import Context, remote_of
from fairlead.fabric.transport.tape import SNAP_BYTES, Tape, Taped, capture, events

pytestmark = pytest.mark.real
TOKEN = secrets.token_bytes(32)
SIZE = 200_000


def talk(tapes: list[Tape], *addresses: str) -> None:
    """A Write of 200,000 bytes with an immediate from the first context to the second."""
    with Context(addresses=addresses, tape=tapes[0]) as a, Context(addresses=addresses, tape=tapes[1]) as b:
        mine, theirs = a.completion_queue(), b.completion_queue()
        private = remote_of(b.register(bytearray(SIZE)))
        with b.listen(addresses[0], TOKEN) as listener, ThreadPoolExecutor(1) as pool:
            job = pool.submit(listener.accept, theirs, theirs, private=private)
            qp = a.connect(addresses[0], listener.port, TOKEN, mine, mine)
            job.result(30).post_recv(wr_id=1)
        qp.post_write_imm(secrets.token_bytes(SIZE), qp.remote, 0xCAFE, wr_id=1)
        assert mine.wait(30)[0].num_bytes == SIZE


@pytest.fixture(scope="module")
def tapes() -> list[Tape]:
    found = [Tape(), Tape()]
    talk(found, "::1")
    return found


def test_each_end_has_what_the_other_sent(tapes) -> None:
    a, b = (list(events(tape.taped, name, [None])) for tape, name in zip(tapes, "ab", strict=True))
    for here, there in ((a, b), (b, a)):
        sent = sorted((e.ev, e.op, e.psn, e.qp, e.num_bytes) for e in here if e.what == "sent")
        came = sorted((e.ev, e.op, e.psn, e.qp, e.num_bytes) for e in there if e.what == "received")
        assert set(came) <= set(sent)
        assert came
    writes = [e for e in a if e.what == "sent" and e.op.startswith("write") and not e.again]
    assert [e.op for e in writes] == ["write_first", *["write_middle"] * (len(writes) - 2), "write_last_imm"]
    assert len({e.psn for e in writes}) == len(writes) == -(-SIZE // 4096)
    assert {e.op for e in b if e.what == "sent"} >= {"sack"}
    assert all(e.op for e in (*a, *b))


def test_a_tape_is_bounded_and_counts_what_it_leaves_out() -> None:
    found = [Tape(5), Tape(0)]
    talk(found, "127.0.0.1")
    assert (len(found[0].taped), len(found[1].taped)) == (5, 0)
    assert found[0].num_left_out > 20
    assert all(len(one.head) <= SNAP_BYTES for one in found[0].taped)


@pytest.fixture
def wire() -> Iterator[socket.socket]:
    """Everything that passes the loopback interface, as the kernel has it."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x86DD)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, 33, 32 << 20)  # SO_RCVBUFFORCE
        sock.bind(("lo", 0x86DD))
        sock.setblocking(False)
        yield sock


@pytest.mark.requires("root")
def test_the_headers_written_are_those_the_kernel_sent(wire) -> None:
    found = [Tape(), Tape()]
    talk(found, "::1")
    seen = set()
    while True:
        try:
            packet = wire.recv(1 << 16)
        except BlockingIOError:
            break
        if packet[6] == socket.IPPROTO_UDP:
            seen.add((packet[:7] + packet[8:40], packet[40:46], packet[48 : 48 + SNAP_BYTES]))
    assert len(seen) > 30
    written = list(records(capture([one for tape in found for one in tape.taped if one.is_sent])))
    for _, data in written:  # but for hop limit and checksum, which nobody knows above the sockets
        assert (data[:7] + data[8:40], data[40:46], data[48:]) in seen, data.hex()
    assert len(written) > 30


def records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Time and bytes of each record, by the format's definition."""
    magic, *_, link = struct.unpack_from("<IHHiIII", data)
    assert (magic, link) == (0xA1B23C4D, 101)
    at = 24
    while at < len(data):
        seconds, ns, kept, _ = struct.unpack_from("<IIII", data, at)
        yield seconds * 10**9 + ns, data[at + 16 : at + 16 + kept]
        at += 16 + kept


def tshark(folder: Path, data: bytes, *fields: str) -> list[list[str]]:
    """What Wireshark reads with the dissector, a line a packet."""
    if not shutil.which("tshark"):
        pytest.skip("needs tshark: apt install tshark")
    (folder / "x.pcap").write_bytes(data)
    (folder / "mrc.lua").write_text(resources.files("fairlead.fabric.transport").joinpath("mrc.lua").read_text())
    words = ["tshark", "-r", "x.pcap", "-X", "lua_script:mrc.lua", "-T", "fields"]
    done = subprocess.run(
        [*words, *(word for field in fields for word in ("-e", field))],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "Lua" not in done.stderr, done.stderr
    return [line.split("\t") for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("addresses", [["::1"], ["127.0.0.1", "127.0.0.2"]], ids=["v6", "v4"])
def test_wireshark_reads_every_packet_as_we_do(addresses, tmp_path) -> None:
    found = [Tape(), Tape()]
    talk(found, *addresses)
    for tape in found:
        fields = ("_ws.col.Protocol", "mrc.opcode", "mrc.psn", "mrc.qp", "mrc.rtx", "mrc.ev", "udp.length", "mrc.imm")
        rows = tshark(tmp_path, capture(tape.taped), *fields)
        said = list(events(tape.taped, "x", []))
        assert len(rows) == len(said) > 20
        for (protocol, opcode, psn, qp, rtx, ev, length, imm), event in zip(rows, said, strict=True):
            assert protocol == "MRC"
            assert Opcode(int(opcode, 0)).name.lower() == event.op
            assert (int(psn), int(qp, 0), int(rtx), int(ev, 0)) == (event.psn, event.qp, event.again, event.ev)
            assert int(length) == event.num_bytes + 8
            assert (imm == "0x0000cafe") == (event.op in ("write_last_imm", "write_only_imm"))
        fields = ("mrc.sack.cack", "mrc.sack.offset", "mrc.sack.bitmap", "mrc.va", "mrc.length", "_ws.malformed")
        for (cack, offset, bitmap, va, length, malformed), one in zip(
            tshark(tmp_path, capture(tape.taped), *fields), tape.taped, strict=True
        ):
            packet = decode(one.head, is_trimmed=one.size > len(one.head))
            assert not malformed
            if isinstance(packet, Sack):
                seth = packet.seth
                assert (int(cack), int(offset), int(bitmap, 0)) == (seth.cack_psn, seth.sack_offset, seth.sack_bitmap)
            if isinstance(packet, Write):
                assert (int(va, 0), int(length)) == (packet.reth.va, packet.reth.dma_len)


@pytest.mark.parametrize("change", [{"source": "x"}, {"to": "::1"}, {"rail": 256}, {"tclass": 300}, {"at_ns": -1}])
def test_what_is_no_datagram_is_refused(change) -> None:
    good = Taped(5, True, 0, "10.0.0.1", 7, "10.0.0.2", 9, 0, 2, 12, b"x" * 12)
    assert msgspec.json.decode(msgspec.json.encode(good), type=Taped) == good
    row = dict(zip(Taped.__struct_fields__, msgspec.to_builtins(good), strict=True)) | change
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(list(row.values()), Taped)


def test_damaged_packets_are_events_without_a_name() -> None:
    heads = [b"", b"\xc7", bytes(20), b"\xdc" + bytes(40), secrets.token_bytes(SNAP_BYTES)]
    taped = [Taped(i, True, 0, str(IPv6Address(1)), 7, "::1", 9, 0, 2, max(len(h), i), h) for i, h in enumerate(heads)]
    assert [e.at_ns for e in events(taped, "x", [])] == list(range(5))
    assert [len(data) for _, data in records(capture(taped))] == [48 + len(h) for h in heads]
