"""Plan: which VM size and network, the files that follow, and the traps in manifests of others.

Every name stands in its own module; nothing is imported here, as `[plan]` is read by whoever reads a cluster file.
"""
