"""`import fairlead.fabric.torch` registers the torch.distributed backend `mrc` for CPU tensors."""

import torch.distributed as dist

from fairlead.fabric.torch.group import create

dist.Backend.register_backend("mrc", create, extended_api=True, devices=["cpu"])
