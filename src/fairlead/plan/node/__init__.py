"""Files for the operating system of a node: rules, limits, NCCL's settings. Pure."""
