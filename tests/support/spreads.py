"""Spreads over lab hosts: started as users start them, watched from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fairlead.cluster.enter import running
from support.injector import FAIRLEAD, World
from support.origins import Origin, serving

NAME = "model.safetensors"


@contextlib.contextmanager
def serving_hosts(lab: World, folder: Path, **more: object) -> Iterator[Origin]:
    """An origin that every host of the lab and this machine know by one address."""
    with serving(folder, **more) as made:
        seen(lab, made)
        yield made


def seen(lab: World, origin: Origin) -> None:
    """Every host of the lab knows the origin by the address that this machine knows it by."""
    state = running(lab.name)
    for host in lab.nodes:
        origin.also_in(state.host(host).anchor.pid)


class Run:
    """A spread under way."""

    def __init__(self, lab: World, origin: Origin, dest: str, *words: str, file: Path | None = None) -> None:
        url = f"{origin.url}/model.safetensors"
        argv = [
            *FAIRLEAD,
            "weights",
            "spread",
            url,
            dest,
            "-f",
            str(file or lab.file),
            "--json",
            "--runs",
            str(lab.file.parent / "r"),
        ]
        self.child = subprocess.Popen([*argv, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def end(self) -> tuple[int, dict]:
        out, err = self.child.communicate(timeout=120)
        assert out, err
        return self.child.returncode, json.loads(out)


def digest_on(lab: World, host: str, dest: str) -> str:
    return lab.sh(host, f"sha256sum < {dest}/model.safetensors").split()[0]


def digest_of(model: Path) -> str:
    return subprocess.run(
        ["sha256sum", str(model / "model.safetensors")], capture_output=True, text=True
    ).stdout.split()[0]


def when_given(origin: Origin, num_bytes: int, do: Callable[[], object]) -> threading.Thread:
    """Do something once the origin has given so much."""

    def wait() -> None:
        deadline = time.monotonic() + 60
        while origin.given < num_bytes and time.monotonic() < deadline:
            time.sleep(0.01)
        do()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def programs_on(lab: World, host: str) -> list[int]:
    """The program of a spread on a host, as this machine numbers it."""
    pid = running(lab.name).host(host).anchor.pid
    space = Path(f"/proc/{pid}/ns/pid").readlink()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "ns/pid").readlink() == space and b"fairlead-weights" in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def signalled(lab: World, host: str, number: signal.Signals) -> None:
    for pid in programs_on(lab, host):
        os.kill(pid, number)


def killed(lab: World, host: str) -> None:
    signalled(lab, host, signal.SIGKILL)


def faulted(lab: World, *words: str) -> None:
    """`fairlead lab fault` in that lab."""
    subprocess.run([*FAIRLEAD, "lab", "fault", "-n", lab.name, *words], capture_output=True, check=True, timeout=60)
