"""Frames are chosen as by the Hugging Face video processors, whose own functions are run here without torchvision."""

import ast
import math
import random
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from chiasm.media.prepare.qwen_video import QwenVideoPreparer
from chiasm.media.video.sampling import SamplingRule, sampled_indices
from chiasm.protocol.media import VideoSample


def their_function(family):
    """`sample_frames` of a processor module that cannot be imported, since it wants torchvision."""
    spec = find_spec(f"transformers.models.{family}")
    path = Path(spec.origin).parent / f"video_processing_{family}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    [function] = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "sample_frames"]
    function.args.kwonlyargs, function.returns = [], None
    for argument in function.args.args:
        argument.annotation = None
    names = {"math": math, "np": np, "torch": torch}
    exec(compile(ast.Module([function], []), str(path), "exec"), names)
    return names["sample_frames"]


def cases():
    rng = random.Random(3)
    for _ in range(400):
        total, video_fps = rng.randint(1, 2000), rng.choice([5, 12, 23.976, 24, 25, 29.97, 30, 59.94, 60])
        how = rng.choice(["fps", "num_frames"])
        yield total, video_fps, {how: rng.choice([0.5, 1, 2, 4]) if how == "fps" else rng.randint(2, 64)}


@pytest.mark.parametrize(("family", "spread"), [("qwen2_vl", "steps"), ("qwen3_vl", "ends")])
def test_frames_are_those_of_the_reference(family, spread):
    theirs, num_compared = their_function(family), 0
    processor = SimpleNamespace(num_frames=None, fps=None, temporal_patch_size=2, min_frames=4, max_frames=768)
    for total, video_fps, asked in cases():
        metadata = SimpleNamespace(total_num_frames=total, fps=video_fps)
        rule = SamplingRule(**({"fps": None} | asked), spread=spread)
        ours = sampled_indices(total, video_fps, rule)
        assert ours == sorted(set(ours)), "in order, none twice"
        assert 1 <= len(ours) <= total
        if asked.get("num_frames", 0) > total or total < 4:
            continue  # they refuse, or divide by zero; we take what is there
        expected = theirs(processor, metadata, **asked).tolist()
        # a step like 2000 / 6 can give their range one element too many, beyond the last frame
        assert ours == [index for index in expected if index < total][: len(ours)], (total, video_fps, asked)
        assert len(expected) - len(ours) in (0, 1)
        num_compared += 1
    assert num_compared > 200


def their_size(family):
    """`resize` of a processor module, made to return the (width, height) that it would resize to."""
    path = Path(find_spec(f"transformers.models.{family}").origin).parent / f"video_processing_{family}.py"
    functions = [n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.FunctionDef)]
    chosen = {name: next(n for n in functions if n.name == name) for name in ("smart_resize", "resize")}
    for function in chosen.values():
        function.returns = None
        for argument in function.args.args:
            argument.annotation = None
    parent = SimpleNamespace(resize=lambda image, size, resample: (size.width, size.height))
    names = {"math": math, "SizeDict": SimpleNamespace, "super": lambda: parent}
    exec(compile(ast.Module([*chosen.values()], []), str(path), "exec"), names)
    return names["resize"]


@pytest.mark.parametrize("capped", [False, True])
@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl"])
def test_frames_have_the_size_of_the_reference(family, capped):
    resize, rng = their_size(family), random.Random(5)
    for _ in range(400):
        least = rng.choice([32 * 32, 128 * 28 * 28])
        size = {"shortest_edge": least, "longest_edge": least * rng.choice([4, 60, 700])}
        ours = QwenVideoPreparer({"size": size, "cap_pixels_per_frame": capped}, is_qwen3=family == "qwen3_vl")
        width, height, number = rng.randint(8, 2000), rng.randint(30, 1500), rng.randint(2, 200)
        sample = VideoSample(num_frames=number, fps=24.0, indices=tuple(range(number)))
        wanted = resize(
            SimpleNamespace(max_video_tokens=ours.settings["max_video_tokens"]),
            SimpleNamespace(shape=(1, number, 3, height, width)),
            SimpleNamespace(**size),
            3,
            28 if family == "qwen2_vl" else 32,
            2,
            capped,
        )
        assert ours.plan(width, height, sample).resized == wanted, (size, width, height, number)
