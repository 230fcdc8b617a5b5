"""How much of each text stays when an input is too long."""


def pair_lengths(first: int, second: int, room: int) -> tuple[int, int]:
    """Tokens kept of two texts so that together they fill `room` at most, as Hugging Face's 'longest_first' does.

    The shorter text stays whole while it takes no more than half of the room.
    """
    if first + second <= room:
        return first, second
    shorter, longer = sorted((first, second))
    if 2 * shorter <= room:
        longer = room - shorter
    else:
        shorter = room // 2
        longer = room - shorter
    return (shorter, longer) if first <= second else (longer, shorter)
