"""Data sets as arrays in memory, and their split over clients."""
