"""What clients and server compute: one file an algorithm, all behind one protocol."""
