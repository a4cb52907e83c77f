"""A virtual machine whose kernel has RDMA: Debian's own kernel with the soft RoCE driver (rdma_rxe), under QEMU.

The kernel that runs the tests seldom has RDMA. Here a program meets a real `NETLINK_RDMA`, real queue pairs of
ibv_rc_pingpong, real /sys/class/infiniband. The guest sees this machine's files read-only, by 9p, and writes into one
folder. `prepare()` fetches kernel and busybox once (Debian's mirror, 71 MB), into a cache outside the tree; tests use
the cache where it is there:

    python tests/support/rdmavm.py          prepare, and show that it boots
"""

from __future__ import annotations

import io
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CACHE = Path(os.environ.get("FAIRLEAD_RDMA_KERNEL") or Path.home() / ".cache" / "fairlead-tests" / "rdma-kernel")
BOOT_MODULES = ("virtio_pci", "9pnet_virtio", "9p")
RDMA_MODULES = ("crc32_generic", "rdma_rxe", "rdma_ucm", "ib_umad", "veth")
_INIT = """#!/busybox sh
export PATH=/:/usr/sbin:/usr/bin:/sbin:/bin
/busybox mount -t proc none /proc
/busybox mount -t sysfs none /sys
/busybox mount -t devtmpfs none /dev
for name in {boot} {rdma}; do /busybox modprobe $name || echo "no module $name"; done
/busybox mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=262144 host /host
for place in proc sys dev; do /busybox mount --bind /$place /host/$place; done
for place in tmp run; do /busybox mount -t tmpfs none /host/$place; done
/busybox mkdir -p /host/tmp/out
/busybox mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 out /host/tmp/out
/busybox ip link set lo up
/busybox chroot /host /bin/sh -c {script} >/host/tmp/out/output 2>&1
echo $? >/host/tmp/out/status
/busybox sync
/busybox poweroff -f
"""


def kernel() -> Path | None:
    """The kernel image in the cache; None where nobody prepared it, or no QEMU is there."""
    found = sorted((CACHE / "root" / "boot").glob("vmlinuz-*")) if CACHE.is_dir() else []
    return found[-1] if found and shutil.which("qemu-system-x86_64") and shutil.which("ibv_rc_pingpong") else None


def prepare() -> Path:
    """Fetch what is needed by apt, unpack it, index the modules; nothing is installed."""
    CACHE.mkdir(parents=True, exist_ok=True)
    depends = subprocess.run(["apt-cache", "depends", "linux-image-amd64"], capture_output=True, text=True, check=True)
    image = depends.stdout.split("Depends: ")[1].split()[0]
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(["apt-get", "download", image, "busybox-static"], cwd=place, check=True)
        for deb in Path(place).glob("*.deb"):
            subprocess.run(["dpkg", "-x", deb, CACHE / "root"], check=True)
    version = next((CACHE / "root/lib/modules").iterdir()).name
    subprocess.run([CACHE / "root/bin/busybox", "depmod", "-b", CACHE / "root", version], check=True)
    found = kernel()
    assert found is not None, "apt install --no-install-recommends qemu-system-x86 ibverbs-utils ibverbs-providers"
    return found


def run(script: str, out: Path, *, limit_s: float = 120, memory_mib: int = 768) -> str:
    """What a shell script says as root in the guest; its files in /tmp/out come back in `out`."""
    image = kernel()
    assert image is not None
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        initrd = Path(place, "initrd")
        initrd.write_bytes(_initrd(image.name.partition("-")[2], script))
        shares = [("host", "/", ",readonly=on"), ("out", str(out), "")]
        fast = ["-accel", "tcg,thread=single"]  # a nested KVM is not everywhere a working one
        done = subprocess.run(
            [
                "qemu-system-x86_64", *fast, "-m", str(memory_mib), "-nographic", "-no-reboot", "-nic", "none",
                "-kernel", str(image), "-initrd", str(initrd), "-append", "console=ttyS0 quiet panic=-1",
                *(word for tag, path, more in shares for word in
                  ("-virtfs", f"local,path={path},mount_tag={tag},security_model=none{more}")),
            ],
            capture_output=True, text=True, errors="replace", timeout=limit_s, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    status = out / "status"
    assert status.exists(), done.stdout[-3000:] + done.stderr[-1000:]
    said = (out / "output").read_text(errors="replace")
    assert status.read_text().strip() == "0", said[-4000:]
    return said


def _initrd(version: str, script: str) -> bytes:
    """busybox, the modules and /init, as the kernel unpacks them (linux: driver-api/early-userspace/buffer-format)."""
    modules = CACHE / "root" / "lib" / "modules" / version
    index = dict(line.split(":", 1) for line in (modules / "modules.dep").read_text().splitlines())
    names = {Path(path).name.partition(".")[0]: path for path in index}
    wanted = [names[name] for name in (*BOOT_MODULES, *RDMA_MODULES)]
    needed = dict.fromkeys(path for name in wanted for path in (name, *index[name].split()))
    init = _INIT.format(boot=" ".join(BOOT_MODULES), rdma=" ".join(RDMA_MODULES), script=shlex.quote(script))
    files = {"init": init.encode(), "busybox": (CACHE / "root/bin/busybox").read_bytes()}
    base = f"lib/modules/{version}"
    files |= {f"{base}/{path}": (modules / path).read_bytes() for path in needed}
    files |= {f"{base}/{n}": (modules / n).read_bytes() for n in ("modules.dep", "modules.alias", "modules.symbols")}
    folders = sorted({str(p) for f in files for p in Path(f).parents} - {"."})
    packed = io.BytesIO()
    entries = [(name, 0o040755, b"") for name in [*folders, "proc", "sys", "dev", "host"]]
    entries += [(name, 0o100755, data) for name, data in files.items()]
    for number, (name, mode, data) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        fields = [number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
        packed.write(b"070701" + "".join(f"{field:08x}" for field in fields).encode() + name.encode() + b"\0")
        packed.write(b"\0" * (-packed.tell() % 4) + data)
        packed.write(b"\0" * (-packed.tell() % 4))
    return packed.getvalue()


if __name__ == "__main__":
    prepare()
    with tempfile.TemporaryDirectory() as folder:
        sys.stdout.write(run("uname -a; rdma link add rxe0 type rxe netdev lo; rdma link; ibv_devices", Path(folder)))
