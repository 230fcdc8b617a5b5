"""A sequence in a simulated engine, and what those who wait for it are told."""

from typing import TYPE_CHECKING

import simpy

if TYPE_CHECKING:
    from chiasm.scheduling.scheduler import Sequence as Scheduled


class Generation:
    """A sequence in an engine.

    Attributes:
        first: Happens with its first token.
        done: Happens with its last.
    """

    def __init__(
        self,
        env: simpy.Environment,
        num_prompt_tokens: int,
        num_output_tokens: int,
        num_known_tokens: int = 0,
        *,
        has_media: bool = False,
        num_missing_tokens: int = 0,
    ) -> None:
        """Describe a sequence.

        Args:
            env: Whose time it is.
            num_prompt_tokens: Of its prompt.
            num_output_tokens: Of its answer.
            num_known_tokens: Of its prompt in a cache; one token is always computed.
            has_media: Whether its prompt has pictures.
            num_missing_tokens: At its prompt's end, those that wait for pictures.
        """
        self.num_prompt_tokens = num_prompt_tokens
        self.num_output_tokens = num_output_tokens
        self.num_known_tokens = min(num_known_tokens, num_prompt_tokens - 1)
        self.has_media = has_media
        self.num_missing_tokens = num_missing_tokens
        self.first = env.event()
        self.done = env.event()
        self.scheduled: Scheduled | None = None

    @property
    def num_tokens(self) -> int:
        """Of context at its end."""
        return self.num_prompt_tokens + self.num_output_tokens

    def fail(self, error: Exception) -> None:
        """Let whoever waits for it see an error."""
        for event in (self.first, self.done):
            if not event.triggered:
                event.defused = True
                event.fail(error)
