"""Which hierarchies a lab uses, and what is written to freeze and slow a host, on made-up trees of each kind."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from fairlead.errors import NotPermitted
from fairlead.lab import cgroups

HYBRID = """tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup {0}/cpu cgroup rw,relatime,cpu 0 0
cgroup {0}/freezer cgroup rw,relatime,freezer 0 0
cgroup2 {0}/unified cgroup2 rw,relatime 0 0
"""
PURE = "cgroup2 {0} cgroup2 rw 0 0\n"
V1 = "cgroup {0}/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\ncgroup {0}/freezer cgroup rw,freezer 0 0\n"


@pytest.mark.parametrize(
    ("mounts", "controllers", "expected"),
    [
        (HYBRID, "", ["unified/fairlead/x", "cpu/fairlead/x"]),
        (PURE, "cpuset cpu memory", ["fairlead/x"]),
        (PURE, "memory", ["fairlead/x"]),
        (V1, "", ["freezer/fairlead/x", "cpu,cpuacct/fairlead/x"]),
        ("", "", []),
    ],
)
def test_root_uses_v2_where_it_can_and_v1_for_the_rest(tmp_path, mounts, controllers, expected):
    (tmp_path / "cgroup.controllers").write_text(controllers)
    for name in ("cpu", "cpu,cpuacct", "freezer", "unified"):
        (tmp_path / name).mkdir()
    found = cgroups.mounts(mounts.format(tmp_path))
    roots = cgroups.choose("x", privileged=True, found=found, own="")
    assert [str(r.relative_to(tmp_path)) for r in roots] == expected


def test_a_hierarchy_that_cannot_be_written_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr(cgroups.os, "access", lambda place, _: "unified" not in str(place))
    found = cgroups.mounts(HYBRID.format(tmp_path))
    roots = cgroups.choose("x", privileged=True, found=found, own="")
    assert roots == [tmp_path / "freezer/fairlead/x", tmp_path / "cpu/fairlead/x"]


def test_an_ordinary_user_uses_its_own_cgroup_if_it_may_write_there(tmp_path):
    (tmp_path / "user.slice/me").mkdir(parents=True)
    found = cgroups.mounts(PURE.format(tmp_path))
    own = "0::/user.slice/me\n"
    assert cgroups.choose("x", privileged=False, found=found, own=own) == [tmp_path / "user.slice/me/fairlead-x"]
    assert cgroups.choose("x", privileged=False, found=found, own="0::/gone\n") == []
    assert cgroups.choose("x", privileged=False, found={}, own="1:cpu:/\n") == []


def host(tmp_path, **files):
    for name, content in files.items():
        (tmp_path / name.replace("__", ".")).write_text(content)
    return [str(tmp_path)]


def test_freezing_v2_and_v1(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    two, one = host(tmp_path / "a", cgroup__freeze="0"), host(tmp_path / "b", freezer__state="THAWED")
    assert cgroups.freeze(two, frozen=True)
    assert cgroups.freeze(one, frozen=True)
    assert (tmp_path / "a/cgroup.freeze").read_text() == "1"
    assert (tmp_path / "b/freezer.state").read_text() == "FROZEN"
    assert not cgroups.freeze([str(tmp_path)], frozen=True)


def test_quotas_are_a_share_of_a_tenth_of_a_second(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    two = host(tmp_path / "a", cpu__max="max 100000")
    one = host(tmp_path / "b", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    cgroups.set_cpu_quota(two, 25)
    assert (tmp_path / "a/cpu.max").read_text() == "25000 100000"
    cgroups.set_cpu_quota(two, None)
    assert (tmp_path / "a/cpu.max").read_text() == "max 100000"
    cgroups.set_cpu_quota(one, 150)
    assert (tmp_path / "b/cpu.cfs_quota_us").read_text() == "150000"
    cgroups.set_cpu_quota(one, None)
    assert (tmp_path / "b/cpu.cfs_quota_us").read_text() == "-1"


def test_without_a_cpu_controller_a_quota_is_refused_and_its_end_is_not(tmp_path):
    with pytest.raises(NotPermitted) as caught:
        cgroups.set_cpu_quota([str(tmp_path)], 10)
    assert caught.value.code == "lab/no-cpu-cgroup"
    cgroups.set_cpu_quota([str(tmp_path)], None)


@pytest.mark.parametrize(("percent", "written"), [(10, "10000 100000"), (0.1, "1000 100000"), (None, "max 100000")])
def test_a_quota_is_never_less_than_the_kernel_takes(tmp_path, percent, written):
    (tmp_path / "cpu.max").write_text("")
    cgroups.set_cpu_quota([str(tmp_path)], percent)
    assert (tmp_path / "cpu.max").read_text() == written


def test_a_lab_may_come_while_the_last_other_one_goes(tmp_path):
    """Both have the same parent, and who goes last removes it."""

    def come_and_go(name):
        for _ in range(300):
            cgroups.create([tmp_path / "fairlead" / name], ["n0"])
            cgroups.remove([tmp_path / "fairlead" / name])

    with ThreadPoolExecutor(2) as both:
        list(both.map(come_and_go, ["a", "b"]))
    assert list(tmp_path.iterdir()) == []
