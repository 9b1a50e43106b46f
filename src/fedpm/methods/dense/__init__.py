"""Methods that train weights and send their changes."""
