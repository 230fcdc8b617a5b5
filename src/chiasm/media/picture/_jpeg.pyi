from typing import Any

def decode(
    data: Any, width: int, height: int, left: int, top: int, part_width: int, part_height: int, target: Any, /
) -> bool: ...
