"""What decides beside the scheduler: whose chunks are bad, who reads which file, what is foretold, buffers."""

from __future__ import annotations

import hashlib
import os
import sys
import threading

import pytest

from fairlead.weights.comparing import Comparison
from fairlead.weights.forecast import forecast
from fairlead.weights.objects import Object
from fairlead.weights.onnode.buffers import Buffers
from fairlead.weights.onnode.stored import digest_of_file, said_digest
from fairlead.weights.planned import plan_of
from fairlead.weights.scheduler import MAX_BAD, Scheduler, Take
from fairlead.weights.shape import apart
from fairlead.weights.table import Weights


def scheduler(num_nodes: int) -> Scheduler:
    made = Scheduler(100, [bytearray(100)] * num_nodes, fetching=range(num_nodes), window=4)
    made.start()
    return made


def takers(made: Scheduler) -> dict[int, int]:
    """Giver -> taker, of the ring."""
    return {source: node for node, peer in enumerate(made.peers) if peer.alive for source, _ in peer.sources}


def many_bad(made: Scheduler, giver: int, taker: int, num: int = MAX_BAD) -> list:
    return [order for _ in range(num) for order in made.did_not_verify(giver, taker)]


def test_two_bad_chunks_part_nobody_and_three_do():
    made = scheduler(6)
    assert many_bad(made, 2, 3, MAX_BAD - 1) == []
    orders = made.did_not_verify(2, 3)
    assert orders
    assert all(isinstance(o, Take) for o in orders)
    assert takers(made)[2] != 3
    assert sorted(takers(made)) == sorted(takers(made).values()) == list(range(6)), "it is a ring as before"
    assert made.culprits == {}, "either of the two could be it"


@pytest.mark.parametrize("culprit", ["giver", "taker"])
def test_the_second_other_end_tells_whose_fault_it_is(culprit):
    made = scheduler(6)
    many_bad(made, 2, 3)
    if culprit == "giver":
        other = takers(made)[2]
        many_bad(made, 2, other)
        assert made.culprits == {2: sorted([3, other])}
    else:
        other = next(giver for giver, taker in takers(made).items() if taker == 3)
        many_bad(made, other, 3)
        assert made.culprits == {3: sorted([2, other])}


def test_of_two_nodes_neither_is_singled_out_and_the_one_that_cannot_go_on_ends():
    made = scheduler(2)
    many_bad(made, 0, 1, 4 * MAX_BAD - 1)
    assert made.culprits == {}
    made.did_not_verify(0, 1)
    assert made.culprits == {1: [0]}
    made.ended(1)
    assert made.culprits == {}


def test_pairs_are_parted_wherever_that_can_be():
    for num in range(4, 12):
        for at in range(num):
            pairs = {(at, (at + 1) % num), ((at + 3) % num, (at + 4) % num)}
            order = apart(range(num), pairs)
            assert sorted(order) == list(range(num))
            if num > 5:
                assert not pairs & {(order[i - 1], order[i]) for i in range(num)}


def test_each_file_is_read_once_and_those_of_a_dead_node_by_others():
    made = Comparison([10, 0, 30, 20, 5], {0: "md5:a", 1: "md5:none", 2: "md5:c", 3: "md5:d"})
    given = made.assign([7, 8])
    assert sorted(file for files in given.values() for file in files) == [0, 2, 3], "no bytes, nothing to compare"
    assert given[7] == [2], "balanced by bytes"
    assert made.assign([7, 8]) == {}
    made.compared(8, 2, "md5:other")  # it was not asked
    assert not made.bad
    made.compared(7, 2, "md5:c")
    assert sorted(made.assign([7])[7]) == [0, 3]
    made.compared(7, 0, "md5:wrong")
    assert not made.is_over
    made.compared(7, 3, "md5:d")
    assert made.is_over
    assert made.bad == {0: "md5:wrong"}


def test_digests_that_stores_say():
    """Headers as their documentation shows them: Azure "Get Blob", S3 "GetObject", Google Cloud "Hashes and ETags"."""
    assert said_digest({"x-ms-blob-content-md5": "sQqNsWTgdUEFt6mb5y4/5Q=="}) == "md5:b10a8db164e0754105b7a99be72e3fe5"
    assert said_digest({"x-goog-hash": "crc32c=n03x6A==,md5=XrY7u+Ae7tCTyyK7j1rNww=="}) == (
        "md5:5eb63bbbe01eeed093cb22bb8f5acdc3"
    )
    s3 = {"ETag": '"fba9dede5f27731c9771645a39863328"'}
    assert said_digest(s3, has_md5_tags=True) == "md5:fba9dede5f27731c9771645a39863328"
    assert said_digest({**s3, "x-amz-server-side-encryption": "AES256"}, has_md5_tags=True)
    for more in (
        {"x-amz-server-side-encryption": "aws:kms"},
        {"x-amz-server-side-encryption-customer-algorithm": "AES256"},
        {"ETag": '"3858f62230ac3c915f300c664312c63f-9"'},
    ):
        assert said_digest({**s3, **more}, has_md5_tags=True) == ""
    assert said_digest(s3) == "", "a tag of somebody else is any text"
    assert said_digest({"x-ms-blob-content-md5": "not base64!"}) == ""


