"""Coders of a mask on its way up, a file each."""
