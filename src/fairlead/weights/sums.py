"""What S3 keeps of an object that was uploaded in parts, whose ETag is no digest of its bytes: a CRC of all of them.

It tells only who asks for it, by a header that must be signed, and a node's address is signed without. So each such
object is asked for once from here, with botocore where that is installed (it comes with boto3); obstore cannot ask.
docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity.html
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fairlead.base.shown import shown
from fairlead.records.log import tell
from fairlead.weights.objects import Object
from fairlead.weights.onnode.stored import of_base64

log = logging.getLogger("fairlead.weights")
ASKING = 16
KINDS = {"ChecksumCRC64NVME": "crc64nvme", "ChecksumCRC32C": "crc32c"}


def s3_digests(bucket: str, prefix: str, objects: Sequence[Object]) -> dict[str, str]:
    """Path -> digest, of those objects that came in parts and have a sum of all their bytes. What cannot be asked for
    is left out, and said in the log.
    """
    in_parts = [o for o in objects if o.size and "-" in o.tag]
    if not in_parts:
        return {}
    try:
        session: Any = importlib.import_module("botocore.session").get_session()
        config: Any = importlib.import_module("botocore.config").Config(
            connect_timeout=3, read_timeout=10, retries={"max_attempts": 2}, max_pool_connections=ASKING
        )
    except ImportError:
        tell(log, "checksums of S3 are not asked for: pip install boto3", objects=len(in_parts))
        return {}
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    client: Any = session.create_client("s3", config=config, region_name=region)

    def ask(one: Object) -> str:
        key = f"{prefix}/{one.path}" if prefix else one.path
        try:
            return of_whole(client.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED"))
        except Exception as error:  # noqa: BLE001 - of botocore, of the network: it is an answer more, not a need
            tell(log, "S3 tells no checksum", object=one.path, why=shown(str(error)))
            return ""

    with ThreadPoolExecutor(ASKING) as pool:
        found = dict(zip((o.path for o in in_parts), pool.map(ask, in_parts), strict=True))
    return {path: digest for path, digest in found.items() if digest}


def of_whole(head: Mapping[str, Any]) -> str:
    """The digest in an answer to HeadObject; empty where there is none, or one of the parts' digests.

    >>> of_whole({"ChecksumCRC64NVME": "rosUhgp5mIg=", "ChecksumType": "FULL_OBJECT"})
    'crc64nvme:ae8b14860a799888'
    >>> of_whole({"ChecksumCRC32C": "4waSgw==-3", "ChecksumType": "COMPOSITE"})
    ''
    """
    if head.get("ChecksumType") not in (None, "FULL_OBJECT"):
        return ""
    return next((of_base64(kind, str(head[name])) for name, kind in KINDS.items() if head.get(name)), "")
