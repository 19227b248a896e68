"""EDIT: from edits as data to the hooks that make them."""
