"""What crosses a border between rooms or lands on disk, and its JSON. Records hold no behaviour but their own sums."""
