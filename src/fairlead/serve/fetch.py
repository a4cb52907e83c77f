"""An image to stand on from a registry: skopeo fetches it into a layout beside the bundle.

Accounts, mirrors and certificates are what skopeo's own files say: containers-auth.json(5),
containers-registries.conf(5).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from fairlead.base.trust import search_path
from fairlead.errors import FairleadError, UsageError

REGISTRY = "docker://"
"""How a reference to an image in a registry begins, as skopeo writes it (containers-transports(5))."""
_ERROR_BYTES = 2000


def layout_beside(dest: Path) -> Path:
    """Where the image lies until the bundle is whole: a run that was killed fetches only what lacks."""
    return dest.with_name(f".{dest.name}.base")


def model_beside(dest: Path) -> Path:
    """The same for a model that lies elsewhere."""
    return dest.with_name(f".{dest.name}.model")


def fetch(reference: str, folder: Path, platform: str) -> Path:
    """The image of this platform in `folder`, an OCI image layout. Raises FairleadError where it cannot be had."""
    if shutil.which("skopeo", path=search_path(os.environ)) is None:
        text = f"no program `skopeo` to fetch {reference} with"
        raise UsageError("serve/base", text, hint="apt install skopeo; or --base FOLDER, an OCI image layout")
    os_, _, arch = platform.partition("/")
    words = ["skopeo", "--override-os", os_, "--override-arch", arch, "copy", "--quiet", "--retry-times", "3"]
    # uncompressed layers stay what they are: their digests are the registry's
    words += ["--dest-oci-accept-uncompressed-layers", reference, f"oci:{folder}:base"]
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
    )
    if done.returncode:
        if not any((folder / "blobs" / "sha256").glob("*")):
            shutil.rmtree(folder, ignore_errors=True)
        why = done.stderr[-_ERROR_BYTES:].decode("utf-8", "replace").strip().rpartition("\n")[2]
        text = f"skopeo could not fetch {reference} for {platform}: {why}"
        raise FairleadError("serve/base", text, hint=f"skopeo inspect {reference}; skopeo login REGISTRY")
    return folder
