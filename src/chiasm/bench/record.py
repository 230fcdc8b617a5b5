"""What is known of one request after its end: instants only. What they come to is computed by
`chiasm.bench.metrics`.
"""

import msgspec

from chiasm.bench.workload.classes import Kind
from chiasm.bench.workload.plan import Phase

FINISHED = "finished"
CANCELLED = "cancelled"
TIMED_OUT = "timed_out"
CONNECTION = "connection_lost"
CLIENT_LIMIT = "client_limit"
BAD_ANSWER = "bad_answer"
CUT_OFF = "cut_off"


class StageTimes(msgspec.Struct, frozen=True):
    """What a Chiasm server's receipt says; other fields of it are left where they are."""

    ttft_s: float | None = None
    stages_s: dict[str, float] = {}
    unaccounted_s: float = 0.0


class Record(msgspec.Struct, kw_only=True):
    """One attempted request. All instants are in nanoseconds on the clock of the run, whose zero is its start.

    `outcome` is 'finished', 'cancelled' (by this client, as planned), 'timed_out', 'connection_lost', 'client_limit'
    (this machine had no socket left), 'cut_off' (the answer stopped before its end), 'bad_answer', or the server's
    error code. `first_ns` and `last_ns` are those of chunks with text, `gaps_ns` lies between them.
    `num_output_tokens` is what the server counted, or the number of chunks where it did not.
    """

    index: int
    request_class: str
    kind: Kind
    phase: Phase
    num_body_bytes: int
    num_wanted_tokens: int
    scheduled_ns: int
    sent_ns: int
    head_ns: int | None = None
    first_ns: int | None = None
    last_ns: int | None = None
    end_ns: int = 0
    outcome: str = ""
    status: int = 0
    num_prompt_tokens: int | None = None
    num_output_tokens: int = 0
    is_counted_by_server: bool = False
    gaps_ns: list[int] = []
    receipt: StageTimes | None = None

    @property
    def is_finished(self) -> bool:
        """Whether the whole answer came."""
        return self.outcome == FINISHED

    @property
    def streams(self) -> bool:
        """Whether its answer comes in pieces, so that it has a first token."""
        return self.kind in ("chat", "completions")
