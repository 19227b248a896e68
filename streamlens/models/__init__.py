"""LOAD: named models, where they come from, and where they are kept."""
