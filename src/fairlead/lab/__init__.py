"""Virtual clusters in network namespaces: hosts, a multi-plane SRv6 fabric, and faults on demand."""
