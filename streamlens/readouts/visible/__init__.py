"""What a reader can see of the stream, and what it cannot."""
