"""Videos in the Qwen-VL families against transformers: patches, tokens, positions, features and greedy answers.

Frames are prepared with the arithmetic of transformers' picture processor (Pillow), applied frame by frame; its video
processors need torchvision, which is not installed here.
"""

import math
from base64 import b64encode
from contextlib import asynccontextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from chiasm.engines.embedded.families.base import PlacedImage
from chiasm.engines.embedded.families.registry import family_for
from chiasm.engines.embedded.planner import Planner
from chiasm.engines.embedded.prompt.render import PromptRenderer
from chiasm.engines.embedded.tower.native_tower import NativeTower, tower_problem
from chiasm.media.decoding import PictureDecoder
from chiasm.media.ingest import MediaIngest
from chiasm.media.reference import MediaReference
from chiasm.protocol.generation import (
    ChatPrompt,
    GenerateRequest,
    ItemPart,
    Message,
    SamplingParams,
    TextPart,
    TokenEvent,
)
from chiasm.protocol.media import InlineSource, MediaItem, VideoSample
from chiasm.settings import EngineSettings, MediaSettings
from chiasm.workers.local import LocalWorker
from tests.numeric.random_models import RECIPES, build, reference_model

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
NUM_TOKENS = 10


@pytest.fixture(scope="module", params=FAMILIES)
def vlm(request, tmp_path_factory):
    directory = build(request.param, tmp_path_factory.mktemp(request.param))
    family = family_for(directory)
    return SimpleNamespace(
        name=request.param,
        directory=directory,
        family=family,
        videos=family.preparer.video,
        model=family.load(torch.float32),
        reference=reference_model(request.param, directory),
    )


def video(vlm, num_sampled, *, size=(90, 60), fps=24.0, step=12, seed=0):
    """Frames [height, width, 3] and their plan."""
    rng = np.random.default_rng(seed)
    frames = list(rng.integers(0, 256, (num_sampled, size[1], size[0], 3), dtype=np.uint8))
    indices = tuple(range(0, num_sampled * step, step))
    sample = VideoSample(num_frames=num_sampled * step, fps=fps, indices=indices)
    return frames, vlm.videos.plan(*size, sample)


def prepared_picture(vlm):
    return vlm.family.preparer.prepare(Image.fromarray(np.full((40, 80, 3), 90, np.uint8)))


def reference_inputs(vlm, token_ids, media):
    """Keyword arguments of the transformers model for a prompt with prepared pictures and videos."""
    ids = torch.tensor([token_ids])
    config = RECIPES[vlm.name].config
    types = (ids == config["image_token_id"]).int() + 2 * (ids == config["video_token_id"]).int()
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": types}
    for kind, pixels, grids in (
        ("image", "pixel_values", "image_grid_thw"),
        ("video", "pixel_values_videos", "video_grid_thw"),
    ):
        chosen = [one for one in media if one.plan.kind == kind]
        if chosen:
            inputs[pixels] = torch.cat([torch.from_numpy(one.pixel_values()) for one in chosen])
            inputs[grids] = torch.tensor([one.plan.grid_thw for one in chosen])
            if kind == "video" and vlm.name == "qwen2_5_vl":
                inputs["second_per_grid_ts"] = torch.tensor([one.plan.second_per_grid_s for one in chosen])
    return inputs


@pytest.mark.parametrize("num_sampled", [2, 3, 5])
def test_patches_are_those_of_the_picture_processor_frame_by_frame(vlm, num_sampled):
    frames, plan = video(vlm, num_sampled)
    values = vlm.videos.prepare(iter(frames), plan).pixel_values()
    processor = Qwen2VLImageProcessorPil(
        **RECIPES[vlm.name].processor | {"image_processor_type": None}, do_resize=False, temporal_patch_size=2
    )
    resized = [np.asarray(Image.fromarray(one).resize(plan.resized, Image.Resampling.BICUBIC)) for one in frames]
    side = processor.patch_size
    # Of one picture the processor makes both frames of a patch.
    single = [
        processor(Image.fromarray(one), return_tensors="np")["pixel_values"].reshape(-1, 3, 2, side**2)[:, :, 0]
        for one in resized
    ]
    single += single[-1:] * (-len(single) % 2)
    expected = np.concatenate([np.stack(single[at : at + 2], 2) for at in range(0, len(single), 2)])
    assert plan.grid_thw[0] == math.ceil(num_sampled / 2)
    assert np.array_equal(values, expected.reshape(len(values), -1))


