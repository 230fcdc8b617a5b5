"""Pixel loops: Pillow's resize bit for bit, laying out, looking up, turning; in C, or with Pillow and numpy."""
