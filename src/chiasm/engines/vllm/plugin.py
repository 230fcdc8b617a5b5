"""The entry point of the group `vllm.general_plugins`: called once in each process of a vLLM server."""


def register() -> None:
    """Make what is chosen by name known to vLLM; nothing changes for servers that do not choose it."""
    from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY  # noqa: PLC0415 - found, not chosen, in many processes

    from chiasm.engines.vllm.media_connector import SpoolMediaConnector  # noqa: PLC0415 - imports vLLM

    MEDIA_CONNECTOR_REGISTRY.register("chiasm")(SpoolMediaConnector)
