"""fairlead: an AI cluster with an RDMA-capable network, from booted machines to a running, debuggable job."""

from __future__ import annotations

__version__ = "0.1.0"