@pytest.mark.parametrize("tower", ["torch", "native"])
def test_features_are_those_of_the_reference(vlm, tower):
    media = [
        vlm.videos.prepare(*video(vlm, 4)),
        prepared_picture(vlm),
        vlm.videos.prepare(*video(vlm, 3, size=(40, 80), seed=1)),
    ]
    model = SimpleNamespace(vision=vlm.model.vision)
    if tower == "native":
        if problem := tower_problem(vlm.model.vision.vision):
            pytest.skip(problem)
        model.vision = NativeTower(vlm.model.vision.vision, threads=1)
    ours = vlm.family.encode(model, media)
    for one, rows in zip(media, ours, strict=True):
        inputs = reference_inputs(vlm, [1], [one])
        pixels = inputs.get("pixel_values", inputs.get("pixel_values_videos"))
        grids = inputs.get("image_grid_thw", inputs.get("video_grid_thw"))
        with torch.inference_mode():
            output = vlm.reference.model.get_image_features(pixels, grids, return_dict=True)
        levels = [output.pooler_output, *(getattr(output, "deepstack_features", None) or [])]
        theirs = torch.cat([torch.cat([part.reshape(-1, part.shape[-1]) for part in level]) for level in levels], -1)
        torch.testing.assert_close(rows, theirs, rtol=1e-4, atol=1e-5 * theirs.abs().max().item())


def item(plan, identity):
    sample = VideoSample(num_frames=1, fps=1, indices=(0,)) if plan.kind == "video" else None
    return MediaItem(
        kind=plan.kind,
        identity=identity * 64,
        format="mp4",
        width=plan.width,
        height=plan.height,
        video=sample,
        source=InlineSource(b""),
    )


def planned(vlm, parts, plans):
    """The prompt as the engine plans it, without its weights."""
    request = GenerateRequest(
        request_id="video",
        prompt=ChatPrompt((Message("user", parts),)),
        items=tuple(item(plan, "abcdef"[at]) for at, plan in enumerate(plans)),
        sampling=SamplingParams(max_tokens=NUM_TOKENS),
    )
    places = []

    def rotary(positions):
        places.append(positions)
        return positions

    renderer = PromptRenderer(vlm.directory, vlm.family)
    made = Planner(vlm.family, renderer, rotary, model_revision="", max_tokens=4096).plan(request, plans)
    return made.prompt, places[0]


PARTS = (TextPart("a "), ItemPart(0), TextPart(" b"), ItemPart(1), ItemPart(2), TextPart("end"))


def media_of(vlm, fps=24.0):
    return [
        vlm.videos.prepare(*video(vlm, 5, fps=fps)),
        prepared_picture(vlm),
        vlm.videos.prepare(*video(vlm, 2, fps=fps, seed=3)),
    ]


@pytest.mark.parametrize("fps", [24.0, 7.3, 0.9])
def test_positions_are_those_of_the_reference(vlm, fps):
    media = media_of(vlm, fps)
    prompt, positions = planned(vlm, PARTS, [one.plan for one in media])
    inputs = reference_inputs(vlm, prompt.token_ids.tolist(), media)
    names = ("input_ids", "mm_token_type_ids", "image_grid_thw", "video_grid_thw", "second_per_grid_ts")
    theirs, delta = vlm.reference.model.get_rope_index(**{name: inputs[name] for name in names if name in inputs})
    assert np.array_equal(positions, theirs[:, 0].numpy())
    assert prompt.next_position == len(prompt.token_ids) + delta.item()
    assert prompt.is_embedding_row.sum() == sum(one.plan.num_embeddings for one in media)


