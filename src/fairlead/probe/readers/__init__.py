"""The readers: standard library, Python 3.9 syntax. `join.py` makes one program of these files; they judge nothing."""
