"""Methods: what clients and server do, each in a file of its own."""
