"""What directories say, told apart by their files alone."""

import json

import pytest

from chiasm.errors import EngineStartError, UnsupportedModelError
from chiasm.pooling.model_files import is_pooling_directory, read_pooling_model

BERT = {"model_type": "bert", "architectures": ["BertModel"], "max_position_embeddings": 512}
QWEN = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "max_position_embeddings": 4096}
MODULES = [("Transformer", ""), ("Pooling", "1_Pooling")]


def write(folder, config, modules=None, **files):
    (folder / "config.json").write_text(json.dumps(config))
    if modules is not None:
        entries = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in modules]
        (folder / "modules.json").write_text(json.dumps(entries))
    for name, content in files.items():
        path = folder / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
    return folder


def pooling(folder, **modes):
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))


@pytest.mark.parametrize(
    ("config", "modules", "is_pooling"),
    [
        (BERT, None, True),
        (QWEN, None, False),
        (QWEN, MODULES, True),
        (QWEN | {"architectures": ["Qwen3ForSequenceClassification"]}, None, True),
        ({"model_type": "qwen2_vl", "architectures": ["Qwen2VLForConditionalGeneration"]}, None, False),
        ({"model_type": "qwen3"}, None, False),
    ],
)
def test_which_directories_ask_for_pooling(tmp_path, config, modules, is_pooling):
    assert is_pooling_directory(write(tmp_path, config, modules)) is is_pooling


@pytest.mark.parametrize(
    ("modes", "kind"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": "lasttoken"}, "last"),
    ],
)
def test_pooling_modes(tmp_path, modes, kind):
    pooling(write(tmp_path, BERT, MODULES), **modes)
    assert read_pooling_model(tmp_path).pooling == kind


@pytest.mark.parametrize(
    "modes",
    [
        {"pooling_mode_max_tokens": True},
        {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
        {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True},
        {},
    ],
)
def test_modes_that_are_not_computed(tmp_path, modes):
    pooling(write(tmp_path, BERT, MODULES), **modes)
    with pytest.raises(UnsupportedModelError):
        read_pooling_model(tmp_path)


@pytest.mark.parametrize(
    ("architecture", "shape", "kind"),
    [
        ("BertModel", "embedder", "mean"),
        ("BertForSequenceClassification", "sequence_classifier", "cls"),
        ("BertForTokenClassification", "token_classifier", "all"),
    ],
)
def test_shapes(tmp_path, architecture, shape, kind):
    model = read_pooling_model(write(tmp_path, BERT | {"architectures": [architecture]}))
    assert (model.shape, model.pooling) == (shape, kind)


def test_decoders_pool_the_last_token_and_look_back_only(tmp_path):
    model = read_pooling_model(write(tmp_path, QWEN), "embedder")
    assert (model.pooling, model.is_causal) == ("last", True)
    assert not read_pooling_model(write(tmp_path, QWEN | {"is_causal": False}), "embedder").is_causal


def test_the_longest_input_is_the_least_of_all_limits(tmp_path):
    assert read_pooling_model(write(tmp_path, BERT)).max_tokens == 512
    write(tmp_path, BERT, tokenizer_config={"model_max_length": 10**30}, sentence_bert_config={"max_seq_length": 128})
    assert read_pooling_model(tmp_path).max_tokens == 128
    write(tmp_path, BERT | {"model_type": "roberta", "max_position_embeddings": 100})
    assert read_pooling_model(tmp_path).max_tokens == 98


def test_prompts(tmp_path):
    said = {"prompts": {"query": "Q: ", "document": ""}, "default_prompt_name": "query"}
    model = read_pooling_model(write(tmp_path, BERT, config_sentence_transformers=said))
    assert (dict(model.prompts), model.default_prompt) == (said["prompts"], "query")


def test_labels_activations_and_calibration(tmp_path):
    config = BERT | {
        "architectures": ["BertForSequenceClassification"],
        "id2label": {"1": "good", "0": "bad", "10": "ten", "2": "two"},
        "problem_type": "multi_label_classification",
        "logit_mean": 1.5,
        "logit_sigma": 2.0,
        "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"},
        "matryoshka_dimensions": [64, 256, 128],
    }
    model = read_pooling_model(write(tmp_path, config))
    assert model.labels == ("bad", "good", "two", "ten")
    assert (model.activation, model.score_activation) == ("sigmoid", "identity")
    assert (model.mean, model.sigma, model.dimensions) == (1.5, 2.0, (256, 128, 64))


@pytest.mark.parametrize(
    ("config", "modules"),
    [
        ({"model_type": "deberta-v2"}, None),
        (BERT | {"quantization_config": {}}, None),
        (BERT, [("Transformer", ""), ("LSTM", "1")]),
        (BERT | {"sbert_ce_default_activation_function": "torch.nn.modules.activation.Mish"}, None),
    ],
)
def test_what_is_not_served(tmp_path, config, modules):
    if config.get("quantization_config") == {}:
        config = config | {"quantization_config": {"bits": 4}}
    with pytest.raises(UnsupportedModelError):
        read_pooling_model(write(tmp_path, config, modules))


def test_a_directory_without_a_configuration_or_a_length(tmp_path):
    with pytest.raises(EngineStartError):
        read_pooling_model(tmp_path)
    with pytest.raises(EngineStartError):
        read_pooling_model(write(tmp_path, {"model_type": "bert"}))
