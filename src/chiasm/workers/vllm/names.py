"""Entry points of the group `vllm.io_processor_plugins`: vLLM calls each, and imports only what it was asked for."""

_SHIPPED = "chiasm.workers.vllm.shipped"


def reranker() -> str:
    """`--io-processor-plugin chiasm_reranker`."""
    return f"{_SHIPPED}.RerankerInVllm"


def absa() -> str:
    """`--io-processor-plugin chiasm_absa`."""
    return f"{_SHIPPED}.AspectSentimentInVllm"


def image_ranker() -> str:
    """`--io-processor-plugin chiasm_image_ranker`."""
    return f"{_SHIPPED}.ImageRankerInVllm"
