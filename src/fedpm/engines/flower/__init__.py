"""Clients that Flower runs: simulated ones (Ray), or a fleet of SuperNodes."""