def test_a_composite_object_of_google_has_a_crc_alone():
    """The example of cloud.google.com/storage/docs/hashes-etags, which is of "hello world"."""
    assert said_digest({"x-goog-hash": "crc32c=yZRlqg=="}) == "crc32c:c99465aa"
    assert said_digest({"x-goog-hash": "crc32c=?"}) == ""


@pytest.mark.parametrize(
    ("kind", "data", "value"),
    [
        # reveng.sourceforge.io/crc-catalogue: the check value of each is of these nine digits
        ("crc64nvme", b"123456789", "ae8b14860a799888"),
        ("crc32c", b"123456789", "e3069283"),
        ("crc32c", b"hello world", "c99465aa"),
        # NVM Express NVM Command Set Specification, figure "64b CRC Test Cases": 4 KiB of zeros, 4 KiB of ones
        ("crc64nvme", bytes(4096), "6482d367eb22b64e"),
        ("crc64nvme", b"\xff" * 4096, "c0ddba7302eca3ac"),
    ],
)
def test_crcs_are_those_that_are_published(tmp_path, kind, data, value):
    pytest.importorskip("awscrt", reason="missing: pip install awscrt")
    (tmp_path / "f").write_bytes(data)
    fd = os.open(tmp_path / "f", os.O_RDONLY)
    assert digest_of_file(fd, len(data), f"{kind}:?") == f"{kind}:{value}"
    os.close(fd)


def test_a_python_without_the_package_says_that_it_cannot(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "awscrt.checksums", None)
    (tmp_path / "f").write_bytes(b"x")
    fd = os.open(tmp_path / "f", os.O_RDONLY)
    assert digest_of_file(fd, 1, "crc64nvme:?") == ""
    os.close(fd)


def test_a_crc_is_made_where_it_can_be_and_counted_where_it_cannot():
    made = Comparison([10, 20, 30], {0: "md5:a", 1: "crc64nvme:b", 2: "crc32c:c"})
    given = made.assign([7, 8])
    assert given == {7: [2], 8: [1, 0]}
    made.compared(7, 2, "")
    assert made.assign([7, 8]) == {8: [2]}, "7 makes no CRC"
    made.compared(8, 1, "")
    assert made.assign([7, 8]) == {}, "nobody does; 8 is still to say so of the other one"
    made.compared(8, 2, "")
    assert made.assign([7, 8]) == {}
    assert not made.is_over
    made.compared(8, 0, "md5:a")
    assert (made.is_over, made.unread, made.bad) == (True, {1, 2}, {})


def test_digests_of_files(tmp_path):
    (tmp_path / "f").write_bytes(b"hello world\n" * 500_000)
    fd = os.open(tmp_path / "f", os.O_RDONLY)
    size = os.fstat(fd).st_size
    for kind in ("md5", "sha256"):
        with (tmp_path / "f").open("rb") as file:
            assert digest_of_file(fd, size, f"{kind}:?") == f"{kind}:{hashlib.file_digest(file, kind).hexdigest()}"
    (tmp_path / "g").write_bytes(b"what is up, doc?")  # the example of git-scm.com/book/en/v2/Git-Internals-Git-Objects
    small = os.open(tmp_path / "g", os.O_RDONLY)
    assert digest_of_file(small, 16, "git:?") == "git:bd9dbf5aae1a3862dd1526723246b20206e5fc37"
    os.close(fd)
    os.close(small)


def test_who_wants_several_buffers_gets_all_of_them_or_none():
    """Two that each hold half and wait for the other half would wait for ever: 32 connections, 4 chunks a request."""
    buffers = Buffers(6, 4096)
    done = threading.Semaphore(0)

    def work() -> None:
        for _ in range(50):
            for one in buffers.take(4):
                buffers.give(one)
        done.release()

    for _ in range(8):
        threading.Thread(target=work, daemon=True).start()
    assert all(done.acquire(timeout=60) for _ in range(8))
    assert len(buffers.free) == 6


def plan(num_bytes: int = 413 * 10**9):
    return plan_of([Object(path="m.safetensors", size=num_bytes)], source="x")


def foretold(said: Weights, links=None, **more):
    made = plan()
    what = {
        "num_nodes": 16,
        "left_bytes": made.total_bytes,
        "from_origin_bytes": made.total_bytes,
        "max_bandwidth": 0.0,
    }
    return forecast(made, **{**what, **more}, said=said, links=links or {})


def test_nothing_is_foretold_from_nothing():
    made = foretold(Weights())
    assert made.body()["predicted_s"] is None
    assert "weights.origin_gbps would say" in made.text()


def test_the_slowest_of_origin_link_and_disk_is_the_bound():
    said = Weights(origin_gbps=200, link_gbps=100, write_mb_s=12_500)
    made = foretold(said)
    assert made.bound_s == pytest.approx(413 / 12.5)
    assert made.bound_s < made.predicted_s < 1.01 * made.bound_s
    assert foretold(said, max_bandwidth=5e9).bound_s == pytest.approx(413 / 5)
    slow = foretold(Weights(origin_gbps=200), {"n1": (12.5e9, "speed of ib0"), "n2": (1.25e9, "speed of eth0")})
    assert slow.bound_s == pytest.approx(413 / 1.25)
    assert "speed of eth0 of n2" in slow.text()


def test_what_is_there_takes_no_time():
    made = foretold(Weights(origin_gbps=200, link_gbps=100), left_bytes=0, from_origin_bytes=0)
    assert (made.bound_s, made.text()) == (0, "nothing is left to take")
