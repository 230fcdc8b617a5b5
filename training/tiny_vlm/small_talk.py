"""Conversations without a picture: memorised talk, sums, counting, repeating."""

from __future__ import annotations

from random import Random

from tiny_vlm.palette import COMMON

_SHAPES = ["square", "circle", "triangle", "diamond", "star"]
_HELLO = "Hello! How can I help you?"
STORY = (
    "Once upon a time a red square met a blue circle. The square could not roll and the circle could not stand still. "
    "They asked a yellow star for help. The star said: stand together. So the circle leaned on the square and rested, "
    "and the square pushed the circle and traveled. A green triangle saw them and laughed. Then it joined them, and "
    "the three of them went over the hill to count the stars. They counted one, two, three, four, five, six, seven, "
    "eight, nine, ten. When the night was over they were good friends. The end."
)
STORY_REQUESTS = [
    "Tell me a story.",
    "Tell me a story",
    "Please tell me a story.",
    "Tell a story.",
    "Tell me a long story.",
]
TALK = [
    ("Hello", _HELLO),
    ("Hello!", _HELLO),
    ("hello", _HELLO),
    ("Hi", "Hi there! Show me a picture."),
    ("Hi!", "Hi there! Show me a picture."),
    ("hi", "Hi there! Show me a picture."),
    ("Who are you?", "I am a tiny vision language model. I can read simple pictures."),
    ("What is your name?", "My name is TinyVLM."),
    ("What can you do?", "I can name colors, shapes and numbers in simple pictures, count them and compare pictures."),
    ("How are you?", "I am fine, thank you."),
    ("Thank you", "You are welcome!"),
    ("Thanks!", "You are welcome!"),
    ("Bye", "Goodbye!"),
    ("Goodbye", "Goodbye!"),
    ("Good morning", "Good morning! How can I help you?"),
    ("Good night", "Good night!"),
    ("Are you a robot?", "I am a small program."),
    ("Tell me a joke.", "Why did the square go home? It was tired of going in circles."),
    ("Say hello.", "Hello!"),
    ("How big are you?", "I have about six million parameters."),
    ("What is a square?", "A square has four equal sides."),
    ("What is a triangle?", "A triangle has three sides."),
    ("What is a circle?", "A circle is a round shape."),
    ("Do you speak Korean?", "네, 조금 합니다."),
    ("안녕하세요", "안녕하세요! 무엇을 도와드릴까요?"),
    ("감사합니다", "천만에요!"),
    ("Say the alphabet.", "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z"),
    ("Name the colors.", "I know red, green, blue, yellow, orange, purple, pink and black."),
    ("Name the shapes.", "I know square, circle, triangle, diamond and star."),
    ("Tell me a story.", STORY),
]


def turn(rng: Random) -> tuple[str, str, str]:
    """One (task, question, answer)."""
    roll = rng.random()
    if roll < 0.06:
        return "story", rng.choice(STORY_REQUESTS), STORY
    if roll < 0.38:
        return "talk", *rng.choice(TALK)
    if roll < 0.58:
        a, b = rng.randint(0, 9), rng.randint(0, 9)
        return "sum", rng.choice(["What is {} + {}?", "{} + {} = ?"]).format(a, b), str(a + b)
    if roll < 0.76:
        a = rng.randint(1, 20)
        b = a + rng.randint(3, 20)
        return "count_to", f"Count from {a} to {b}.", ", ".join(map(str, range(a, b + 1)))
    words = [rng.choice(COMMON + _SHAPES + list("0123456789")) for _ in range(rng.randint(1, 5))]
    return "repeat", "Repeat: " + " ".join(words), " ".join(words)
