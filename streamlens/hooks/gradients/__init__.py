"""GRADIENTS: runs whose graph is kept, and runs that are nudged."""
