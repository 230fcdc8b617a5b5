"""One encoded picture: its format from its bytes, its header before any raster exists, its upright RGB pixels."""
