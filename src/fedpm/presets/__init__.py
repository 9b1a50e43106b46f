"""Ready configurations, one TOML file each."""
