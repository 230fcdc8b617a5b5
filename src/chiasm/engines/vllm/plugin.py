"""The entry point of the group `vllm.general_plugins`: called once in each process of a vLLM server."""

_ARCHITECTURES = {
    "AspectSentimentForTokenClassification": "chiasm.engines.vllm.aspect_sentiment:AspectSentimentModel",
    "ChiasmImageRanker": "chiasm.engines.vllm.ranker_model:ImageRankerModel",
}


def register() -> None:
    """Make what is chosen by name known to vLLM; nothing changes for servers that do not choose it."""
    from vllm import ModelRegistry  # noqa: PLC0415 - found, not chosen, in many processes
    from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY  # noqa: PLC0415

    from chiasm.engines.vllm import ranker_config  # noqa: PLC0415 - imports transformers
    from chiasm.engines.vllm.media_connector import SpoolMediaConnector  # noqa: PLC0415 - imports vLLM

    MEDIA_CONNECTOR_REGISTRY.register("chiasm")(SpoolMediaConnector)
    ranker_config.register()
    for name, place in _ARCHITECTURES.items():
        ModelRegistry.register_model(name, place)
