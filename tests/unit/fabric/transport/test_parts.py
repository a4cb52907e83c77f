"""Seals, memory, queues and the kernel's news of links: the small parts, each by itself."""

from __future__ import annotations

import array
import asyncio
import ctypes
import fcntl
import hmac
import mmap
import os
import random
import resource
import select
import struct
import threading
import time
import zlib
from multiprocessing import shared_memory

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fairlead.errors import LocalProtocolError
from fairlead.fabric.mrc.completion import Completion, Status, WorkOpcode
from fairlead.fabric.transport import seal
from fairlead.fabric.transport.context import Context
from fairlead.fabric.transport.fast import kernels
from fairlead.fabric.transport.interfaces import LinkWatch, interface_of, is_up, mtu_of
from fairlead.fabric.transport.memory import view_of
from fairlead.fabric.transport.queues import CompletionQueue, told_at_the_end
from fairlead.fabric.transport.seal import Seal, Seals

TOKEN, A, B = b"t" * 32, b"a" * 16, b"b" * 16


def pair() -> tuple[Seal, Seal]:
    return Seal(TOKEN, A, B), Seal(TOKEN, A, B)


def sealed(out: Seal, *parts: bytes) -> memoryview:
    return memoryview(b"".join((*parts, out.close(parts))))


def gmac(key: bytes, nonce: bytes, data: bytes) -> bytes:
    """AES-GMAC from its definition, NIST SP 800-38D 6.3, 6.4 and 7.1, of the block cipher and nothing else."""

    def block(number: int) -> int:
        cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # one block, of which GCM is made
        return int.from_bytes(cipher.update(number.to_bytes(16, "big")), "big")

    def product(x: int, y: int) -> int:
        z = 0
        for bit in range(127, -1, -1):
            z ^= y if x >> bit & 1 else 0
            y = y >> 1 ^ (0xE1 << 120 if y & 1 else 0)
        return z

    h, s = block(0), 0
    for i in range(0, len(data), 16):
        s = product(s ^ int.from_bytes(data[i : i + 16].ljust(16, b"\0"), "big"), h)
    s = product(s ^ len(data) * 8 << 64, h)
    return (s ^ block(int.from_bytes(nonce + b"\0\0\0\1", "big"))).to_bytes(16, "big")


def test_gmac_as_reckoned_here_is_the_published_one() -> None:
    """McGrew and Viega, "The Galois/Counter Mode of Operation", appendix B, test case 13: AES-256, nothing at all."""
    assert gmac(bytes(32), bytes(12), b"").hex() == "530f8afbc74536b9a963b4f1c4cb738b"


def test_the_tag_is_gmac_of_the_datagram_with_the_counter_as_nonce_under_a_key_of_both_ends() -> None:
    """Reckoned here from RFC 5869 and SP 800-38D alone, as another implementation would."""
    extracted = hmac.digest(A + B, TOKEN, "sha256")
    key = hmac.digest(extracted, b"fairlead mrc\x01", "sha256")
    out = Seal(TOKEN, A, B)
    for counter in (bytes(8), bytes(7) + b"\1"):
        body = sealed(out, b"head", b"payload" * 3)
        assert bytes(body) == b"head" + b"payload" * 3 + counter + gmac(
            key, bytes(4) + counter, b"head" + b"payload" * 3
        )


def test_counters_of_a_peer_go_on_after_its_queue_pairs_are_gone() -> None:
    """Under one key a nonce that came twice would give the key away, and recorded datagrams would be taken again."""
    ours, theirs = Seals(), Seals()
    first = sealed(ours.of(TOKEN, A, B).sending, b"one")
    assert theirs.of(TOKEN, B, A).receiving.open(first) is not None
    second = sealed(ours.of(TOKEN, A, B).sending, b"one")
    assert bytes(first) != bytes(second)
    assert theirs.of(TOKEN, B, A).receiving.open(first) is None
    assert theirs.of(TOKEN, B, A).receiving.open(second) is not None
    assert ours.of(b"u" * 32, A, B).sending is not ours.of(TOKEN, A, B).sending


def test_what_was_sealed_opens_once_in_any_order() -> None:
    out, into = pair()
    made = [sealed(out, bytes([i]) * 9) for i in range(200)]
    for i in (*range(0, 200, 2), *range(199, 0, -2)):
        assert bytes(into.open(made[i])) == bytes([i]) * 9
    assert not [body for body in made if into.open(body) is not None]


def test_what_is_too_old_to_be_told_from_a_replay_is_refused() -> None:
    out, into = pair()
    first = sealed(out, b"x")
    for _ in range(seal.WINDOW):
        last = sealed(out, b"y")
    assert into.open(last) is not None
    assert into.open(first) is None


