"""Windows without a virtual function, from kernel logs that others published."""

from __future__ import annotations

import json

import pytest

from fairlead.checks.datapath import matching
from fairlead.probe.readers.tree import Tree
from fairlead.watch.onnode.path import VfWindows
from fairlead.watch.onnode.sample import KernelLog, kernel_words
from support.captures import captures_root

CASES = ("revoke-docs", "revoke-docs-boot-only", "revoke-docs-not-returned", "lisa-netvsc-reload", "mana-on",
         "accelnet-docs-u1804", "lisa-rhel7-boot", "lisa-two-nics-one-subnet")  # fmt: skip
NETVSC = "hv_netvsc 000d3af5-76bd-000d-3af5-76bd000d3af5 eth0: "


@pytest.mark.requires("captures")
@pytest.mark.parametrize("name", CASES)
def test_published_logs_give_their_windows_and_their_last_path(name):
    place = captures_root() / name
    expect = json.loads((place / "case.json").read_text())["expect"]["audit"]
    root = place / "tree"
    lines = (
        KernelLog(Tree(str(root))).news()
        if (root / "dev/kmsg").exists()
        else [line for text in (place / "log.txt").read_bytes().split(b"\n") if (line := kernel_words(text))]
    )
    paths = VfWindows()
    for at_s, text in lines:
        paths.take(at_s, text)
    for nic, way in expect.get("final", {}).items():
        assert paths.way.get(nic) == way
    if "revocation" in expect:
        wanted = expect["revocation"]
        assert len(paths.windows) == wanted["count"]
        for window, said in zip(paths.windows, wanted["windows"], strict=True):
            tol_s = wanted["tol_s"]
            assert window["nic"] == said["nic"]
            assert window["start_s"] == pytest.approx(said["start_s"], abs=tol_s)
            if said["duration_s"] is None:
                assert "end_s" not in window
            else:
                assert window["end_s"] - window["start_s"] == pytest.approx(said["duration_s"], abs=tol_s)


def test_a_driver_that_goes_without_a_word_about_the_path_opens_a_window():
    paths = VfWindows()
    paths.take(5.0, NETVSC + "Data path switched to VF: enP1s1")
    assert paths.take(190.0, NETVSC + "VF slot 1 removed") == {"nic": "eth0", "start_s": 190.0}
    closed = paths.take(220.5, NETVSC + "Data path switched to VF: enP1s1")
    assert (closed["start_s"], closed["end_s"], closed["vf"]) == (190.0, 220.5, "enP1s1")


def test_one_that_is_taken_while_the_machine_starts_is_a_window_once_it_stays_away():
    paths = VfWindows()
    paths.take(5.0, NETVSC + "Data path switched to VF: enP1s1")
    assert paths.take(90.0, NETVSC + "VF slot 1 removed") is None
    assert paths.settled(150.0) == []
    assert paths.settled(211.0) == [{"nic": "eth0", "start_s": 90.0}]
    assert paths.settled(212.0) == []
    assert paths.take(220.0, NETVSC + "Data path switched to VF: enP1s1")["end_s"] == 220.0


def test_a_machine_that_never_had_one_has_no_window():
    paths = VfWindows()
    assert paths.take(5.0, NETVSC + "VF slot 1 removed") is None


def test_programs_cannot_speak_for_the_kernel():
    # facility 1 (user) in the priority: a program wrote it to /dev/kmsg (linux: ABI/testing/dev-kmsg)
    assert kernel_words(b"14,5,900,-;" + NETVSC.encode() + b"VF slot 1 removed") is None
    assert kernel_words(b"6,5,900000,-;" + NETVSC.encode() + b"VF slot 1 removed\n SUBSYSTEM=net") is not None


@pytest.mark.parametrize(
    "junk", [b"", b";", b"6,1", b"x,y,z;t", b"6,1,2,-", b"\xff\xfe;\x00", b"99999999999999999999,1,1;a"]
)
def test_junk_in_the_log_is_no_line(junk):
    assert kernel_words(junk) is None


def test_the_scheduled_event_nearest_to_a_window_explains_it_and_one_of_another_day_does_not():
    near, far = (4200.0, 4990.0, "near"), (1000.0, 1500.0, "far")
    assert matching(5000.0, 5065.0, [far, near], 900.0) == "near"
    assert matching(5000.0, 5065.0, [far], 900.0) is None
    assert matching(5000.0, 5065.0, [], 900.0) is None
