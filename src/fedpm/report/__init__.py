"""Reports of studies and runs: figures, tables, and one HTML page."""