@pytest.mark.parametrize("place", range(0, 40, 3))
def test_a_changed_bit_a_shorter_datagram_another_key_and_the_other_direction_are_refused(place: int) -> None:
    out, into = pair()
    body = bytearray(sealed(out, b"0123456789abcdef"))
    body[place] ^= 0x10
    assert into.open(memoryview(body)) is None
    body[place] ^= 0x10
    assert into.open(memoryview(body)[:place]) is None
    assert Seal(TOKEN, B, A).open(memoryview(body)) is None
    assert Seal(b"u" * 32, A, B).open(memoryview(body)) is None
    assert into.open(memoryview(body)) is not None


def test_authentication_together_with_trimming_is_refused() -> None:
    with pytest.raises(LocalProtocolError) as refused:
        Context(addresses=["::1"], sealed=True, trim=True)
    assert refused.value.code == "fabric/sealed-trim"


def test_memory_of_every_kind_is_seen_where_it_lies() -> None:
    torch = pytest.importorskip("torch")
    shared = shared_memory.SharedMemory(create=True, size=4096)
    try:
        kinds = [
            bytearray(8),
            array.array("d", [0.0]),
            np.zeros((2, 4), dtype=np.uint8),
            torch.zeros(2, dtype=torch.float32),
            torch.zeros(4, dtype=torch.bfloat16),
            mmap.mmap(-1, 4096),
            shared.buf,
        ]
        for memory in kinds:
            view = view_of(memory)
            assert view.format == "B"
            assert len(view) >= 8
            view[:8] = b"\x01" * 8
            assert bytes(view_of(memory)[:8]) == b"\x01" * 8
            del view
        assert kinds[4].view(torch.int16).tolist() == [0x0101] * 4
    finally:
        del kinds, memory
        shared.close()
        shared.unlink()
    assert len(view_of(b"")) == len(view_of(np.zeros(0))) == 0


def test_memory_that_cannot_be_sent_from_where_it_lies_is_refused() -> None:
    torch = pytest.importorskip("torch")
    for memory in (np.zeros((4, 4))[:, 1], torch.zeros(4, 4)[:, 1], torch.zeros(4, device="meta"), "text", 7):
        with pytest.raises(LocalProtocolError) as told:
            view_of(memory)
        assert told.value.code == "fabric/bad-memory"


def done(wr_id: int) -> Completion:
    return Completion(wr_id, 3, WorkOpcode.RDMA_WRITE, Status.SUCCESS)


def test_waiting_ends_with_a_completion_of_another_thread_or_with_the_time() -> None:
    queue = CompletionQueue(8)
    queue.reserve()
    assert queue.wait(timeout_s=0.0) == []
    thread = threading.Timer(0.05, queue.add, [done(4)])
    thread.start()
    assert [c.wr_id for c in queue.wait(timeout_s=30)] == [4]
    thread.join()
    assert queue.wait(timeout_s=0.01) == []
    queue.close()


def test_who_waits_is_woken_once_when_the_thread_that_adds_is_through_with_its_work() -> None:
    """Woken amid that work it would take the interpreter from it, and then wait for the lock that is held there."""
    here, there = CompletionQueue(8), CompletionQueue(8)
    for queue in (here, here, there):
        queue.reserve()
    with told_at_the_end():
        here.add(done(1))
        here.add(done(2))
        thread = threading.Thread(target=there.add, args=[done(3)])
        thread.start()
        thread.join()
        assert not is_readable(here)
        assert is_readable(there)  # another thread's work is not this one's
    assert os.eventfd_read(here.fileno()) == 1
    here.reserve()
    assert [c.wr_id for c in here.poll(2)] == [1, 2]
    here.add(done(4))
    assert is_readable(here)
    here.close()
    there.close()


