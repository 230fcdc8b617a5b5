"""What a model directory says about pooling, read from its files without torch.

Two conventions are read: sentence-transformers' (`modules.json` and what it names) and transformers' own
(`config.json`: architecture, labels, problem type). Where both speak, the first wins.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from chiasm.errors import EngineStartError, UnsupportedModelError
from chiasm.media.prepare.model_files import read_json
from chiasm.pooling.ranker_config import RANKER_TYPE

PoolingKind = Literal["cls", "last", "mean", "all", "step"]
Activation = Literal["identity", "sigmoid", "softmax", "tanh", "relu", "gelu"]
Shape = Literal["embedder", "late_interaction", "sequence_classifier", "token_classifier", "yes_no", "image_ranker"]

ENCODER_TYPES = frozenset({"bert", "roberta", "xlm-roberta", "camembert", "modernbert"})
DECODER_TYPES = frozenset({"qwen2", "qwen3", "llama", "mistral"})
DUAL_TYPES = frozenset({"clip", "siglip"})
"""A text tower and an image tower that lead into one space."""
_PICTURE_TYPES = DUAL_TYPES | {RANKER_TYPE}
_KNOWN_TYPES = ENCODER_TYPES | DECODER_TYPES | _PICTURE_TYPES
_SEQUENCE_CLASSIFIER, _TOKEN_CLASSIFIER = "ForSequenceClassification", "ForTokenClassification"
_POSITION_OFFSETS = {"roberta": 2, "xlm-roberta": 2, "camembert": 2}
_USUAL_TEXTS: Mapping[str, Mapping[str, int]] = {  # what configurations leave out
    "clip": {"max_position_embeddings": 77, "vocab_size": 49408},
    "siglip": {"max_position_embeddings": 64, "vocab_size": 32000},
    RANKER_TYPE: {"max_position_embeddings": 512},
}
_MODES: Mapping[str, PoolingKind] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
_UNSUPPORTED_MODES = (
    "pooling_mode_max_tokens",
    "pooling_mode_mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens",
)


class Projection(msgspec.Struct, frozen=True):
    """A dense layer whose weights lie in a folder of the model directory."""

    folder: str
    activation: Activation


class PoolingModel(msgspec.Struct, frozen=True, kw_only=True):
    """What is served. `max_tokens` counts special tokens; `prompts` are prefixes by name;
    token ids are below `vocabulary_size`, where the configuration says so. With a `pad_token` texts are filled up to
    `max_tokens` with it; a `marker_token` stands where a picture belongs in a text.
    """

    model_type: str
    shape: Shape
    pooling: PoolingKind
    is_causal: bool
    max_tokens: int
    vocabulary_size: int
    projections: tuple[Projection, ...] = ()
    is_normalized: bool = False
    dimensions: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()
    activation: Activation = "identity"
    score_activation: Activation = "sigmoid"
    mean: float = 0.0
    sigma: float = 1.0
    prompts: Mapping[str, str] = {}
    default_prompt: str | None = None
    is_lower_case: bool = False
    takes_images: bool = False
    pad_token: str = ""
    marker_token: str = ""


def is_pooling_directory(directory: Path) -> bool:
    """Whether the files ask for pooling by themselves: sentence-transformers modules, a classifier, or an encoder."""
    config = read_json(directory / "config.json") or {}
    if (directory / "modules.json").is_file():
        return True
    architecture = _architecture(config)
    is_classifier = architecture.endswith((_SEQUENCE_CLASSIFIER, _TOKEN_CLASSIFIER))
    return is_classifier or architecture == "HF_ColBERT" or config.get("model_type") in ENCODER_TYPES | _PICTURE_TYPES


def read_pooling_model(directory: Path, shape: Shape | None = None) -> PoolingModel:
    """Read the files of `directory`; `shape` overrides what they say the model is.

    Raises:
        UnsupportedModelError: A model type, module or mode that is not computed here.
        EngineStartError: A file is missing or contradicts another.
    """
    config = read_json(directory / "config.json")
    if config is None:
        raise EngineStartError(f"no config.json in {directory.name}", hint="Name a local Hugging Face directory")
    model_type = _supported_type(directory, config)
    takes_images = model_type in _PICTURE_TYPES
    modules = _modules(directory)
    shape = _allowed_shape(model_type, shape) if takes_images else shape or _shape_of(config, modules)
    sentence = read_json(directory / "config_sentence_transformers.json") or {}
    text_config = {**_USUAL_TEXTS[model_type], **(config.get("text_config") or {})} if takes_images else config
    is_causal = model_type in DECODER_TYPES | {"clip"} and config.get("is_causal", True) is not False
    labels = _labels(config) if shape in ("sequence_classifier", "token_classifier") else ()
    prompts = {name: text for name, text in (sentence.get("prompts") or {}).items() if isinstance(text, str)}
    default = sentence.get("default_prompt_name")
    return PoolingModel(
        model_type=model_type,
        shape=shape,
        pooling=_pooling(directory, modules, shape, config, is_causal=is_causal),
        is_causal=is_causal,
        max_tokens=_max_tokens(directory, text_config),
        vocabulary_size=int(text_config.get("vocab_size") or 0),
        projections=tuple(_projection(directory, path) for kind, path in modules if kind == "Dense"),
        is_normalized=any(kind == "Normalize" for kind, _ in modules)
        or shape == "late_interaction"
        or model_type in DUAL_TYPES,
        dimensions=_dimensions(config),
        labels=labels,
        activation=_class_activation(config, len(labels)),
        score_activation=_score_activation(config),
        mean=float(config.get("logit_mean") or 0.0),
        sigma=float(config.get("logit_sigma") or 1.0),
        prompts=prompts,
        default_prompt=default if default in prompts else None,
        is_lower_case=bool((read_json(directory / "sentence_bert_config.json") or {}).get("do_lower_case")),
        takes_images=takes_images,
        pad_token=_pad_token(directory) if model_type == "siglip" else "",
        marker_token=str(config.get("marker_token") or "<image>") if model_type == RANKER_TYPE else "",
    )


def _allowed_shape(model_type: str, asked: Shape | None) -> Shape:
    """The only use of a model that takes pictures. Raises `UnsupportedModelError` when another is asked for."""
    shape: Shape = "embedder" if model_type in DUAL_TYPES else "image_ranker"
    if asked not in (None, shape):
        raise UnsupportedModelError(f"A {model_type} model is an {shape}, it is no {asked}", hint="Use --task auto")
    return shape


def _pad_token(directory: Path) -> str:
    written = (read_json(directory / "tokenizer_config.json") or {}).get("pad_token") or "</s>"
    return str(written["content"] if isinstance(written, dict) else written)


def _supported_type(directory: Path, config: Mapping[str, Any]) -> str:
    model_type = str(config.get("model_type"))
    if model_type not in _KNOWN_TYPES:
        raise UnsupportedModelError(
            f"No pooling for model type {model_type!r}; known: {', '.join(sorted(_KNOWN_TYPES))}",
            hint="Serve this model with vLLM",
        )
    if config.get("quantization_config"):
        raise UnsupportedModelError(
            f"The weights of {directory.name} are quantized", hint="Use the unquantized model, or vLLM"
        )
    return model_type


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures") or [""]
    return str(names[0])


def _modules(directory: Path) -> list[tuple[str, str]]:
    """(kind, folder) of each sentence-transformers module, in order."""
    file = directory / "modules.json"
    if not file.is_file():
        return []
    try:
        entries = msgspec.json.decode(file.read_bytes(), type=list[dict[str, Any]])
    except (OSError, msgspec.DecodeError) as error:
        raise EngineStartError(f"Cannot read modules.json of {directory.name}: {error}") from error
    found = [(str(entry.get("type", "")).rpartition(".")[2], str(entry.get("path", ""))) for entry in entries]
    for kind, _ in found:
        if kind not in ("Transformer", "Pooling", "Dense", "Normalize", "CrossEncoder"):
            raise UnsupportedModelError(
                f"{directory.name} has a module {kind!r}", hint="Known: Transformer, Pooling, Dense, Normalize"
            )
    return found


def _shape_of(config: Mapping[str, Any], modules: Sequence[tuple[str, str]]) -> Shape:
    architecture, kinds = _architecture(config), [kind for kind, _ in modules]
    if architecture.endswith(_SEQUENCE_CLASSIFIER) and "Pooling" not in kinds:
        return "sequence_classifier"
    if architecture.endswith(_TOKEN_CLASSIFIER) and "Pooling" not in kinds:
        return "token_classifier"
    if "Dense" in kinds and "Pooling" not in kinds:
        return "late_interaction"
    return "embedder"


def _pooling(
    directory: Path, modules: Sequence[tuple[str, str]], shape: Shape, config: Mapping[str, Any], *, is_causal: bool
) -> PoolingKind:
    if shape in ("late_interaction", "token_classifier", "image_ranker"):
        return "all"
    folder = next((path for kind, path in modules if kind == "Pooling"), None)
    if folder is not None and shape == "embedder":
        return _pooling_mode(directory, folder)
    if is_causal or shape == "yes_no" or config.get("model_type") == "siglip":
        return "last"
    if config.get("model_type") == "modernbert" and shape == "sequence_classifier":
        return "mean" if config.get("classifier_pooling") == "mean" else "cls"
    return "cls" if shape == "sequence_classifier" else "mean"


def _pooling_mode(directory: Path, folder: str) -> PoolingKind:
    written = read_json(directory / folder / "config.json")
    if written is None:
        raise EngineStartError(f"{directory.name}/{folder} has no config.json", hint="Download the model again")
    named = written.get("pooling_mode")
    modes = [mode for name, mode in _MODES.items() if written.get(name) or mode == named or mode + "token" == named]
    others = [name for name in _UNSUPPORTED_MODES if written.get(name)]
    if len(modes) != 1 or others:
        raise UnsupportedModelError(
            f"{directory.name} pools in a way that is not computed here: {', '.join([*modes, *others]) or 'none'}",
            hint="Exactly one of cls, mean and last token is supported",
        )
    return modes[0]


def _projection(directory: Path, folder: str) -> Projection:
    written = read_json(directory / folder / "config.json") or {}
    name = str(written.get("activation_function", "torch.nn.modules.linear.Identity")).rpartition(".")[2].lower()
    return Projection(folder, _activation(name))


def _activation(name: str) -> Activation:
    known: dict[str, Activation] = {
        "identity": "identity",
        "sigmoid": "sigmoid",
        "softmax": "softmax",
        "tanh": "tanh",
        "relu": "relu",
        "gelu": "gelu",
    }
    if name not in known:
        raise UnsupportedModelError(f"The activation {name!r} is not known", hint=f"Known: {', '.join(known)}")
    return known[name]


def _class_activation(config: Mapping[str, Any], num_labels: int) -> Activation:
    """The configuration's `problem_type` decides; without one, one label is a probability of its own."""
    problem = config.get("problem_type")
    if problem == "regression":
        return "identity"
    return "sigmoid" if problem == "multi_label_classification" or num_labels == 1 else "softmax"


