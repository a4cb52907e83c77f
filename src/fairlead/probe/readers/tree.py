"""The one way readers touch a machine: its files, its directories and its commands, live or from a captured tree.

A captured tree is a directory laid out like the machine:

    DIR/sys/class/infiniband/...        files as they were
    DIR/cmd/nvidia-smi_-q_-x            what a command printed (argv joined by `_`, `/` written `%2F`)
    DIR/cmd/systemctl_...rc             its exit status, where it was not 0
    DIR/cmd/nvidia-smi_-q_-x.took       the seconds it took, where that is a fact of its own
    DIR/http/169.254.169.254_metadata   what a local metadata service answered
    DIR/absent                          what was looked for and was not there, one path or command name a line
    DIR/refused                         what was refused to who took it: path, tab, why, one a line
    DIR/self.json                       time and Python of the program that read it

On a live machine a missing file is known to be absent. In a captured tree it is only absent when `absent` says so;
otherwise nobody looked, which is a hole.

A tree that went through a file system or an archive without symbolic links holds small files in their place, with the
target as their text (git does so with core.symlinks=false). One that begins with `../` is followed as the link it was;
no file of /sys or /proc begins so.
"""

from __future__ import annotations

import errno
import json
import os
import re
import select
import signal
import stat
import subprocess
import sys
import time
import zlib
from typing import Any, Callable

MOUNTED = ("/sys", "/proc", "/dev")
"""Places that are empty where nothing is mounted, as in some containers: they then say nothing of what is not there."""

MAX_FILE = 1 << 20
MAX_OUTPUT = 8 << 20
SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/rocm/bin:/opt/bin"


class Hole(Exception):
    """Something could not be read: why, and where."""

    def __init__(self, why: str, source: str) -> None:
        Exception.__init__(self, why)
        self.why, self.source = why, source


class Absent(Hole):
    """Something is known not to be there."""


def hole(why: str, source: str = "") -> dict[str, str]:
    """The fact that something could not be read."""
    return {"unread": why, "source": source} if source else {"unread": why}


def fact_path(*keys: str) -> str:
    """Keys as one path; a key that holds a dot stands in brackets. The same rule as in fairlead.records.facts."""
    text = ""
    for key in keys:
        text += "[" + key + "]" if "." in key or not key else "." + key if text else key
    return text


def slug(argv: list[str]) -> str:
    """The file name of a command's output in a captured tree."""
    text = "_".join(argv).replace("/", "%2F")
    return text if len(text) <= 160 else "%s_%08x" % (text[:150], zlib.crc32(text.encode()))


