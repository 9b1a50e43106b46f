"""A run: built from its configuration, round after round, with its folder and records."""