def test_a_program_with_many_files_open_can_wait() -> None:
    """A descriptor beyond 1023 is none for select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2000:
        pytest.skip(f"no more than {hard} files may be open")
    queue = CompletionQueue(8)
    low = queue._fd
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    queue._fd = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 1500)
    try:
        assert queue.wait(timeout_s=0.01) == []
        queue.reserve()
        queue.add(done(4))
        assert [c.wr_id for c in queue.wait(timeout_s=30)] == [4]
    finally:
        queue.close()
        os.close(low)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert queue.wait() == []


def is_readable(queue: CompletionQueue) -> bool:
    return bool(select.select([queue], [], [], 0)[0])


def test_the_descriptor_is_readable_as_long_as_something_is_left_and_no_longer() -> None:
    """A loop that reads whenever it is readable would otherwise never sleep again."""
    queue = CompletionQueue(8)
    assert not is_readable(queue)
    for number in range(3):
        queue.reserve()
        queue.add(done(number))
    assert is_readable(queue)
    assert [c.wr_id for c in queue.wait(0, 2)] == [0, 1]
    assert is_readable(queue)
    assert [c.wr_id for c in queue.wait(0, 2)] == [2]
    assert not is_readable(queue)
    assert queue.wait(0) == []
    assert not is_readable(queue)
    queue.close()


async def test_asyncio_waits_too() -> None:
    queue = CompletionQueue(8)
    for _ in range(2):
        queue.reserve()
    asyncio.get_running_loop().call_later(0.02, queue.add, done(5))
    assert [c.wr_id for c in await asyncio.wait_for(queue.wait_async(), 30)] == [5]
    queue.add(done(6))
    assert [c.wr_id for c in await asyncio.wait_for(queue.wait_async(), 30)] == [6]
    queue.close()


def test_a_queue_that_is_closed_ends_every_wait_at_it_before_its_descriptor_goes() -> None:
    queue = CompletionQueue(8)
    fd, ends = queue.fileno(), []
    waiting = [threading.Thread(target=lambda: ends.append(queue.wait(None)), daemon=True) for _ in range(3)]
    for thread in waiting:
        thread.start()
    time.sleep(0.1)  # most are in the kernel by then; whoever is late finds it closed
    queue.close()
    for thread in waiting:
        thread.join(30)
    assert ends == [[], [], []]
    assert queue.fileno() == -1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert queue.wait(None) == []
    queue.close()


def test_what_came_before_a_queue_was_closed_can_still_be_taken_and_what_comes_after_writes_to_nobody() -> None:
    queue = CompletionQueue(8)
    for number in range(2):
        queue.reserve()
        queue.add(done(number))
    queue.close()
    queue.reserve()
    queue.add(done(2))
    assert [c.wr_id for c in queue.wait(None, 2)] == [0, 1]
    assert [c.wr_id for c in queue.poll()] == [2]
    queue.reserve()
    queue.add(done(3))  # the first again: it would be told
    assert [c.wr_id for c in queue.wait(None)] == [3]


async def test_a_queue_that_is_closed_ends_the_wait_of_a_task() -> None:
    queue = CompletionQueue(8)
    fd = queue.fileno()
    asyncio.get_running_loop().call_later(0.02, queue.close)
    assert await asyncio.wait_for(queue.wait_async(), 30) == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert await queue.wait_async() == []


def news(index: int, flags: int, kind: int = 16) -> bytes:
    """A message of rtnetlink(7), laid out as linux/netlink.h and linux/rtnetlink.h say."""
    body = struct.pack("=BxHiII", 0, 1, index, flags, 0xFFFFFFFF) + struct.pack("=HH4s", 8, 4, b"\x00\x05\x00\x00")
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body


def test_links_go_and_come_by_the_kernels_messages() -> None:
    watch = LinkWatch(["lo", "", "lo"])
    try:
        assert watch.up == watch.read() == 0b111
        watch.note(news(1, 0x1003))  # up, no carrier
        assert watch.up == 0b010
        watch.note(news(2, 0x1002) + news(1, 0x11043))
        assert watch.up == 0b111
        watch.note(news(1, 0x11043, kind=17))  # gone
        assert watch.up == 0b010
        for size in range(len(news(1, 0))):
            watch.note(news(1, 0x11043)[:size])
        watch.note(b"\x00" * 64)
        assert watch.up == 0b010
    finally:
        watch.close()


def test_the_loopback_is_found_by_its_addresses() -> None:
    assert interface_of("::1") == interface_of("127.0.0.1") == "lo"
    assert interface_of("2001:db8::1") == ""
    assert mtu_of("lo") > 1280
    assert is_up("lo")
    begin = time.monotonic()
    assert mtu_of("no-such-thing") == 1500
    assert time.monotonic() - begin < 5


def test_every_library_that_may_reckon_the_icrc_says_what_zlib_says() -> None:
    """In one go, and going on from what came before, as headers and payload do."""
    found = [(library, symbol) for library, symbol in kernels._PLACES["crc32"] if kernels._address(library, symbol)]
    assert found[-1][1] == "crc32"
    data = random.Random(1).randbytes(5000)
    for library, symbol in found:
        function = getattr(ctypes.CDLL(library), symbol)
        function.argtypes = [ctypes.c_uint32, ctypes.c_char_p, ctypes.c_size_t]
        function.restype = ctypes.c_uint32
        for num in (0, 1, 3, 36, 257, 4096, 5000):
            assert function(0, data[:num], num) == zlib.crc32(data[:num]), (library, num)
            assert function(zlib.crc32(data[:40]), data[40:num], max(num - 40, 0)) == zlib.crc32(data[: max(num, 40)])


def test_a_library_that_reckons_another_sum_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a right name and a wrong content nothing would be heard but packets that nobody takes."""
    own = kernels._PLACES["crc32"][-1]
    monkeypatch.setitem(kernels._PLACES, "crc32", ((own[0], "adler32"), own))
    assert kernels._address(own[0], "adler32")
    found = kernels.c_functions.__wrapped__()
    assert found["crc32"] == kernels._address(*own)
