"""Bytes on the wire: entropy coding, masks, counts, and the frame around them."""
