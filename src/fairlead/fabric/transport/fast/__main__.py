"""`python -m fairlead.fabric.transport.fast`: compile before a job, so that its first step does not wait for it."""

from __future__ import annotations

import sys
import time

from fairlead.base.shown import shown
from fairlead.fabric.transport.fast import kernels, start

begin = time.monotonic()
if kernels.c_functions() is None:
    sys.exit("fairlead: the compiled transport needs zlib as a shared library, on a 64-bit little-endian Linux")
done = "compiled" if start.prepare() else "was there"
sys.stdout.write(f"{done} after {time.monotonic() - begin:.1f} s: {shown(str(kernels.folder()))}\n")
