"""Sizes and counts that follow from a picture's width and height."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chiasm.errors import EngineStartError, MediaRefusedError, UnsupportedModelError
from chiasm.media.prepare.clip import ClipPreparer, LlavaPreparer
from chiasm.media.prepare.idefics3 import Idefics3Preparer
from chiasm.media.prepare.llava_onevision import LlavaOnevisionPreparer, best_grid
from chiasm.media.prepare.qwen2_vl import Qwen2VLPreparer, smart_resize
from chiasm.media.prepare.tower import VisionTower

TILES = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
CLIP = {"vision_config": {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14}}
SIGLIP = {"vision_config": {"model_type": "siglip_vision_model", "image_size": 384, "patch_size": 14}}


def tokenizer(directory, added=("<fake_token_around_image>", "<global-img>", *TILES), vocab=("a",)):
    content = {
        "model": {"type": "BPE", "vocab": {word: number for number, word in enumerate(vocab)}, "merges": []},
        "added_tokens": [{"id": number, "content": token, "special": True} for number, token in enumerate(added)],
    }
    (directory / "tokenizer.json").write_text(json.dumps(content))
    return directory


class TestQwen:
    @pytest.mark.parametrize(
        ("size", "expected"),
        [
            ((640, 480), (644, 476)),
            ((28, 28), (56, 56)),
            ((1, 1), (56, 56)),
            ((1, 200), (28, 812)),
            ((2000, 1000), (560, 280)),
            ((200, 1), (812, 28)),
        ],
    )
    def test_sizes(self, size, expected):
        assert smart_resize(*size, 28, 56 * 56, 400_000 if size[0] != 2000 else 160_000) == expected

    @given(st.integers(1, 3000), st.integers(1, 3000), st.sampled_from([28, 32]))
    def test_sizes_are_whole_patches_within_the_limits(self, width, height, factor):
        if max(width, height) > 200 * min(width, height):
            return
        new_width, new_height = smart_resize(width, height, factor, 64 * 64, 512 * 512)
        assert new_width % factor == new_height % factor == 0
        # a side never gets narrower than one patch, so very thin pictures may exceed the upper limit
        assert new_width * new_height >= 64 * 64
        assert new_width * new_height <= 512 * 512 or min(new_width, new_height) == factor

    @pytest.mark.parametrize("size", [(201, 1), (1, 201), (10_000, 49)])
    def test_thin_pictures_are_refused(self, size, tmp_path):
        preparer = Qwen2VLPreparer(tmp_path, {}, {})
        with pytest.raises(MediaRefusedError, match=f"{size[0]} x {size[1]} pixels"):
            preparer.plan(*size)

    @pytest.mark.parametrize(
        "limits",
        [
            {"min_pixels": 3136, "max_pixels": 12544},
            {"size": {"min_pixels": 3136, "max_pixels": 12544}},
            {"size": {"shortest_edge": 3136, "longest_edge": 12544}},
            {"min_pixels": 3136, "max_pixels": 12544, "size": {"shortest_edge": 1, "longest_edge": 2}},
        ],
    )
    def test_pixel_limits_in_all_their_spellings(self, limits, tmp_path):
        assert Qwen2VLPreparer(tmp_path, limits, {}).plan(1000, 1000).resized == (112, 112)

    def test_a_plan(self, tmp_path):
        plan = Qwen2VLPreparer(tmp_path, {"patch_size": 16}, {}).plan(320, 160)
        assert plan.grid_thw == (1, 10, 20)
        assert plan.num_embeddings == plan.num_prompt_tokens == 50
        assert plan.merge_size == 2


class TestIdefics3:
    @pytest.mark.parametrize(
        ("size", "tiles", "tokens"),
        [
            ((100, 100), (4, 4), 17 * 32 + 3 + 2 + 1),
            ((400, 100), (1, 4), 5 * 32 + 0 + 2 + 1),
            ((100, 5000), (4, 1), 5 * 32 + 3 + 2 + 1),
        ],
    )
    def test_tokens_of_split_pictures(self, size, tiles, tokens, tmp_path):
        model = {"vision_config": {"patch_size": 32}}
        processor = {"size": {"longest_edge": 1456}, "max_image_size": {"longest_edge": 364}}
        plan = Idefics3Preparer(tokenizer(tmp_path), processor, model, None).plan(*size)
        assert plan.tiles == tiles
        assert plan.num_tiles == tiles[0] * tiles[1]
        # 364 // 32 = 11 patches a side, a quarter of 121 of them are embeddings; a border and a name make 32
        assert plan.num_embeddings == (tiles[0] * tiles[1] + 1) * 30
        assert plan.num_prompt_tokens == tokens

    @pytest.mark.parametrize("vocab", [("\u010a\u010a",), ("\n\n",)])
    def test_a_tokenizer_with_double_newlines_saves_one_token(self, vocab, tmp_path):
        plain = Idefics3Preparer(tokenizer(tmp_path), {}, {}, None)
        merging = Idefics3Preparer(tokenizer(tmp_path, vocab=vocab), {}, {}, None)
        assert plain.plan(500, 500).num_prompt_tokens == merging.plan(500, 500).num_prompt_tokens + 1
        assert plain.revision != merging.revision

    def test_without_splitting(self, tmp_path):
        preparer = Idefics3Preparer(
            tokenizer(tmp_path, ("<fake_token_around_image>", "<global-img>")),
            {"do_image_splitting": False},
            {},
            None,
        )
        plan = preparer.plan(1000, 10)
        assert (plan.tiles, plan.num_tiles) == ((1, 1), 0)
        assert plan.num_prompt_tokens == plan.num_embeddings + 3

    def test_missing_tile_tokens_are_named(self, tmp_path):
        directory = tokenizer(tmp_path, ("<fake_token_around_image>", "<global-img>", *TILES[:-1]))
        with pytest.raises(UnsupportedModelError, match="no token for 1 picture tags like <row_4_col_4>"):
            Idefics3Preparer(directory, {}, {}, None)

    def test_names_in_plain_text_take_a_counter(self, tmp_path):
        directory = tokenizer(tmp_path, ("<fake_token_around_image>",))
        with pytest.raises(UnsupportedModelError, match="no token for 17 picture tags like <global-img>"):
            Idefics3Preparer(directory, {}, {}, None)
        counted = Idefics3Preparer(directory, {}, {}, len)
        plan = counted.plan(100, 100)
        names = 16 * len("<row_1_col_1>") + len("<global-img>")
        assert plan.num_prompt_tokens == plan.num_embeddings + 17 + 1 + names + 3 + len("\n\n")
        assert counted.revision != Idefics3Preparer(directory, {}, {}, lambda text: 1).revision

    @pytest.mark.parametrize("content", [None, "{", '{"added_tokens": 3}'])
    def test_an_unreadable_tokenizer_is_named(self, content, tmp_path):
        if content is not None:
            (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(EngineStartError, match=r"tokenizer\.json"):
            Idefics3Preparer(tmp_path, {}, {}, None)

    def test_other_sizes_are_refused(self, tmp_path):
        with pytest.raises(UnsupportedModelError, match="longest_edge"):
            Idefics3Preparer(tokenizer(tmp_path), {"size": {"height": 5, "width": 5}}, {}, None)


class TestClip:
    def test_the_count_is_fixed(self, tmp_path):
        preparer = ClipPreparer(tmp_path, {"size": {"shortest_edge": 336}, "crop_size": 336}, CLIP)
        assert {preparer.plan(*size).num_embeddings for size in ((1, 1), (640, 480), (10, 2000))} == {576}

    def test_thin_pictures_are_refused(self, tmp_path):
        with pytest.raises(MediaRefusedError, match="aspect ratio"):
            ClipPreparer(tmp_path, {"size": {"shortest_edge": 336}, "crop_size": 336}, CLIP).plan(1, 201)

    @pytest.mark.parametrize(
        "processor",
        [
            {"size": {"shortest_edge": 300}, "crop_size": 336},
            {"size": {"shortest_edge": 336}, "do_center_crop": False},
            {"size": {"height": 336, "width": 224}},
            {"size": {"shortest_edge": 336, "longest_edge": 400}},
            {"size": 336, "crop_size": 336, "do_pad": True},
        ],
    )
    def test_what_gives_no_square_is_refused(self, processor, tmp_path):
        with pytest.raises(UnsupportedModelError, match="the image processor clip"):
            ClipPreparer(tmp_path, processor, CLIP)

    def test_llava_may_pad(self, tmp_path):
        padded, plain = (
            LlavaPreparer(tmp_path, {"size": 336, "crop_size": 336, "do_pad": pad}, CLIP) for pad in (True, False)
        )
        assert padded.revision != plain.revision


class TestTower:
    def test_class_tokens_and_the_selection_strategy(self):
        def count(model, strategy):
            return VisionTower.of(model | {"vision_feature_select_strategy": strategy}, pixels=384).num_embeddings

        clip = {"vision_config": {"model_type": "clip_vision_model", "image_size": 384, "patch_size": 16}}
        assert [count(clip, "default"), count(clip, "full")] == [576, 577]
        assert [count(SIGLIP, "full"), count(SIGLIP, "default")] == [729, 728]

    def test_left_out_sizes_are_the_usual_ones(self):
        assert VisionTower.of({}, pixels=224).num_embeddings == 49
        assert (
            VisionTower.of({"vision_config": {"model_type": "siglip_vision_model"}}, pixels=224).patches_per_side == 14
        )

    def test_an_unknown_tower_names_the_known_ones(self):
        with pytest.raises(UnsupportedModelError, match=r"'pixtral'.*clip_vision_model"):
            VisionTower.of({"vision_config": {"model_type": "pixtral"}}, pixels=224)

    def test_pictures_must_fit_the_tower(self):
        with pytest.raises(UnsupportedModelError, match=r"224 pixels a side.*336"):
            VisionTower.of(CLIP, pixels=224)


class TestLlavaOnevision:
    @pytest.mark.parametrize(
        ("size", "expected"),
        [((384, 384), (384, 384)), ((1, 1), (384, 384)), ((1000, 100), (1152, 384)), ((500, 900), (768, 1152))],
    )
    def test_the_grid_keeps_most_and_wastes_least(self, size, expected):
        grids = [(width, height) for height in range(384, 2305, 384) for width in range(384, 2305, 384)]
        assert best_grid(*size, grids) == expected

    def test_a_plan(self, tmp_path):
        plan = LlavaOnevisionPreparer(tmp_path, {}, SIGLIP).plan(384, 384)
        assert plan.tiles == (1, 1)
        assert plan.num_embeddings == 729 + 27 * 28

    def test_large_pictures_are_shrunk_to_the_limit(self, tmp_path):
        plan = LlavaOnevisionPreparer(tmp_path, {}, SIGLIP).plan(2304, 2304)
        assert plan.tiles == (6, 6)
        assert plan.num_embeddings == 729 + 81 * 82

    @pytest.mark.parametrize(
        ("processor", "model", "message"),
        [
            ({}, SIGLIP | {"vision_aspect_ratio": "pad"}, "'pad'"),
            ({}, SIGLIP | {"vision_feature_select_strategy": "default"}, "728 embeddings"),
            ({"size": {"height": 384, "width": 400}}, SIGLIP, "only squares"),
            ({"size": 336}, SIGLIP, "336 pixels"),
            ({"do_center_crop": True}, SIGLIP, "do_center_crop=True"),
        ],
    )
    def test_what_is_not_implemented_is_refused(self, processor, model, message, tmp_path):
        with pytest.raises(UnsupportedModelError, match=message):
            LlavaOnevisionPreparer(tmp_path, processor, model)
