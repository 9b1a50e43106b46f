"""Networks, masked or whole; model files and other formats."""
