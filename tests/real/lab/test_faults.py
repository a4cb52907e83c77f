"""Each fault is what it says, seen by whoever is hit; healed, it is gone."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from fairlead.cluster.enter import into_host
from fairlead.errors import LabError, UsageError
from fairlead.lab import inside
from fairlead.lab.faults.apply import heal, inject
from fairlead.spec import usid
from support.processes import until

pytestmark = [
    pytest.mark.real,
    pytest.mark.requires("root", "netns", "srv6", "tbf", "nft"),
    pytest.mark.usefixtures("healed"),
]

UDP_NO_CHECK6_TX, UDP_NO_CHECK6_RX = 101, 102
IPV6_RECVTCLASS, IPV6_TCLASS = 66, 67
PATH_P0 = str(usid.path_address(0, 0, 0, 1, 1))
"""n0 to n3 in plane 0 over T1 0."""


@contextlib.contextmanager
def flow(lab, address=PATH_P0, sender="n0", receiver="n3"):
    """A sender and a receiver of numbered datagrams along one path."""
    out, into = (lab.socket_in(host, socket.AF_INET6, socket.SOCK_DGRAM) for host in (sender, receiver))
    out.setsockopt(socket.IPPROTO_UDP, UDP_NO_CHECK6_TX, 1)
    into.setsockopt(socket.IPPROTO_UDP, UDP_NO_CHECK6_RX, 1)
    into.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVTCLASS, 1)
    into.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUFFORCE if hasattr(socket, "SO_RCVBUFFORCE") else 33, 8 << 20)
    into.bind(("::", 4791))
    into.settimeout(0.3)

    def send(count, size=200, gap_s=0.0, tclass=None):
        """Send and collect: the numbers that arrived, in order, and the traffic classes they had."""
        if tclass is not None:
            out.setsockopt(socket.IPPROTO_IPV6, IPV6_TCLASS, tclass)
        numbers, classes = [], []

        def take():
            data, extra, _, _ = into.recvmsg(65535, 64)
            numbers.append(int.from_bytes(data[:4], "big"))
            classes.extend(int.from_bytes(d, "little") for _, kind, d in extra if kind == IPV6_TCLASS)

        for number in range(count):
            out.sendto(number.to_bytes(4, "big") + b"\0" * (size - 4), (address, 4791))
            if gap_s:
                time.sleep(gap_s)
            if number % 50 == 49:
                into.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    while True:
                        take()
        into.settimeout(0.3)
        with contextlib.suppress(TimeoutError):
            while True:
                take()
        return numbers, classes

    try:
        yield send
    finally:
        out.close()
        into.close()


def carrier(lab, host, device):
    return lab.sh(host, f"cat /sys/class/net/{device}/carrier")


def dead_next_hops(lab, host="n0", to="n3"):
    return lab.sh(host, f"ip -6 route show {lab.state.host(to).fabric}").count("dead")


def test_link_down_takes_carrier_and_the_hosts_routes_leave_the_plane(lab):
    inject(lab.name, "link-down", "p0/n0", {})
    assert carrier(lab, "n0", "eth1") == "0"
    assert lab.sh("n0", "cat /sys/class/infiniband/mlx5_0/ports/1/state") == "1: DOWN"
    assert dead_next_hops(lab) == 2
    with flow(lab) as send, pytest.raises(OSError, match="unreachable"):
        send(5)
    with flow(lab, lab.state.host("n3").fabric) as send:
        assert len(send(5)[0]) == 5
    heal(lab.name, "all")
    assert carrier(lab, "n0", "eth1") == "1"
    assert lab.sh("n0", "cat /sys/class/infiniband/mlx5_0/ports/1/state") == "4: ACTIVE"
    assert dead_next_hops(lab) == 0
    with flow(lab) as send:
        assert send(5)[0] == [0, 1, 2, 3, 4]


def test_silent_drop_is_noticed_by_nobody_but_the_receiver(lab):
    inject(lab.name, "silent-drop", "p0/n0", {})
    with flow(lab) as send, flow(lab, str(usid.path_address(0, 1, 0, 0, 0)), "n3", "n0") as send_back:
        assert send(20)[0] == send_back(20)[0] == []
    assert carrier(lab, "n0", "eth1") == "1"
    assert dead_next_hops(lab) == 0
    heal(lab.name, "all")
    with flow(lab) as send:
        assert send(5)[0] == [0, 1, 2, 3, 4]


def test_a_silent_drop_of_one_side_lets_the_other_pass(lab):
    inject(lab.name, "silent-drop", "p0/n0", {"side": "up"})
    with flow(lab) as send, flow(lab, str(usid.path_address(0, 1, 0, 0, 0)), "n3", "n0") as send_back:
        assert send(20)[0] == []
        assert len(send_back(20)[0]) == 20


def test_one_way_drop_is_between_one_pair_and_one_way(lab):
    inject(lab.name, "one-way-drop", "n0:n3", {})
    others = {
        ("n0", "n3"): usid.path_address(1, 0, 1, 1, 1),
        ("n3", "n0"): usid.path_address(1, 1, 1, 0, 0),
        ("n1", "n3"): usid.path_address(1, 0, 1, 1, 1),
        ("n0", "n2"): usid.path_address(1, 0, 1, 1, 0),
    }
    for (sender, receiver), address in others.items():
        with flow(lab, str(address), sender, receiver) as send:
            assert len(send(10)[0]) == (0 if (sender, receiver) == ("n0", "n3") else 10), (sender, receiver)


def test_one_way_drop_also_stops_traffic_that_chooses_no_path(lab):
    inject(lab.name, "one-way-drop", "n0:n3", {})
    with flow(lab, lab.state.host("n3").fabric) as send:
        assert send(10)[0] == []


def test_switch_down_takes_its_neighbours_carrier_and_its_paths(lab):
    inject(lab.name, "switch-down", "p0/t1-0", {})
    link = json.loads(inside.ask(lab.state, "p0-t0-0", ["ip", "-j", "link", "show", "u0"]))[0]
    assert "NO-CARRIER" in link["flags"]
    with flow(lab) as send:
        assert send(5)[0] == []
    with flow(lab, str(usid.path_address(0, 0, 1, 1, 1))) as send_other:
        assert len(send_other(5)[0]) == 5
    heal(lab.name, "switch-down p0/t1-0")
    with flow(lab) as send:
        assert len(send(5)[0]) == 5


def test_a_flapping_port_goes_and_comes_until_healed(lab):
    inject(lab.name, "flap", "p0/n0", {"down_s": "0.1", "up_s": "0.1"})
    assert until(lambda: carrier(lab, "n0", "eth1") == "0")
    assert until(lambda: carrier(lab, "n0", "eth1") == "1")
    heal(lab.name, "all")
    assert [carrier(lab, "n0", "eth1") for _ in range(10)] == ["1"] * 10
    with flow(lab) as send:
        assert len(send(5)[0]) == 5


def test_a_slower_rate_holds_and_the_old_one_comes_back(lab):
    def seconds():
        # 30 packets of 8 KB: 8 ms at 250 Mb/s, 197 ms at 10 Mb/s less the bucket
        with flow(lab) as send:
            began = time.monotonic()
            assert len(send(30, size=8192)[0]) == 30
            return time.monotonic() - began - 0.3

    # a busy machine may be slow now and then, not every time
    assert any(seconds() < 0.1 for _ in range(30))
    inject(lab.name, "rate", "p0/n0", {"mbps": "10"})
    assert seconds() > 0.1
    heal(lab.name, "all")
    assert any(seconds() < 0.1 for _ in range(30))


def test_loss_is_about_what_was_asked_for(lab):
    inject(lab.name, "loss", "p0/n0", {"percent": "20", "side": "up"})
    with flow(lab) as send:
        lost = 2000 - len(set(send(2000)[0]))
    assert 300 < lost < 500


def test_marks_hit_capable_packets_only(lab):
    inject(lab.name, "ecn-mark", "p0/t0-1/t1-0", {"percent": "30"})
    with flow(lab) as send:
        numbers, classes = send(1000, tclass=2)  # ECT(0)
        marked = sum(c & 3 == 3 for c in classes)
        assert len(numbers) == 1000
        assert 220 < marked < 380
        assert not any(c & 3 == 3 for c in send(200, tclass=0)[1])


def test_duplicates_arrive_twice(lab):
    inject(lab.name, "duplicate", "p0/n0", {"percent": "20", "side": "up"})
    with flow(lab) as send:
        numbers, _ = send(1000)
    assert set(numbers) == set(range(1000))
    assert 120 < len(numbers) - 1000 < 280


def test_reordered_packets_are_overtaken_and_not_lost(lab):
    inject(lab.name, "reorder", "p0/n0", {"percent": "10"})
    with flow(lab) as send:
        numbers, _ = send(600, size=4000, gap_s=0.0001)
    late = sum(b < a for a, b in pairwise(numbers))
    assert late > 3
    assert len(set(numbers)) > 590


def test_large_packets_vanish_in_a_black_hole_and_small_ones_pass(lab):
    inject(lab.name, "mtu-black-hole", "p0/*", {"bytes": "1500"})
    with flow(lab) as send:
        assert len(send(10, size=1452)[0]) == 10  # 40 of IPv6, 8 of UDP
        assert send(10, size=1453)[0] == []


def test_a_dead_host_is_gone_without_a_word_and_boots_when_healed(lab):
    before = lab.state.host("n2")
    sleeper = subprocess.Popen(into_host(lab.state, before, ["sleep", "1000"]))
    lab.sh("n2", "echo kept >/tmp/x")
    inject(lab.name, "node-dead", "n2", {})
    assert sleeper.wait(60) != 0
    assert lab.state.host("n2").anchor is None
    assert inside.processes_of(before) == []
    link = json.loads(inside.ask(lab.state, "p0-t0-1", ["ip", "-j", "link", "show", "d0"]))[0]
    assert "LOWER_UP" not in link["flags"]
    with pytest.raises(LabError) as caught:
        inside.words_into(lab.name, "n2", ["true"])
    assert caught.value.code == "lab/node-dead"
    heal(lab.name, "all")
    assert lab.sh("n2", "hostname; cat /tmp/x 2>&1 | grep -c kept", check=False) == "n2\n0"
    with flow(lab, str(usid.path_address(0, 0, 0, 1, 0)), "n0", "n2") as send:
        assert len(send(5)[0]) == 5


def test_a_hung_host_stands_still_and_its_kernel_still_answers(lab):
    script = "import time\nwhile True: print(time.monotonic(), flush=True); time.sleep(0.02)"
    words = into_host(lab.state, lab.state.host("n1"), ["python3", "-c", script])
    with subprocess.Popen(words, stdout=subprocess.PIPE) as ticker:
        os.set_blocking(ticker.stdout.fileno(), False)

        def ticks(wait_s):
            time.sleep(wait_s)
            return len((ticker.stdout.read() or b"").split())

        assert until(lambda: ticks(0.1) >= 2)
        inject(lab.name, "node-hung", "n1", {})
        assert until(lambda: ticks(0.3) == 0)
        # the network of the host is the kernel's: it answers an echo
        ping = lab.socket_in("n0", socket.AF_INET6, socket.SOCK_RAW, socket.getprotobyname("ipv6-icmp"))
        ping.settimeout(20)
        ping.connect((lab.state.host("n1").fabric, 0))
        ping.send(bytes([128, 0, 0, 0, 0, 1, 0, 1]))
        assert ping.recv(100)[0] == 129
        ping.close()
        heal(lab.name, "all")
        assert until(lambda: ticks(0.1) >= 2)
        ticker.kill()


def test_a_slow_host_gets_its_share_of_a_processor(lab):
    burn = "import time\nend = time.monotonic() + 1\nwhile time.monotonic() < end: pass\nprint(time.process_time())"
    inject(lab.name, "slow-node", "n1", {"percent": "5"})
    assert float(lab.on("n1", "python3", "-c", burn)) < 0.15
    heal(lab.name, "all")
    # a busy machine gives less than a whole processor, though more than that
    assert any(float(lab.on("n1", "python3", "-c", burn)) > 0.2 for _ in range(60))


def test_a_full_disk_refuses_to_write_until_healed(lab):
    inject(lab.name, "disk-full", "n1", {"percent": "100"})
    write = (
        "try:\n open('/mnt/x', 'wb').write(b'x' * 100000)\n print('written')\nexcept OSError as e: print(e.strerror)"
    )
    assert lab.on("n1", "python3", "-c", write) == "No space left on device"
    heal(lab.name, "all")
    assert lab.on("n1", "python3", "-c", write) == "written"


def test_a_disk_that_others_write_to_while_it_fills_is_full(lab, monkeypatch):
    asked = []

    def told(file):
        """The first answer is older than what a program of the host has written since."""
        asked.append(file)
        return SimpleNamespace(f_blocks=1 << 20, f_bavail=1 << 20, f_frsize=4096) if len(asked) == 1 else real(file)

    real = os.fstatvfs
    monkeypatch.setattr(os, "fstatvfs", told)
    inject(lab.name, "disk-full", "n1", {"percent": "100"})
    assert len(asked) == 2
    space = os.statvfs(inside.host_path(lab.state.host("n1"), "run"))
    assert space.f_bavail == 0


def test_a_half_full_disk_is_half_full(lab):
    inject(lab.name, "disk-full", "n1", {"percent": "50"})
    assert lab.sh("n1", "df --output=pcent /tmp | tail -1").strip() in ("50%", "51%")


@pytest.mark.requires("faketime")
@pytest.mark.parametrize("seconds", [3600, -90])
def test_programs_started_from_now_on_see_another_time(lab, seconds):
    inject(lab.name, "clock-skew", "n1", {"seconds": str(seconds)})
    assert abs(float(lab.sh("n1", "date +%s.%N")) - time.time() - seconds) < 5
    assert abs(float(lab.on("n1", "python3", "-c", "import time; print(time.time())")) - time.time() - seconds) < 5
    assert abs(float(lab.sh("n0", "date +%s.%N")) - time.time()) < 5
    heal(lab.name, "all")
    assert abs(float(lab.sh("n1", "date +%s.%N")) - time.time()) < 5


def test_versions_and_parts_change_what_the_host_shows(lab):
    inject(lab.name, "driver-version", "n1", {"version": "535.1"})
    inject(lab.name, "firmware-version", "n1", {"version": "20.1", "hca": "mlx5_1"})
    inject(lab.name, "missing-hca", "n1", {"hca": "mlx5_2"})
    inject(lab.name, "file", "n1", {"path": "/etc/nccl.conf", "content": "NCCL_DEBUG=INFO\\n"})
    assert "535.1" in lab.sh("n1", "cat /proc/driver/nvidia/version; cat /sys/module/nvidia/version")
    assert "<driver_version>535.1<" in lab.sh("n1", "nvidia-smi -q -x")
    assert lab.sh("n1", "cat /sys/class/infiniband/mlx5_1/fw_ver") == "20.1"
    assert lab.sh("n1", "ls /sys/class/infiniband").split() == ["mlx5_0", "mlx5_1", "mlx5_3"]
    assert lab.sh("n1", "cat /etc/nccl.conf") == "NCCL_DEBUG=INFO"
    assert "535.1" not in lab.sh("n0", "nvidia-smi -q -x")
    heal(lab.name, "all")
    assert lab.sh("n1", "nvidia-smi -q -x") == lab.sh("n1", "cat /run/fairlead/cmd/nvidia-smi_-q_-x")
    assert "535.1" not in lab.sh("n1", "nvidia-smi -q -x; cat /proc/driver/nvidia/version")
    assert lab.sh("n1", "ls /sys/class/infiniband").split() == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]
    assert lab.sh("n1", "cat /sys/class/infiniband/mlx5_2/device/vendor") == "0x15b3"
    assert lab.sh("n1", "ls /etc/nccl.conf 2>&1", check=False).endswith("No such file or directory")


def test_a_booted_host_still_has_its_other_faults(lab):
    inject(lab.name, "missing-hca", "n2", {"hca": "mlx5_0"})
    inject(lab.name, "node-dead", "n2", {})
    heal(lab.name, "node-dead")
    assert lab.sh("n2", "ls /sys/class/infiniband").split() == ["mlx5_1", "mlx5_2", "mlx5_3"]


def test_overlapping_faults_heal_one_by_one(lab):
    inject(lab.name, "switch-down", "p0/t0-0", {})
    inject(lab.name, "link-down", "p0/n0", {})
    heal(lab.name, "switch-down")
    assert carrier(lab, "n0", "eth1") == "0"
    assert carrier(lab, "n1", "eth1") == "1"
    heal(lab.name, "link-down")
    assert carrier(lab, "n0", "eth1") == "1"
    with flow(lab) as send:
        assert len(send(5)[0]) == 5


def test_a_fault_on_nothing_changes_nothing(lab):
    for kind, target, settings in (("loss", "p0/n9", {}), ("los", "p0/n0", {}), ("loss", "p0/n0", {"percent": "x"})):
        with pytest.raises(UsageError):
            inject(lab.name, kind, target, settings)
    with pytest.raises(UsageError) as caught:
        heal(lab.name, "7")
    assert caught.value.code == "lab/no-such-fault"
    assert lab.state.faults == ()


@pytest.mark.parametrize("kind", ["loss", "ecn-mark", "duplicate", "reorder"])
@pytest.mark.parametrize("percent", ["0", "100"])
def test_a_share_can_be_none_and_all(lab, kind, percent):
    inject(lab.name, kind, "p0/n0", {"percent": percent})
    if kind == "loss":
        with flow(lab) as send:
            assert len(send(20)[0]) == {"0": 20, "100": 0}[percent]


@pytest.mark.parametrize("content", ["x", "none"])
def test_a_fault_never_reaches_a_file_of_the_machine(lab, content):
    mine = Path.home() / f"{lab.name}-file"  # hosts share home directories
    mine.write_text("the machine's")
    link = f"/etc/{lab.name}-link"
    try:
        lab.sh("n0", f"ln -sfn {mine} {link}; mkdir -p /etc/{lab.name}; ln -sfn {mine.parent} /etc/{lab.name}/home")
        assert lab.sh("n0", f"cat {mine}") == "the machine's"
        for path in (str(mine), f"/etc/../{mine}", f"/etc/{lab.name}/home/{mine.name}", "/proc/uptime", "/dev/null"):
            with pytest.raises(LabError) as caught:
                inject(lab.name, "file", "n0", {"path": path, "content": content})
            assert caught.value.code == "lab/not-its-own", path
            assert lab.state.faults == ()
        # the link itself is the host's own: it is replaced, what it names is not touched
        inject(lab.name, "file", "n0", {"path": link, "content": content})
        assert mine.read_text() == "the machine's"
        assert lab.sh("n0", f"cat {link} 2>&1", check=False).startswith("x" if content == "x" else "cat:")
        heal(lab.name, "all")
        assert lab.sh("n0", f"readlink {link}") == str(mine)
        assert mine.read_text() == "the machine's"
    finally:
        mine.unlink()


@pytest.mark.parametrize("content", ["x", "none"])
def test_a_healed_file_is_what_it_was(lab, content):
    before = lab.sh("n0", "stat -c %a /etc/passwd; cat /etc/passwd")
    for _ in range(2):
        inject(lab.name, "file", "n0", {"path": "/etc/passwd", "content": content})
        inject(lab.name, "file", "n0", {"path": "/etc/passwd", "content": "twice"})
        assert lab.sh("n0", "cat /etc/passwd") == "twice"
        heal(lab.name, "2")
        assert lab.sh("n0", "cat /etc/passwd 2>&1", check=False) != before
        heal(lab.name, "all")
        assert lab.sh("n0", "stat -c %a /etc/passwd; cat /etc/passwd") == before
    inject(lab.name, "file", "n0", {"path": "/etc/new/one", "content": "x"})
    inject(lab.name, "file", "n0", {"path": "/etc/new/one", "content": "y"})
    heal(lab.name, "all")
    assert lab.sh("n0", "ls /etc/new/one 2>&1", check=False).endswith("No such file or directory")


def test_a_file_that_cannot_be_written_is_a_plain_refusal(lab):
    inject(lab.name, "disk-full", "n0", {})
    with pytest.raises(LabError) as caught:
        inject(lab.name, "file", "n0", {"path": "/tmp/x", "content": "x" * 100_000})
    assert caught.value.code == "lab/refused"
    assert "No space left" in caught.value.message
    assert [f.kind for f in lab.state.faults] == ["disk-full"]
