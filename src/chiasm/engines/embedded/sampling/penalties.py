"""Repetition, frequency and presence penalties of one sequence."""

from collections.abc import Iterable

import torch

from chiasm.protocol.generation import SamplingParams


class PenaltyHistory:
    """What one sequence has seen and said, counted on the device of its logits.

    Repetition looks at prompt and output, frequency and presence at the output alone, as vLLM and OpenAI define them.
    """

    def __init__(self, params: SamplingParams, vocab_size: int) -> None:
        self._repetition = params.repetition_penalty
        self._frequency = params.frequency_penalty
        self._presence = params.presence_penalty
        self._vocab_size = vocab_size
        self._new_prompt_ids: list[int] = []
        self._new_output_ids: list[int] = []
        self._counts: torch.Tensor | None = None
        self._is_seen: torch.Tensor | None = None

    def observe_prompt(self, token_ids: Iterable[int]) -> None:
        """Count prompt tokens; needed for the repetition penalty only."""
        self._new_prompt_ids.extend(map(int, token_ids))

    def observe_output(self, token_ids: Iterable[int]) -> None:
        """Count output tokens."""
        self._new_output_ids.extend(map(int, token_ids))

    def apply(self, row: torch.Tensor) -> None:
        """Change logits [vocab_size] float32 in place."""
        counts, is_seen = self._counted(row.device)
        if self._repetition != 1:
            penalised = torch.where(row > 0, row / self._repetition, row * self._repetition)
            row.copy_(torch.where(is_seen, penalised, row))
        if self._frequency:
            row.sub_(counts, alpha=self._frequency)
        if self._presence:
            row.sub_((counts > 0).to(row.dtype), alpha=self._presence)

    def _counted(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        if self._counts is None or self._is_seen is None:
            self._counts = torch.zeros(self._vocab_size, device=device)
            self._is_seen = torch.zeros(self._vocab_size, dtype=torch.bool, device=device)
        if self._new_prompt_ids:
            self._is_seen[torch.tensor(self._new_prompt_ids, device=device)] = True
            self._new_prompt_ids.clear()
        if self._new_output_ids:
            new = torch.tensor(self._new_output_ids, device=device)
            self._is_seen[new] = True
            self._counts.index_add_(0, new, torch.ones(len(new), device=device))
            self._new_output_ids.clear()
        return self._counts, self._is_seen