def _score_activation(config: Mapping[str, Any]) -> Activation:
    """sentence-transformers' cross-encoders write theirs into `config.json`, under a new and an old name."""
    sentence = config.get("sentence_transformers") or {}
    named = sentence.get("activation_fn") or config.get("sbert_ce_default_activation_function")
    return _activation(str(named).rpartition(".")[2].lower()) if named else "sigmoid"


def _labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    names = config.get("id2label")
    if isinstance(names, dict) and names:
        return tuple(str(name) for _, name in sorted((int(index), name) for index, name in names.items()))
    return tuple(f"LABEL_{index}" for index in range(int(config.get("num_labels") or 2)))


def _dimensions(config: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(sorted((int(n) for n in config.get("matryoshka_dimensions") or ()), reverse=True))


def _max_tokens(directory: Path, config: Mapping[str, Any]) -> int:
    """The least of what tokenizer, sentence-transformers and position embeddings allow."""
    offset = _POSITION_OFFSETS.get(str(config.get("model_type")), 0)
    limits = [int(config.get("max_position_embeddings") or 0) - offset]
    limits.append(int((read_json(directory / "sentence_bert_config.json") or {}).get("max_seq_length") or 0))
    written = (read_json(directory / "tokenizer_config.json") or {}).get("model_max_length") or 0
    limits.append(int(written) if written < 2**31 else 0)  # transformers writes 10^30 for "no limit"
    known = [limit for limit in limits if limit > 0]
    if not known:
        raise EngineStartError(f"{directory.name} does not say how long an input may be")
    return min(known)
