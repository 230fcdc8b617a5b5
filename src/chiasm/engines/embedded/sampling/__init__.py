"""From logits to the next token of every sequence in a step.

What a sequence draws depends on its own logits, parameters and history only, never on its batch mates. Decides
nothing about when a sequence ends; that is `chiasm.engines.embedded.output`.
"""

from chiasm.engines.embedded.sampling.grammar import GrammarCompiler, GrammarState
from chiasm.engines.embedded.sampling.sampler import Outcome, SampledToken, sample
from chiasm.engines.embedded.sampling.sequence import SequenceSampler

__all__ = ["GrammarCompiler", "GrammarState", "Outcome", "SampledToken", "SequenceSampler", "sample"]
