"""Readers: what they are, where they come from, how they are kept in files."""
