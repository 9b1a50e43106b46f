"""Rules that fold what clients sent into one."""
