"""Programs of the transport for nodes."""
