"""What a trial came to."""

import msgspec


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One fault in one topology.

    Attributes:
        expected: 'finished', or the code that was to end the target.
        outcome: What it was.
        attempts: Each try of the target, as 'stage worker outcome'.
        elapsed_ms: From the target's request to its end.
        problems: What should not have been; none when the verdict is good.
    """

    fault: str
    topology: str
    expected: str
    outcome: str
    attempts: tuple[str, ...] = ()
    elapsed_ms: float = 0.0
    problems: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        """Whether all was as it should be."""
        return not self.problems
