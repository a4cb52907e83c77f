"""A real Kubernetes for tests, built once a machine from Debian's own source package: `make kube`.

Debian 12 has the source of Kubernetes 1.20.2 whole, with all it is made of, but builds kubectl alone from it. This
makes the servers, with Debian's Go, and lays Debian's etcd, containerd and runc beside them. Nothing is installed and
root is not needed: packages come by apt, which checks their signatures, and are unpacked in a folder of the user's own.
Each step leaves its result under its last name only when it is whole, so a run that was interrupted goes on where it
was; Go keeps what it had compiled. Two runs at once: the second waits, and finds everything there.

    python tests/support/kube/build.py            build what is missing, say where it is
    FAIRLEAD_KUBE=FOLDER                          another place than the user's cache
    FAIRLEAD_DEBIAN=URI                           Debian's archive, where this machine's own apt does not name it
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fairlead.base.files import own_place
from fairlead.base.trust import search_path, why_not_ours
from fairlead.errors import FairleadError

RELEASE = "bookworm"
VERSION = "1.20.2"
GO = "1.19"
SERVERS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
DEBIAN = {
    "etcd-server": ("usr/bin/etcd",),
    "containerd": ("usr/bin/containerd", "usr/bin/containerd-shim-runc-v2", "usr/bin/ctr"),
    "runc": ("usr/sbin/runc",),
    "containernetworking-plugins": ("usr/lib/cni/loopback", "usr/lib/cni/ptp", "usr/lib/cni/host-local"),
    "busybox-static": ("bin/busybox",),
}
"""What runs beside the servers: packages, and the programs of them that are kept."""
PROGRAMS = (*SERVERS, *(Path(path).name for paths in DEBIAN.values() for path in paths))
TAGS = "providerless,dockerless"
"""Without the clouds' own code and without Docker's: a fifth less to compile."""
RENEWED = {"golang-github-modern-go-reflect2-dev": "github.com/modern-go/reflect2"}
"""Libraries of the tree that Debian has newer: reflect2 1.0.1 reads Go's maps as they were before Go 1.18, and a server
made with it dies of a memory fault as it writes JSON (github.com/modern-go/reflect2, release 1.0.2)."""
_PACKAGES = (f"golang-{GO}-go", f"golang-{GO}-src", *RENEWED, *DEBIAN)
NEEDED_BYTES = 4 << 30
_TREE = "k8s.io/kubernetes"
_OPENAPI = "pkg/generated/openapi"
_GENERATED = "zz_generated.openapi.go"
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class CannotBuild(Exception):
    """Why, and what to do."""


def place() -> Path:
    """Where the programs are, or would be."""
    if said := os.environ.get("FAIRLEAD_KUBE"):
        return Path(said).absolute()
    cache = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(cache) if cache.startswith("/") else Path("~").expanduser() / ".cache"
    return base / "fairlead" / f"kubernetes-{VERSION}"


def missing(where: Path | None = None) -> list[str]:
    """The programs that are not there yet."""
    folder = (where or place()) / "bin"
    return [name for name in PROGRAMS if not (folder / name).is_file()]


def look() -> tuple[bool, str]:
    """Whether all of it is there, and what was found or why not."""
    where = place()
    if lacks := missing(where):
        return False, f"not built: no {', '.join(lacks)} in {where / 'bin'}"
    if why := why_not_ours(where / "bin"):
        return False, f"not used: {why}"
    return True, str(where)


def build(where: Path, say: Callable[[str], None]) -> None:
    """Make every program that is missing."""
    own_place(where, elsewhere="name another place with FAIRLEAD_KUBE")
    with _alone(where / "lock", say):
        if not missing(where):
            return
        free = shutil.disk_usage(where).free
        if free < NEEDED_BYTES:
            raise CannotBuild(
                f"the build needs {NEEDED_BYTES >> 30} GiB in {where}, and {free >> 30} are free; "
                "name another place with FAIRLEAD_KUBE"
            )
        _Build(where, say).all()


@contextlib.contextmanager
def _alone(lock: Path, say: Callable[[str], None]) -> Iterator[None]:
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another run builds it; waiting for that one")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class _Build:
    """One run in `where`: `bin` is what is kept, `work` goes at the end."""

    where: Path
    say: Callable[[str], None]

    @property
    def work(self) -> Path:
        return self.where / "work"

    @property
    def tree(self) -> Path:
        """The source of Kubernetes, where Go without modules looks for it."""
        return self.work / "go" / "src" / _TREE

    def all(self) -> None:
        """Every step that is not done."""
        servers = [name for name in SERVERS if name in missing(self.where)]
        self._step("packages of Debian", self.work / "archive", self._download)
        self._step("unpack packages", self.work / "root", self._unpack)
        for path in (self.work / "root" / path for paths in DEBIAN.values() for path in paths):
            self._step("", self.where / "bin" / path.name, lambda to, path=path: shutil.copy(path, to))
        if servers:
            self._step("unpack the source", self.tree, self._source)
            self._step("generated code", self.tree / _OPENAPI / _GENERATED, self._openapi)
        for name in servers:
            self._step(f"compile {name}", self.where / "bin" / name, lambda to, n=name: self._compile(f"cmd/{n}", to))
        self.say(f"remove {self.work}")
        shutil.rmtree(self.work)

    def _step(self, what: str, target: Path, make: Callable[[Path], object]) -> None:
        """Have `make` make the target, unless it is there; a half-made one never has its name."""
        if target.exists():
            return
        coming = target.with_name(f".{target.name}.coming")
        shutil.rmtree(coming, ignore_errors=True)
        coming.unlink(missing_ok=True)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        begin = time.monotonic()
        make(coming)
        coming.rename(target)
        if what:
            self.say(f"{time.monotonic() - begin:6.1f} s  {what}")

    @property
    def _again(self) -> str:
        return f"remove {self.work} and run it again"

    # ---- what comes from Debian

    def _download(self, to: Path) -> None:
        to.mkdir()
        apt = self.work / "apt"
        shutil.rmtree(apt, ignore_errors=True)
        for part in ("lists/partial", "cache/archives/partial", "parts"):
            (apt / part).mkdir(parents=True)
        signed = f" [signed-by={_KEYRING}]" if _KEYRING.exists() else ""
        uri = _archive()
        (apt / "sources.list").write_text(
            "".join(f"{kind}{signed} {uri} {RELEASE} main\n" for kind in ("deb", "deb-src"))
        )
        settings = {
            "Dir::Etc::sourcelist": apt / "sources.list",
            "Dir::Etc::sourceparts": apt / "parts",
            "Dir::State::lists": apt / "lists",
            "Dir::Cache": apt / "cache",
            "APT::Sandbox::User": "",
            "APT::Update::Error-Mode": "any",
            "Acquire::Languages": "none",
            "Acquire::Retries": "2",
            "Acquire::http::Timeout": "30",
        }
        get = ["apt-get", "-qq", *(word for name, value in settings.items() for word in ("-o", f"{name}={value}"))]
        hint = f"is Debian's archive reached? It was asked for at {uri}; name another with FAIRLEAD_DEBIAN"
        self._run([*get, "update"], hint, limit_s=300)
        self._run([*get, "download", *_PACKAGES], hint, cwd=to, limit_s=600)
        self._run([*get, "source", "--download-only", "--only-source", "kubernetes"], hint, cwd=to, limit_s=600)

    def _archive_file(self, pattern: str) -> Path:
        found = sorted((self.work / "archive").glob(pattern))
        if len(found) != 1:
            raise CannotBuild(f"Debian's archive gave no single {pattern}, which Debian {RELEASE} has")
        return found[0]

    def _unpack(self, to: Path) -> None:
        """All packages into one tree: Go's two are linked to each other."""
        for package in _PACKAGES:
            self._run(["dpkg-deb", "-x", str(self._archive_file(f"{package}_*.deb")), str(to)], self._again)

    def _source(self, to: Path) -> None:
        to.mkdir()
        orig = self._archive_file(f"kubernetes_*really{VERSION}.orig.tar.gz")
        words = ["tar", "-xzf", str(orig), "-C", str(to), "--strip-components=1", "--no-same-owner"]
        self._run(words, self._again)
        for library in RENEWED.values():
            shutil.rmtree(to / "vendor" / library)
            shutil.copytree(self.work / "root/usr/share/gocode/src" / library, to / "vendor" / library)

    # ---- Go

    def _openapi(self, to: Path) -> None:
        """What the servers tell of their types: the one generated file that the source package lacks."""
        tool = self.work / "openapi-gen"
        self._step(
            "compile openapi-gen", tool, lambda it: self._compile("vendor/k8s.io/kube-openapi/cmd/openapi-gen", it)
        )
        base = self.work / "generated"
        self._run(
            [
                str(tool), "-i", ",".join(_tagged(self.tree)), "-p", f"{_TREE}/{_OPENAPI}", "-O", Path(_GENERATED).stem,
                "-h", "hack/boilerplate/boilerplate.go.txt", "--output-base", str(base), "-r", str(self.work / "rules"),
            ],
            self._again, cwd=self.tree, env=self._go(),
        )  # fmt: skip
        shutil.copy(base / _TREE / _OPENAPI / _GENERATED, to)

    def _compile(self, package: str, to: Path) -> None:
        facts = {"gitVersion": f"v{VERSION}", "gitMajor": "1", "gitMinor": "20", "gitTreeState": "archive"}
        stamp = " ".join(
            f"-X {_TREE}/vendor/k8s.io/{home}.{name}={value}"
            for home in ("component-base/version", "client-go/pkg/version")
            for name, value in facts.items()
        )
        flags = ["-trimpath", "-tags", TAGS, "-ldflags", f"-s -w {stamp}"]
        words = [f"{self._goroot}/bin/go", "build", *flags, "-o", str(to), f"./{package}"]
        self._run(words, "run it again: it goes on where it was", cwd=self.tree, env=self._go(), limit_s=3600)

    @property
    def _goroot(self) -> str:
        return str(self.work / "root" / "usr" / "lib" / f"go-{GO}")

    def _go(self) -> dict[str, str]:
        """Nothing of the user's own Go, no modules, no C compiler, no network."""
        return {
            "PATH": search_path(),
            "HOME": str(self.work),
            "GOROOT": self._goroot,
            "GOPATH": str(self.work / "go"),
            "GOCACHE": str(self.work / "compiled"),
            "GOENV": "off",
            "GO111MODULE": "off",
            "GOFLAGS": "",
            "GOPROXY": "off",
            "CGO_ENABLED": "0",
        }

    def _run(
        self,
        words: list[str],
        hint: str,
        *,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        limit_s: float = 300,
    ) -> None:
        log = self.where / "log"
        with log.open("ab") as file:
            file.write(f"$ {' '.join(words)}\n".encode())
            file.flush()
            try:
                said = subprocess.run(
                    words, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file, timeout=limit_s
                )
            except FileNotFoundError as error:
                raise CannotBuild(f"{error.filename} is not there; this builds on Debian and its relatives") from None
            except subprocess.TimeoutExpired:
                raise CannotBuild(f"{words[0]} took longer than {limit_s:.0f} s; {hint}") from None
        if said.returncode:
            lines = log.read_bytes()[-3000:].decode(errors="replace").strip().splitlines()
            last = "\n".join(f"    {line}" for line in lines[-8:])
            raise CannotBuild(f"{Path(words[0]).name} failed; {hint}\n{last}\n    (all of it: {log})")


