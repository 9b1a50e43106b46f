"""Differential privacy: the paper's analysis corrected (Appendix C), and training with a budget (docs/privacy.md)."""
