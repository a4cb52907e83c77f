"""Parts of the program that runs on nodes: standard library, Python 3.9."""
