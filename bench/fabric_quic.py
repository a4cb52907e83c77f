"""One QUIC connection of aioquic, as a peer for benches: it listens and counts, or it sends for some seconds.

python bench/fabric_quic.py serve ADDRESS SECONDS         lines of `time_ns bytes` of what came in order, at the end
python bench/fabric_quic.py send ADDRESS SECONDS TO

aioquic is plain Python: pip install aioquic. It checks no certificate here; there is nobody else in a lab. A connection
goes by one path at a time, and QUIC has no second one.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl
import sys
import time
from contextlib import suppress
from typing import ClassVar

from aioquic.asyncio import QuicConnectionProtocol, connect, serve
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import QuicEvent, StreamDataReceived
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PORT, STEP_NS, CHUNK = 4998, 1_000_000, 1 << 16
DATAGRAM = 1400
"""Bytes; aioquic sends no larger ones by itself."""


class Counter(QuicConnectionProtocol):
    """Counts what arrives, in order."""

    lines: ClassVar[list[str]] = []
    total = told = 0

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, StreamDataReceived):
            Counter.total += len(event.data)
            now = time.time_ns()
            if now - Counter.told > STEP_NS:
                Counter.told = now
                Counter.lines.append(f"{now} {Counter.total}")


def certificate(config: QuicConfiguration) -> None:
    """A key of its own for one day."""
    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lab")])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = (
        made.serial_number(1).not_valid_before(now - dt.timedelta(days=1)).not_valid_after(now + dt.timedelta(days=1))
    )
    config.certificate, config.private_key = made.sign(key, hashes.SHA256()), key


async def receive(address: str, seconds: float) -> None:
    config = QuicConfiguration(is_client=False, max_data=1 << 30, max_stream_data=1 << 28, max_datagram_size=DATAGRAM)
    certificate(config)
    await serve(address, PORT, configuration=config, create_protocol=Counter)
    print("ready", flush=True)
    await asyncio.sleep(seconds)
    print(*Counter.lines, sep="\n")


async def send(seconds: float, to: str) -> None:
    config = QuicConfiguration(is_client=True, verify_mode=ssl.CERT_NONE, max_datagram_size=DATAGRAM)
    end = time.monotonic() + seconds
    async with connect(to, PORT, configuration=config) as protocol:
        _, writer = await protocol.create_stream()
        stream = writer.transport.get_extra_info("stream_id")
        quic, body = protocol._quic, bytes(CHUNK)  # noqa: SLF001 - its writer never says that it is full
        while time.monotonic() < end:
            opened = quic._streams.get(stream)  # noqa: SLF001 - None until something was sent
            if opened is None or len(opened.sender._buffer) < 16 * CHUNK:  # noqa: SLF001
                quic.send_stream_data(stream, body)
                protocol.transmit()
                await asyncio.sleep(0)
            else:
                await asyncio.sleep(0.001)


def main() -> None:
    if len(sys.argv) < 4:
        print("a peer of bench/fabric_transport.py and fabric_switches.py: nothing to measure alone")
        return
    role, address, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    work = receive(address, seconds) if role == "serve" else asyncio.wait_for(send(seconds, sys.argv[4]), seconds + 1)
    with suppress(ConnectionError, TimeoutError):  # the sender's end of time
        asyncio.run(work)


if __name__ == "__main__":
    main()
