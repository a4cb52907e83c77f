"""Every benchmark, one after the other: `python bench/all.py [WORD ...]` runs those whose name has a word in it.

Each prints its own table; nothing is written. A benchmark that fails does not stop the others; the status says it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path


def main() -> int:
    scripts = sorted(Path(__file__).parent.glob("*_*.py"))
    words = sys.argv[1:]
    chosen = [s for s in scripts if not words or any(w in s.stem for w in words)]
    failed = []
    for script in chosen:
        print(f"\n## {script.stem}\n", flush=True)
        started = time.monotonic()
        if subprocess.run([sys.executable, script], check=False).returncode:
            failed.append(script.stem)
        print(f"\n{script.stem}: {time.monotonic() - started:.1f} s", flush=True)
    print(f"\n{len(chosen)} benchmarks" + (f", failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
