"""What a running server is and does, in one file for people: read from outside, over HTTP alone."""