def _archive() -> str:
    """Debian's archive as this machine's apt knows it."""
    if said := os.environ.get("FAIRLEAD_DEBIAN"):
        return said
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        words = ["apt-get", "update", "--print-uris"]
        said = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60).stdout
        # 'URI/dists/bookworm/InRelease' ...; security and updates have archives or suites of their own
        found = re.findall(r"'([^']+?)/*/dists/([a-z]+)/InRelease'", said)
        debian = [uri for uri, suite in found if suite in {RELEASE, _codename()} and "debian" in uri.lower()]
        if debian:
            return debian[0]
    raise CannotBuild("this machine's apt names no archive of Debian; name one with FAIRLEAD_DEBIAN=URI")


def _codename() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/etc/os-release").read_text().splitlines():
            if line.startswith("VERSION_CODENAME="):
                return line.partition("=")[2].strip('"')
    return RELEASE


def _tagged(tree: Path) -> list[str]:
    """Import paths of packages whose types the servers describe (`+k8s:openapi-gen=`), as its Makefile finds them."""
    staging = tree / "staging" / "src"
    found = set()
    for top in (staging, tree / "pkg"):
        for path in top.rglob("*.go"):
            below = path.parent.relative_to(top)
            if {"code-generator", "sample-apiserver", "sample-controller", "_examples", "testdata", "test"} & set(
                below.parts
            ):
                continue
            if b"+k8s:openapi-gen=" in path.read_bytes():
                found.add(f"{_TREE}/vendor/{below}" if top == staging else f"{_TREE}/pkg/{below}")
    return sorted(found)


def main() -> int:
    """Build what is missing."""
    where = place()
    begin = time.monotonic()
    try:
        build(where, lambda line: print(line, flush=True))
    except (CannotBuild, FairleadError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"Kubernetes {VERSION} is in {where / 'bin'} ({time.monotonic() - begin:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
