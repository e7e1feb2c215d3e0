"""The laboratory: figures and, later, the papers' experiments."""
