"""Training and scoring on a client."""
