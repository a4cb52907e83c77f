"""What runs on a node: Python 3.9 and its standard library, sent as one file."""
