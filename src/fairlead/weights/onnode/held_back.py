"""Waits until a model is there: the init container of a pod that uses it. Python 3.9, standard library alone.

    python3 -c SOURCE DEST [ROOT]

There: a spread has ended here and its record stands, each file that it names has the size and time that it had then,
and no other spread is under way. With ROOT, the record's root is that one: `fairlead weights spread --json` tells it.
Nothing is read but names, sizes and times; `fairlead weights verify` reads bytes.
"""

from __future__ import annotations

import json
import os
import sys
import time

LOOK_S, TELL_S = 2.0, 30.0


def lacks(dest: str, root: str = "") -> str:
    """Why the model is not there; empty where it is."""
    own = os.path.join(dest, ".fairlead")
    try:
        with open(os.path.join(own, "record.json"), encoding="utf-8") as file:
            record = json.load(file)
        if any(name.startswith("stage-") for name in os.listdir(own)):
            return "a spread is under way, or was broken off"
        files = record["files"]
        if root and record["root"] != root:
            return f"another version is there, {record['root'][:16]}"
        for path, what in files.items():
            found = os.stat(os.path.join(dest, path))
            if (found.st_size, found.st_mtime_ns) != (what["size"], what["mtime_ns"]):
                return f"{path!a} has changed since it was published"
    except FileNotFoundError as error:
        return f"there is no {error.filename}"
    except (KeyError, TypeError, ValueError, AttributeError):
        return "its record cannot be read"
    return ""


def main(words: list[str]) -> None:
    """Until it is there; says what it waits for."""
    told = -TELL_S
    while True:
        why = lacks(*words)
        if not why:
            say(f"the model is there: {words[0]}")
            return
        if time.monotonic() - told >= TELL_S:
            told = time.monotonic()
            say(f"waits for {words[0]}: {why}")
        time.sleep(LOOK_S)


def say(text: str) -> None:
    """A line for `kubectl logs`, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