def safe_name(name: str) -> str:
    """A directory entry as a JSON key: bytes that are not text are shown as escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


class Tree:
    """A machine to read. `kept` collects what was read, as it was, when a capture is asked for."""

    def __init__(self, root: str = "/", *, keep: bool = False) -> None:
        self.root = root.rstrip("/")
        self.live = not self.root
        self.sources: dict[str, str] = {}
        self.kept: dict[str, Any] | None = {} if keep else None
        self._absent: set[str] | None = None
        self._real: dict[str, str] = {}

    # ---- files -----------------------------------------------------------------------------------------------------

    def read_bytes(self, path: str, limit: int = MAX_FILE, used: Callable[[bytes], bytes] | None = None) -> bytes:
        """A whole file; with `used`, what of it is used: nothing else goes into a capture. Raises Absent or Hole."""
        try:
            # a FIFO or a terminal in place of a file must not hang the reader
            handle = os.open(self._locate(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                parts, size = [], 0
                while size <= limit:
                    part = os.read(handle, limit + 1 - size)
                    if not part:
                        break
                    parts.append(part)
                    size += len(part)
            finally:
                os.close(handle)
        except OSError as error:
            raise self.failed(error, path) from None
        if size > limit:
            raise Hole("is larger than %d bytes" % limit, path)
        data = b"".join(parts)
        if used is not None:
            data = used(data)
        self._keep(path, data)
        return data

    def read(self, path: str, limit: int = MAX_FILE) -> str:
        """A text file. Raises Absent or Hole; bytes that are no text are a Hole."""
        data = self.read_bytes(path, limit)
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            raise Hole("holds bytes that are not text", path) from None
        if not text.isascii() or not text.isprintable():
            for char in text:
                if not char.isprintable() and char not in "\n\t\r":
                    raise Hole("holds bytes that are not text", path)
        return text

    def attr(self, path: str, form: str = "") -> Any:
        """A one-value file as the kernel keeps them in /sys: its text, or a hole; also where it has not this form."""
        try:
            text = self.read(path, 4096).strip()
        except Hole as missing:
            return hole(missing.why, path)
        if form and not re.fullmatch(form, text):
            return hole("holds `%s`, which the kernel does not write there" % text[:40] if text else "is empty", path)
        return text or hole("is empty", path)

    def table(self, path: str, columns: int, limit: int = MAX_FILE) -> list[list[str]]:
        """A table of the kernel: its lines as words, so many or more each. Raises Absent, or Hole where it is cut."""
        text = self.read(path, limit)
        rows = [line.split() for line in text.split("\n") if line]
        if not rows or not text.endswith("\n") or any(len(row) < columns for row in rows):
            raise Hole("is not whole", path)
        return rows

    def number(self, path: str, base: int = 10) -> Any:
        """A one-number file: the number, or a hole."""
        text = self.attr(path)
        return text if isinstance(text, dict) else number(text, path, base)

    def names(self, path: str, part: str = "") -> list[str]:
        """What a directory holds, sorted; with `part`, only names that have it in them. Raises Absent or Hole."""
        try:
            found = sorted(name for name in os.listdir(self._locate(path)) if part in name)
        except OSError as error:
            raise self.failed(error, path) from None
        if self.kept is not None:
            # two readers may want different parts of one directory
            before = self.kept.get(safe_name(path) + "/", [])
            self.kept[safe_name(path) + "/"] = sorted({*before, *(safe_name(name) for name in found)})
        return found

    def link(self, path: str) -> str:
        """Where a symbolic link points, as it is written. Raises Absent or Hole."""
        try:
            # the link itself may be the last step, so only its directory is resolved
            found = self._target(os.path.join(self._locate(os.path.dirname(path)), os.path.basename(path)))
        except OSError as error:
            raise self.failed(error, path) from None
        self._keep(path + "@", os.fsencode(found))
        return safe_name(found)

    def linked_name(self, path: str) -> Any:
        """The last part of where a link points (a driver's or a device's name), or a hole."""
        try:
            return os.path.basename(self.link(path))
        except Hole as missing:
            return hole(missing.why, path)

    def optional_link(self, path: str) -> str:
        """The last part of where a link points; empty where it is known that there is no such link. Raises Hole."""
        try:
            return os.path.basename(self.link(path))
        except Absent:
            return ""

    def optional(self, path: str) -> str | None:
        """A text file, or None where it is known not to be there. Raises Hole."""
        try:
            return self.read(path)
        except Absent:
            return None

    def holds(self, path: str) -> bool:
        """Whether a captured tree has a file."""
        return not self.live and os.path.isfile(self._locate(path))

    def optional_names(self, path: str, part: str = "") -> list[str]:
        """What a directory holds; nothing where it is known not to be there. Raises Hole."""
        try:
            return self.names(path, part)
        except Absent:
            return []

    # ---- commands --------------------------------------------------------------------------------------------------

    def timed(self, argv: list[str], limit_s: float, fine: tuple[int, ...] = (0,)) -> tuple[str, Any]:
        """What a command prints, and the seconds it took or a hole: reading a captured tree says nothing of that."""
        name = "/cmd/" + slug(argv) + ".took"
        started = time.monotonic()
        text = self.run(argv, limit_s, fine)
        if not self.live:
            try:
                return text, float(self.read(name))
            except (Hole, ValueError):
                return text, hole("the captured tree does not say how long it took", " ".join(argv))
        took_s = round(time.monotonic() - started, 3)
        self._keep(name, b"%.3f\n" % took_s)
        return text, took_s

    def run(
        self,
        argv: list[str],
        limit_s: float,
        fine: tuple[int, ...] = (0,),
        used: Callable[[bytes], bytes] | None = None,
    ) -> str:
        """What a command prints. Raises Absent (no such command) or Hole (failed, too slow, too much).

        `used` says what of it a capture holds.
        """
        source = " ".join(argv)
        if self.live:
            status, data = self._run_live(argv, limit_s, source)
        else:
            name = "/cmd/" + slug(argv)
            try:
                data = self.read_bytes(name, MAX_OUTPUT)
                status = int(self.optional(name + ".rc") or 0) if os.path.exists(self.root + name + ".rc") else 0
            except (Hole, ValueError):
                if argv[0] in self._absences():
                    self._note_absent(argv[0])
                    raise Absent("no such command", source) from None
                raise Hole("the captured tree does not hold its output", source) from None
        self._keep("/cmd/" + slug(argv), used(data) if used is not None else data)
        if status:
            self._keep("/cmd/" + slug(argv) + ".rc", b"%d" % status)
        text = data.decode("utf-8", "replace")
        if status not in fine:
            first = text.strip().split("\n")[-1][:200]
            raise Hole("exit status %d%s" % (status, ": " + first if first else ""), source)
        return text

    def keep_output(self, argv: list[str], text: str) -> None:
        """Keep what a command would have printed, where the kernel itself was asked."""
        self._keep("/cmd/" + slug(argv), text.encode())

    def _run_live(self, argv: list[str], limit_s: float, source: str) -> tuple[int, bytes]:
        # an empty or relative part would mean the current directory, where anybody may have put a program
        said = [part for part in os.environ.get("PATH", "").split(":") if part.startswith("/")]
        env = dict(os.environ, LC_ALL="C", PATH=":".join([*said, SEARCH]))
        try:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=env,
                preexec_fn=_alarm(int(limit_s) + 2),  # noqa: PLW1509 - this program has one thread
            )
        except OSError as error:
            # a folder of PATH that this user may not enter is reported in the place of a command that is nowhere
            places = [os.path.join(folder, argv[0]) for folder in env["PATH"].split(":") if folder]
            if isinstance(error, FileNotFoundError) or not any(os.path.exists(place) for place in places):
                self._note_absent(argv[0])
                raise Absent("no such command", source) from None
            raise Hole("cannot be started: " + str(error.strerror), source) from None
        assert child.stdout is not None
        deadline, parts, size = time.monotonic() + limit_s, [], 0
        while True:
            ready, _, _ = select.select([child.stdout], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(child.stdout.fileno(), 1 << 16) if ready else b""
            parts.append(part)
            size += len(part)
            if not ready or size > MAX_OUTPUT:
                child.kill()
                child.stdout.close()
                why = "no answer within %g s" % limit_s if not ready else "prints more than %d bytes" % MAX_OUTPUT
                raise Hole(why, source)
            if not part:
                child.stdout.close()
                break
        return child.wait(), b"".join(parts)

    # ---- the reader itself -----------------------------------------------------------------------------------------

    def myself(self) -> dict[str, Any]:
        """Time and Python of the program that reads, or read, this machine."""
        if not self.live:
            try:
                found = json.loads(self.read("/self.json"))
            except (Hole, ValueError):
                found = {}
            return found if isinstance(found, dict) else {}
        found = {
            "taken_at_ns": time.time_ns(),
            "python": "%d.%d.%d" % sys.version_info[:3],
            "executable": sys.executable,
            "sys_path": package_folders(sys.executable),
        }
        self._keep("/self.json", json.dumps(found).encode())
        return found

    def source(self, keys: tuple[str, ...], where: str) -> None:
        """Note where a fact comes from; `where` ending in `/` covers the names below it."""
        self.sources[fact_path(*keys)] = where

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _locate(self, path: str) -> str:
        """Where a path of the machine lies here. Links in a captured tree lead nowhere but into that tree."""
        return path if self.live else self.root + self.real_path(path)

    def _target(self, place: str) -> str:
        """Where a link leads, by its place on this machine; in a captured tree a link may have become a small file."""
        try:
            return os.readlink(place)
        except OSError as error:
            if self.live or error.errno != errno.EINVAL:
                raise
            info = os.lstat(place)
            if not stat.S_ISREG(info.st_mode) or not 3 < info.st_size < 1024:
                raise
            with open(place, "rb") as file:
                text = file.read(1024)
            if not text.startswith(b"../") or b"\n" in text.rstrip(b"\n") or b"\0" in text:
                raise
            return os.fsdecode(text.rstrip(b"\n"))

    def real_path(self, path: str, depth: int = 0) -> str:
        """A path of the machine with every link followed inside the captured tree."""
        known = self._real.get(path)
        if known is not None:
            return known
        if depth > 40:
            raise OSError(errno.ELOOP, "too many links")
        here = ""
        parts = [p for p in path.split("/") if p and p != "."]
        for index, part in enumerate(parts):
            if part == "..":
                here = os.path.dirname(here) if here else ""
                continue
            step = here + "/" + part
            try:
                target = self._target(self.root + step)
            except OSError:
                here = step
                continue
            rest = "/".join(parts[index + 1 :])
            joined = (target if target.startswith("/") else here + "/" + target) + ("/" + rest if rest else "")
            here = self.real_path(joined, depth + 1)
            break
        self._real[path] = here or "/"
        return here or "/"

    def failed(self, error: OSError, path: str) -> Hole:
        """What an error of the system means for a path: known to be absent, refused, or not known."""
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            if self.live:
                top = "/" + path.split("/")[1]
                if top in MOUNTED and not _is_populated(top):
                    return Hole("nothing is mounted at " + top, path)
                self._note_absent(path)
                return Absent("is not there", path)
            if path in self._absences():
                self._note_absent(path)
                return Absent("is not there", path)
            return self._not_held(path)
        why = os.strerror(error.errno or 0).lower()
        if error.errno in (errno.EPERM, errno.EACCES):
            self._keep("?" + path, why.encode())
        return Hole(why, path)

    def _not_held(self, path: str) -> Hole:
        """A captured tree holds neither the file nor that it was absent: refused to who took it, or never looked at."""
        for line in self._lines("/refused"):
            name, mark, why = line.partition("\t")
            if mark and name == path:
                self._keep("?" + path, why.encode())
                return Hole(why, path)
        return Hole("the captured tree does not hold it", path)

    def _absences(self) -> set[str]:
        if self._absent is None:
            self._absent = set(self._lines("/absent"))
        return self._absent

    def _lines(self, name: str) -> list[str]:
        """The lines of a file that says something of the captured tree itself."""
        try:
            with open(self.root + name, "rb") as file:
                return file.read(MAX_FILE).decode("utf-8", "replace").split("\n")
        except OSError:
            return []

    def _note_absent(self, name: str) -> None:
        self._keep("!" + name, b"")

    def _keep(self, path: str, data: bytes) -> None:
        if self.kept is not None:
            try:
                self.kept[safe_name(path)] = data.decode("utf-8")
            except UnicodeDecodeError:
                self.kept[safe_name(path)] = {"hex": data.hex()}


def package_folders(executable: str) -> list[str]:
    """Where this Python has its packages, also where it was started without looking there (-S).

    Of a virtual environment, its own folder, and the base's where pyvenv.cfg says that it is seen.
    """
    import site

    prefixes = [sys.prefix, sys.exec_prefix]
    root = os.path.dirname(os.path.dirname(os.path.abspath(executable))) if executable else ""
    try:
        with open(os.path.join(root, "pyvenv.cfg"), encoding="utf-8") as file:
            said = key_values(file.read(4096).lower(), "=")
        prefixes = [root] + ([sys.base_prefix] if said.get("include-system-site-packages") == "true" else [])
    except (OSError, UnicodeDecodeError):
        pass
    known = [*site.getsitepackages(list(dict.fromkeys(prefixes))), *sys.path]
    return [p for p in dict.fromkeys(known) if p.endswith("-packages") and os.path.isdir(p)]


def _is_populated(place: str) -> bool:
    """Whether a place such as /sys holds anything: an empty one was never mounted, and says nothing."""
    try:
        return bool(os.listdir(place))
    except OSError:
        return False


def _alarm(seconds: int) -> Callable[[], None]:
    """For the child, before exec. An alarm survives exec: a command ends by itself when this program was killed."""

    def arm() -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)

    return arm


def number(text: str, source: str = "", base: int = 10) -> Any:
    """A number in a text, or a hole. `base` 0 takes 0x too."""
    try:
        return int(text, base)
    except ValueError:
        return hole("is not a number: " + text[:40], source)


def read_or_hole(read: Callable[..., Any], *args: Any) -> Any:
    """What a reading function returns, or the hole it ran into."""
    try:
        return read(*args)
    except Hole as missing:
        return hole(missing.why, missing.source)


def key_values(text: str, separator: str) -> dict[str, str]:
    """Lines of `key<separator>value`, trimmed; other lines are left out."""
    found = {}
    for line in text.split("\n"):
        key, mark, value = line.partition(separator)
        if mark and key.strip():
            found[key.strip()] = value.strip()
    return found
