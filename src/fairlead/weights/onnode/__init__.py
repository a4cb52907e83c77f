"""What runs on the nodes: Python 3.9 and its standard library, sent as one file."""
