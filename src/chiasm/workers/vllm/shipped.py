"""The shipped processors as vLLM makes them."""

from chiasm.pooling.io.absa import AspectSentiment
from chiasm.pooling.io.image_ranker import ImageRanker
from chiasm.pooling.io.reranker import Reranker
from chiasm.workers.vllm.processor import for_vllm

RerankerInVllm = for_vllm(Reranker)
AspectSentimentInVllm = for_vllm(AspectSentiment)
ImageRankerInVllm = for_vllm(ImageRanker)
