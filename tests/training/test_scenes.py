"""The pictures and questions that the tiny model is trained and judged on."""

from random import Random

import pytest

from tiny_vlm import backgrounds, changes, drawing, palette, questions, scenes, sketches
from tiny_vlm.conversations import KINDS, conversation

SIZES = [(64, 64), (128, 96), (192, 192), (320, 224)]


def talk_of(seed, kind):
    return conversation(Random(seed), kind, SIZES)


@pytest.mark.parametrize("seed", range(30))
def test_the_same_seed_gives_the_same_picture(seed):
    first, second = (scenes.scene_for(Random(seed), (192, 160)) for _ in range(2))
    assert first == second
    assert drawing.render(first).tobytes() == drawing.render(second).tobytes()


@pytest.mark.parametrize("seed", range(30))
def test_a_picture_has_the_size_its_scene_says(seed):
    scene = scenes.scene_for(Random(seed), (256, 192))
    assert drawing.render(scene).size == (scene.width, scene.height)
    assert drawing.processed(scene).size == (256, 192)


@pytest.mark.parametrize("seed", range(60))
def test_shapes_lie_inside_the_picture_and_apart(seed):
    scene = scenes.compose(Random(seed), (256, 256))
    boxes = [s.box for s in scene.shapes]
    assert all(min(b) >= -1 and max(b) <= 257 for b in boxes)
    for i, a in enumerate(boxes):
        for b in boxes[i + 1 :]:
            assert a[2] < b[0] + 1 or b[2] < a[0] + 1 or a[3] < b[1] + 1 or b[3] < a[1] + 1


@pytest.mark.parametrize("seed", range(60))
def test_shapes_stand_out_from_a_plain_background(seed):
    scene = scenes.compose(Random(seed), (256, 256), look=scenes.Style(texture=0))
    for shape in scene.shapes:
        assert palette.distance(shape.rgb, scene.background.colours[0]) > 60


def test_every_background_can_be_drawn():
    rng = Random(1)
    found = {}
    for _ in range(60):
        background = backgrounds.textured(rng)
        assert background.draw(75, 50).size == (75, 50)
        found[background.style] = background.label
    assert found == {"gradient": "gradient", "noise": "noisy", "clouds": "colorful", "blobs": "colorful"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(25))
def test_a_conversation_has_a_scene_for_every_picture_and_an_answer_for_every_question(kind, seed):
    talk = talk_of(seed, kind)
    parts = [p for m in talk.messages if isinstance(m["content"], list) for p in m["content"]]
    assert sum(p["type"] == "image" for p in parts) == (len(talk.scenes) if talk.tasks else 0)
    spoken = [m["role"] for m in talk.messages if m["role"] != "system"]
    assert spoken == ["user", "assistant"] * len(talk.tasks)


@pytest.mark.parametrize("seed", range(60))
def test_colour_answers_name_the_only_shape_of_that_kind(seed):
    rng = Random(seed)
    scene = scenes.compose(rng, (256, 256))
    shown = {s.colour for s in scene.shapes}
    korean = {theirs: ours for ours, theirs in palette.KOREAN.items()}
    for q in questions.about(rng, scene):
        if q.task == "colour":
            assert korean.get(q.answer, q.answer) in shown


@pytest.mark.parametrize("seed", range(60))
def test_an_unchanged_pair_is_said_to_be_unchanged(seed):
    rng = Random(seed)
    before, after, answer = changes.change(rng, scenes.compose(rng, (256, 256)))
    same_things = (
        [(s.kind, s.colour, s.x, s.y) for s in before.shapes] == [(s.kind, s.colour, s.x, s.y) for s in after.shapes]
        and before.background == after.background
        and (before.number and before.number.text) == (after.number and after.number.text)
    )
    assert same_things == (answer == changes.NOTHING)


@pytest.mark.parametrize("kind", sketches.KINDS)
@pytest.mark.parametrize("colour", sketches.COLOURS)
def test_a_sketch_shows_its_colour_in_the_middle(colour, kind):
    image = sketches.draw(colour, kind, 100)
    expected = palette.PURE[colour]
    assert image.getpixel((50, 50)) == expected
    assert image.getpixel((1, 1)) == (255, 255, 255)
