"""Studies of the paper's tables and figures, as TOML files."""
