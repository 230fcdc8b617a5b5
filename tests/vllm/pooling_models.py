"""Model directories that vLLM and the embedded engine both serve."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from chiasm.engines.pooling.ranker_loading import ImageRanker
from chiasm.pooling.ranker_config import read_ranker_config
from tests.numeric.minilm import directory as minilm

POLARITIES = ("negative", "neutral", "positive")
MARKER = "<image>"
LABELS = ("O", *(f"{begin}-{kind}" for kind in POLARITIES for begin in "BI"))


def cross_encoder(directory: Path) -> Path:
    """MiniLM's real weights under a head of one label with fixed random weights."""
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(minilm(), num_labels=1)
    with torch.no_grad():
        model.classifier.weight.normal_(std=0.2)
    model.save_pretrained(directory)
    AutoTokenizer.from_pretrained(minilm()).save_pretrained(directory)
    return directory


def aspect_sentiment(directory: Path) -> Path:
    """MiniLM's real weights under both heads of the joint architecture, which have fixed random weights."""
    torch.manual_seed(1)
    model = AutoModel.from_pretrained(minilm())
    model.save_pretrained(directory)
    width = model.config.hidden_size
    weights = {f"bert.{name}": tensor for name, tensor in load_file(directory / "model.safetensors").items()}
    for head, count in (("span", 3), ("polarity", len(POLARITIES))):
        weights |= {f"{head}.weight": torch.randn(count, width) * 0.3, f"{head}.bias": torch.randn(count)}
    weights["span.bias"][0] -= 2  # so that not every token is outside
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    file = directory / "config.json"
    config = json.loads(file.read_text()) | {
        "architectures": ["AspectSentimentForTokenClassification"],
        "id2label": dict(enumerate(LABELS)),
        "label2id": {label: index for index, label in enumerate(LABELS)},
    }
    file.write_text(json.dumps(config))
    AutoTokenizer.from_pretrained(minilm()).save_pretrained(directory)
    return directory


def image_ranker(directory: Path, text: str = "bert") -> Path:
    """An image ranker of squares of 32 pixels with fixed random weights; a BERT for its text has MiniLM's real ones."""
    torch.manual_seed(2)
    directory.mkdir()
    tokenizer = AutoTokenizer.from_pretrained(minilm())
    tokenizer.add_special_tokens({"additional_special_tokens": [MARKER]})
    tokenizer.save_pretrained(directory)
    read = AutoModel.from_pretrained(minilm())
    sizes = read.config.to_dict() | {"model_type": text, "vocab_size": len(tokenizer)}
    if text != "bert":
        sizes |= {"num_hidden_layers": 2, "type_vocab_size": 1, "pad_token_id": 1}
    vision = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    written = {
        "model_type": "chiasm_image_ranker",
        "marker_token": MARKER,
        "text_config": sizes,
        "vision_config": {"model_type": "clip_vision_model", "image_size": 32, "patch_size": 8, **vision},
        "adapter_config": {"num_layers": 2, "num_attention_heads": 4, "intermediate_size": 48},
    }
    (directory / "config.json").write_text(json.dumps(written))
    model = ImageRanker(read_ranker_config(directory)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if not name.startswith("text_model."):
                scale = 0.2 if weight.dim() > 1 else 0.1
                weight.copy_(torch.randn_like(weight) * scale + float("norm" in name.lower()))
        model.adapter.score.weight.mul_(0.2)  # scores that a sigmoid tells apart
        if text == "bert":
            read.resize_token_embeddings(len(tokenizer), mean_resizing=False)
            model.text_model.load_state_dict(read.state_dict(), strict=False)
    save_file(model.state_dict(), directory / "model.safetensors", metadata={"format": "pt"})
    CLIPImageProcessorPil(size={"height": 32, "width": 32}, crop_size=32).save_pretrained(directory)
    return directory


@torch.inference_mode()
def aspect_probabilities(directory: Path, review: str, aspect: str) -> tuple[torch.Tensor, list[tuple[int, int]]]:
    """What transformers and two products make of a pair: [tokens of the review, labels], and where the tokens stand."""
    weights = load_file(directory / "model.safetensors")
    tokenizer, model = AutoTokenizer.from_pretrained(minilm()), AutoModel.from_pretrained(minilm()).eval()
    encoded = tokenizer(review, aspect, return_tensors="pt", return_offsets_mapping=True)
    places = encoded.pop("offset_mapping")[0].tolist()
    states = model(**encoded).last_hidden_state[0]
    span = states @ weights["span.weight"].T + weights["span.bias"]
    polarity = states[0] @ weights["polarity.weight"].T + weights["polarity.bias"]
    columns = [span[:, 0]]
    for index in range(len(POLARITIES)):
        columns += [span[:, 1] + polarity[index], span[:, 2] + polarity[index]]
    rows = [row for row, text in enumerate(encoded.sequence_ids(0)) if text == 0]
    return torch.stack(columns, dim=1).softmax(-1)[rows], [tuple(places[row]) for row in rows]
