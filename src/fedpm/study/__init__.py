"""A study: a grid of runs over axes of settings and seeds, what it is, how it is run, what came of it."""
