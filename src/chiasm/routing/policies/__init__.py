"""How a way for a request is chosen. One file each; `registry` knows them by the names used in settings."""
