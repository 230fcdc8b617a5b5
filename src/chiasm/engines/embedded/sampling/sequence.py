"""Parameters and history of one output sequence."""

import secrets
from collections.abc import Iterable

import torch

from chiasm.engines.embedded.sampling.draw import DrawParams, uniform
from chiasm.engines.embedded.sampling.grammar import GrammarState
from chiasm.engines.embedded.sampling.penalties import PenaltyHistory
from chiasm.errors import EngineStepError, InvalidRequestError
from chiasm.protocol.generation import SamplingParams

# Below this a division by the temperature leaves nothing but the maximum.
_MIN_TEMPERATURE = 1e-5


class SequenceSampler:
    """What `sample` needs to know of one sequence. Lives on the engine's thread.

    Attributes:
        is_greedy: The largest processed logit is taken.
        is_plain_greedy: The largest logit is taken and nothing else is asked for; the core may then take the maximum
            itself instead of calling `sample`. Turns true once `min_tokens` are out, if that was all.
        num_top_logprobs: As asked for; None for no log probabilities.
        draw_params: How a token is drawn when not greedy.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        choice: int,
        vocab_size: int,
        eos_token_ids: frozenset[int],
        grammar: GrammarState | None,
    ) -> None:
        """Take ownership of `grammar`. Raises `InvalidRequestError` for a logit bias outside the vocabulary."""
        _check_bias(params.logit_bias, vocab_size)
        self.num_top_logprobs = params.num_top_logprobs
        self.is_greedy = params.temperature < _MIN_TEMPERATURE
        self.draw_params = DrawParams(params.temperature, params.top_k, params.top_p, params.min_p)
        self._choice = choice
        self._seed = secrets.randbits(64) if params.seed is None else params.seed
        self._num_output_tokens = 0
        self._bias = params.logit_bias
        self._min_tokens = params.min_tokens
        ending = {*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids)}
        self._ending_ids = sorted(token_id for token_id in ending if 0 <= token_id < vocab_size)
        self._grammar = grammar
        penalises = params.repetition_penalty != 1 or params.frequency_penalty or params.presence_penalty
        self._penalties = PenaltyHistory(params, vocab_size) if penalises else None
        processes = bool(self._bias) or grammar is not None or self._penalties is not None
        self._is_plain_after_min = self.is_greedy and self.num_top_logprobs is None and not processes
        self.is_plain_greedy = self._is_plain_after_min and not self._is_held_open

    @property
    def _is_held_open(self) -> bool:
        """Fewer tokens than `min_tokens` are out, so nothing may end the sequence."""
        return self._num_output_tokens < self._min_tokens and bool(self._ending_ids)

    @property
    def is_processed(self) -> bool:
        """Whether `process` would change anything now."""
        return bool(self._bias) or self._is_held_open or self._grammar is not None or self._penalties is not None

    def observe_prompt(self, token_ids: Iterable[int]) -> None:
        """Tell the prompt, once. Needed for the repetition penalty only."""
        if self._penalties is not None:
            self._penalties.observe_prompt(token_ids)

    def observe_output(self, token_ids: Iterable[int]) -> None:
        """Tell output tokens that were chosen elsewhere, or by the core as the plain maximum.

        The sequence then goes on as if `sample` had chosen them; for a seeded one that includes its draws.
        """
        for token_id in token_ids:
            self.record(token_id)

    def process(self, row: torch.Tensor) -> None:
        """Change the logits [vocab_size] float32 in place, up to the penalties.

        Raises `InvalidRequestError` when the grammar turns out too complex to follow.
        """
        if self._bias:
            token_ids = torch.tensor(list(self._bias), device=row.device)
            row[token_ids] += torch.tensor(list(self._bias.values()), dtype=row.dtype, device=row.device)
        grammar_is_done = self._grammar is not None and self._grammar.is_finished
        if self._is_held_open and not grammar_is_done:
            row[self._ending_ids] = -torch.inf
        if self._grammar is not None:
            self._grammar.mask(row)
        if self._penalties is not None:
            self._penalties.apply(row)

    def next_uniform(self) -> float:
        """The random number of the current step."""
        return uniform(self._seed, self._choice, self._num_output_tokens)

    def record(self, token_id: int) -> None:
        """Append an output token. Raises `EngineStepError` when the grammar does not allow it, or `accept`'s own."""
        if self._grammar is not None and not self._grammar.accept(token_id):
            raise EngineStepError(
                f"Token {token_id} does not fit the JSON schema at output token {self._num_output_tokens}"
            )
        if self._penalties is not None:
            self._penalties.observe_output((token_id,))
        self._num_output_tokens += 1
        self.is_plain_greedy = self._is_plain_after_min and not self._is_held_open


def _check_bias(bias: dict[int, float], vocab_size: int) -> None:
    for token_id in bias:
        if not 0 <= token_id < vocab_size:
            raise InvalidRequestError(
                f"Token {token_id} in logit_bias is not in the vocabulary of {vocab_size} tokens",
                hint="Use ids of the served model's tokenizer",
                param=f"/logit_bias/{token_id}",
            )
