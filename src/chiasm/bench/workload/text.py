"""Text of a given length that no cache knows."""

import random

_TEXT = """
air arm art bag bed bird boat book box bread bridge brush cake camp card chair city class cloud coat corner cup day
desk door dress ear east egg eye face farm field fire fish floor flower foot forest garden glass gold grass green
hair hall hand hat head hill home horse house ice island key king lake land leaf leg letter light line lion map
market milk moon morning mouth name neck night north ocean page paper park people piece plant plate rain ring
river road rock roof room rose salt sea ship shoe side sky snow song south star stone street summer sun table tail
tea tooth town train tree wall water week west wheel white wind window winter wood world year
"""
_WORDS = _TEXT.split()


def words(count: int, rng: random.Random) -> str:
    """`count` common words, most of which are one token each in English vocabularies."""
    return " ".join(rng.choices(_WORDS, k=count))
