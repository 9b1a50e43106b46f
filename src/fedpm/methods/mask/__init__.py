"""Methods that train masks over frozen weights."""