def test_a_video_at_the_end_counts_its_last_moment(vlm):
    """What follows goes on behind the largest position, also where time is ahead of rows and columns."""
    prepared = vlm.videos.prepare(*video(vlm, 9, size=(30, 30), fps=1.0))
    ids = vlm.family.expand(prepared.plan)
    starts = tuple(
        at for at, one in enumerate(ids) if one == vlm.family.video_token_id != (ids[at - 1] if at else None)
    )
    _, next_position = vlm.family.positions(len(ids), [PlacedImage(prepared.plan, 0, len(ids), starts)])
    inputs = reference_inputs(vlm, ids, [prepared])
    names = ("input_ids", "mm_token_type_ids", "video_grid_thw", "second_per_grid_ts")
    _, delta = vlm.reference.model.get_rope_index(**{name: inputs[name] for name in names if name in inputs})
    assert next_position == len(ids) + delta.item()


def test_times_are_written_as_the_processor_writes_them(tmp_path):
    from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

    family = family_for(build("qwen3_vl", tmp_path))
    sample = VideoSample(num_frames=100, fps=24.0, indices=(0, 11, 35, 50, 99))
    plan = family.preparer.video.plan(64, 64, sample)
    theirs = Qwen3VLProcessor._calculate_timestamps(None, list(sample.indices), sample.fps, 2)
    assert list(plan.grid_times_s) == theirs
    backend = PromptRenderer(tmp_path, family).tokenizer.backend
    rows = plan.num_embeddings // 3
    text = "".join(
        f"<{time_s:.1f} seconds><|vision_start|>" + "<|video_pad|>" * rows + "<|vision_end|>" for time_s in theirs
    )
    assert family.expand(plan) == backend.encode(text, add_special_tokens=False).ids


async def test_greedy_answers_are_those_of_the_reference(vlm):
    """From encoded bytes to tokens, with the towers and the decoder that are used by default."""
    pytest.importorskip("av", reason="the extra video is not installed")
    from tests.unit.media.video.clips import clip

    ingest = MediaIngest(MediaSettings(), vlm.family.preparer)
    urls = ["data:video/mp4;base64," + b64encode(clip(frames)).decode() for frames in (48, 20)]
    references = [MediaReference("video", url, "/", num_frames=4) for url in urls]
    try:
        items = await ingest.collect(references, 60.0)
    finally:
        await ingest.aclose()
    parts = (TextPart("a "), ItemPart(0), TextPart(" b "), ItemPart(1), TextPart("what?"))
    request = GenerateRequest(
        request_id="video",
        prompt=ChatPrompt((Message("user", parts),)),
        items=tuple(items),
        sampling=SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True),
    )
    settings = EngineSettings(threads=1, max_running=4, prefix_cache_bytes=2**22)
    async with aclosing_worker(LocalWorker.start(vlm.directory, "model", settings, MediaSettings(), report)) as worker:
        answers = [await tokens_of(worker, request) for _ in range(2)]  # the second is cached
        decoder = PictureDecoder(MediaSettings())
        media = [await decoder.prepare(one, vlm.family.preparer) for one in items]
        decoder.close()
    prompt, _ = planned(vlm, parts, [one.plan for one in media])
    inputs = reference_inputs(vlm, prompt.token_ids.tolist(), media)
    with torch.no_grad():
        output = vlm.reference.generate(
            **inputs, max_new_tokens=NUM_TOKENS, min_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None
        )
    assert answers == [output[0, len(prompt.token_ids) :].tolist()] * 2


def report(what, share):
    """Nobody watches."""


@asynccontextmanager
async def aclosing_worker(worker):
    try:
        yield worker
    finally:
        await worker.aclose()


async def tokens_of(worker, request):
    found = []
    async for event in worker.generate(request):
        if isinstance(event, TokenEvent):
            found += event.token_ids
    return found
