"""A model on every node for one download."""
