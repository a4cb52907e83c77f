"""A room that only the tests have."""
