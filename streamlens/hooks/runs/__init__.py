"""REPLAY: runs again, with some writes changed; many of them at once, or over whole texts."""
