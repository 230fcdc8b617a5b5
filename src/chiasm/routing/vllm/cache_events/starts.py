"""How many tokens of a prompt its starts have, without a tokenizer: in proportion to characters and pictures."""

from chiasm.protocol.generation import GenerateRequest, Usage
from chiasm.routing.coverage.prefixes import prefixes_of
from chiasm.routing.vllm.cache_events.blocks import Served


def served_by(request: GenerateRequest, usage: Usage) -> Served:
    """The prompt of a call that has ended.

    All pictures of a prompt count the same, and so do all its characters: a start may be tied to a block next to the
    one that it ends in.
    """
    prefixes = prefixes_of(request)
    if not prefixes:
        return Served(usage.num_prompt_tokens, ())
    num_chars, num_items = max(prefixes[-1].num_chars, 1), max(len(prefixes[-1].items), 1)
    text_tokens = usage.num_prompt_tokens - usage.num_visual_tokens
    starts = [
        (one.key, text_tokens * one.num_chars // num_chars + usage.num_visual_tokens * len(one.items) // num_items)
        for one in prefixes
    ]
    return Served(usage.num_prompt_tokens, starts)
