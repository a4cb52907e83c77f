"""Building: what a user reads when Debian's archive is out of reach, two runs at once, going on after an end."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from support.kube import build
from support.ports import Ports

SCRIPT = Path(build.__file__)
pytestmark = pytest.mark.real


def run(place: Path, **env: str) -> subprocess.CompletedProcess[str]:
    whole = {**os.environ, "FAIRLEAD_KUBE": str(place), **env}
    return subprocess.run([sys.executable, str(SCRIPT)], env=whole, capture_output=True, text=True, timeout=250)


@pytest.fixture
def free_space(monkeypatch):
    """As much as the build wants, whatever this machine has."""
    monkeypatch.setattr(build, "NEEDED_BYTES", 0)


def test_an_archive_that_is_not_there_is_named_with_what_to_do(tmp_path, free_space, capsys, monkeypatch):
    ports = Ports()
    uri = f"http://127.0.0.1:{ports.first}/debian"
    monkeypatch.setenv("FAIRLEAD_KUBE", str(tmp_path / "kube"))
    monkeypatch.setenv("FAIRLEAD_DEBIAN", uri)
    assert build.main() == 1
    ports.close()
    said = capsys.readouterr().err
    assert said.startswith(f"error: apt-get failed; is Debian's archive reached? It was asked for at {uri};")
    assert "FAIRLEAD_DEBIAN" in said
    assert "Traceback" not in said
    # nothing half-made passes for whole: the next run begins with the same step
    assert not (tmp_path / "kube/work/archive").exists()


def test_a_place_of_somebody_else_is_refused(tmp_path):
    shared = tmp_path / "open"
    shared.mkdir()
    shared.chmod(0o777)
    done = run(shared / "kube")
    assert done.returncode == 1
    assert "is no place of your own" in done.stderr
    assert not (shared / "kube").exists()


def test_a_disk_without_room_is_named_before_anything_is_fetched(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(build, "NEEDED_BYTES", 1 << 60)
    monkeypatch.setenv("FAIRLEAD_KUBE", str(tmp_path / "kube"))
    assert build.main() == 1
    assert "GiB in" in capsys.readouterr().err
    assert not (tmp_path / "kube/work").exists()


def test_the_second_of_two_runs_waits_and_finds_everything(tmp_path):
    place = tmp_path / "kube"
    (place / "bin").mkdir(parents=True, mode=0o700)
    said: list[str] = []
    with (place / "lock").open("w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        second = threading.Thread(target=build.build, args=(place, said.append))
        second.start()
        deadline = time.monotonic() + 60
        while not said and time.monotonic() < deadline:
            time.sleep(0.02)
        assert said == ["another run builds it; waiting for that one"]
        assert second.is_alive()
        for name in build.PROGRAMS:  # what the first run makes
            (place / "bin" / name).write_text("")
    second.join(60)
    assert not second.is_alive()
    assert said == ["another run builds it; waiting for that one"]


def test_a_step_that_was_interrupted_is_made_again_and_a_whole_one_is_not(tmp_path):
    steps = build._Build(tmp_path, lambda _: None)
    target = tmp_path / "a" / "made"

    def half(to: Path) -> None:
        to.mkdir()
        (to / "part").write_text("")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        steps._step("half", target, half)
    assert not target.exists()

    def whole(to: Path) -> None:
        to.mkdir()
        (to / "other").write_text("")

    steps._step("whole", target, whole)
    assert sorted(path.name for path in target.iterdir()) == ["other"]
    steps._step("again", target, lambda _: pytest.fail("made again"))


@pytest.mark.requires("kube")
def test_what_is_there_is_not_built_again():
    begin = time.process_time()
    done = run(build.place())
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Kubernetes {build.VERSION} is in {build.place() / 'bin'} (")
    assert time.process_time() - begin < 5


@pytest.mark.requires("kube")
def test_the_servers_say_their_version():
    for name in build.SERVERS:
        said = subprocess.run([build.place() / "bin" / name, "--version"], capture_output=True, text=True, timeout=60)
        assert said.stdout.strip() == f"Kubernetes v{build.VERSION}", said.stderr
