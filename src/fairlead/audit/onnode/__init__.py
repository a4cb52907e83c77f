"""What runs on nodes: standard library and base/trust alone."""
