"""What carries broadcasts to clients and brings their replies back."""
