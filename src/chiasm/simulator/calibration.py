"""What stages cost: the numbers that a simulation stands on, as a file."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from chiasm.errors import InvalidSettingError

Seconds = Annotated[float, Meta(ge=0, le=1e6)]
Share = Annotated[float, Meta(ge=0, le=1e3)]
Count = Annotated[int, Meta(ge=1, le=4096)]
"""Of what every worker has so many of."""


class Cost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`fixed_s` seconds, and `per_unit_s` for each unit."""

    fixed_s: Seconds = 0.0
    per_unit_s: Seconds = 0.0

    def at(self, units: float) -> float:
        """Seconds for so many units."""
        return self.fixed_s + self.per_unit_s * units


class Interference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much longer work takes for what happens beside it: 0.2 is a fifth longer.

    Attributes:
        media_by_engine: Media work in the engine's own process, while the engine computes.
        engine_by_media: The engine's steps, while media work runs in its process.
        resident: Steps of an engine that shares its device with encoders, even idle ones.
        step_by_encode: Steps, while an encoder computes on the same device.
        prefill_by_encoder: Prompts, for an encoder on the same device.
        encode_by_engine: Encoding on a device whose engine computes.
    """

    media_by_engine: Share = 0.0
    engine_by_media: Share = 0.0
    resident: Share = 0.0
    step_by_encode: Share = 0.0
    prefill_by_encoder: Share = 0.0
    encode_by_engine: Share = 0.0


_BESIDE = ("resident", "step_by_encode", "prefill_by_encoder", "encode_by_engine")
"""Those of encoders apart."""


class Sharing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What work takes of the cores of a host on which all processes are: workers, gateway and client.

    Attributes:
        num_cores: Of the host.
        processes: Those that were seen to share it, for people.
        request: Cores in use while `Calibration.request` passes; those of other stages likewise.
        transfer: Of both sides.
        step_cpu: CPU seconds of one decode step of one engine, with everything that its tokens cost on their way to
            the client, but for its context; units are running generations.
        lone_step_cpu_s: The same with one running generation, whose tokens wake gateway and client one by one, where
            those of several go together; None: as `step_cpu` says.
        contention: How much longer work takes when all cores are busy but not more is asked for: caches, memory,
            hardware threads. Grows from none with one busy core.
        step_by_encode: How much longer steps take than all that says, while another process of the host encodes: what
            computes without a pause keeps its core, and steps, which wake others all the time, look for another.
    """

    num_cores: Annotated[float, Meta(gt=0, le=1e6)]
    processes: tuple[str, ...] = ()
    request: Share = 1.0
    media: Share = 1.0
    encode: Share = 1.0
    transfer: Share = 1.0
    prefill: Share = 1.0
    step_cpu: Cost = Cost()
    lone_step_cpu_s: Seconds | None = None
    contention: Share = 0.0
    step_by_encode: Share = 0.0

    def step_cpu_s(self, num_running: int) -> float:
        """CPU seconds of a step, but for its context."""
        lone_s = self.lone_step_cpu_s
        return self.step_cpu.at(num_running) if lone_s is None or num_running > 1 else lone_s

    def with_step_cpu(self, change: Callable[[Cost], Cost]) -> "Sharing":
        """The same with other CPU seconds of steps; a lone generation's change as the line does for one."""
        changed, lone_s, usual_s = change(self.step_cpu), self.lone_step_cpu_s, self.step_cpu.at(1)
        if lone_s is not None and usual_s:
            lone_s *= changed.at(1) / usual_s
        return msgspec.structs.replace(self, step_cpu=changed, lone_step_cpu_s=lone_s)

    def slowdown_at(self, cores: float) -> float:
        """How much longer work takes while so many cores are asked for; at least 1."""
        return max(1.0, cores / self.num_cores) * (1.0 + self.contention * self.busy_share(cores))

    def busy_share(self, cores: float) -> float:
        """Of the cores besides the first, those that are busy while so many are asked for."""
        return max(min(cores, self.num_cores) - 1.0, 0.0) / max(self.num_cores - 1.0, 1e-9)


class Evidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How sure a number of a calibration is; nothing is computed with it.

    Attributes:
        num_points: Measured.
        error: Mean distance of the middle means of repeated points from the curve, relative to it.
        residuals: Of each size that was measured: its units, and how far its middle mean is off, relative to the curve.
        interval: Of a slowdown, 95 % over rounds; one that is wide counts as none.
    """

    num_points: Annotated[int, Meta(ge=0)] = 0
    error: Annotated[float, Meta(ge=0)] | None = None
    residuals: Annotated[tuple[tuple[float, float], ...], Meta(max_length=10_000)] = ()
    interval: tuple[float, float] | None = None


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measured costs of one model on one kind of machine.

    Attributes:
        source: Where the numbers come from, for people.
        request: Everything a request costs besides its stages: gateway, template, tokens, bytes of pictures; units are
            pictures.
        media: One picture from its bytes to patches, on one thread; units are pixels.
        encode: One batch of pictures through the vision tower; units are visual tokens.
        visual_tokens: Not seconds: the visual tokens of a picture; units are pixels. A simulation takes those of its
            traffic, a gateway that starts from the file (`routing.costs`) these. None: not measured.
        prefill: The prompts in one step; units are tokens.
        prefill_quadratic_s: Seconds for each squared token of a prompt.
        encode_quadratic_s: Seconds for each squared visual token of a picture.
        after_prompt: What an engine does when a prompt's first token is on its way, before it goes on: keeping the
            prompt for others that begin alike; units are tokens of the prompt.
        stall_s: How long the generations of a worker stand still for each request that comes to it, besides its prompt:
            one interpreter reads and plans requests and begins steps.
        sharing: What work takes of a host's cores, for fleets on one host; None: not measured.
        step: One decode step; units are running generations.
        context_s: Seconds of a decode step for each token of context, over all running generations.
        transfer: Embeddings of one call from encoder to consumer, and the call; units are visual tokens.
        kv_transfer: A prompt's keys and values from prefill to decode; units are tokens.
        interference: Of what shares a device or a process; None: not measured.
        encoder_factor: Time of an encoder apart, relative to `encode`: 2 is half as fast.
        max_encode_s: Of a batch of pictures, by what pictures took lately; `max_encode_tokens` bounds it in any case.
            One picture may be larger than both.
        encode_parts: A batch beside steps is computed in so many parts, between which a text's prompt may be, as
            measured; 1 where the tower cannot pause.
        tower_in_step: An engine with all stages encodes pictures within the step that computes their prompt, as vLLM's
            does; else it takes turns, as Chiasm's does.
        media_threads: Pictures prepared at once in one worker.
        text_waits_for_media: Whether requests without pictures go through the media threads' queue too.
        kv_tokens: Tokens of context that one engine holds; 0 is no limit. A generation waits until its whole context
            has room.
        prefix_cache_tokens: Tokens of prompts that an engine keeps for others that begin alike; 0 is no limit.
        embedding_cache_tokens: Visual tokens that a worker keeps of pictures; 0 is no limit.
        timeout_s: From when on a request that failed is not tried again.
        prefill_ahead: Whether a prompt is computed as far as its pictures are there, while the others are made.
        evidence: By stage or kind of interference, where it was measured.
    """

    source: str = ""
    request: Cost = Cost()
    media: Cost = Cost()
    encode: Cost = Cost()
    prefill: Cost = Cost()
    prefill_quadratic_s: Seconds = 0.0
    encode_quadratic_s: Seconds = 0.0
    visual_tokens: Cost | None = None
    after_prompt: Cost = Cost()
    stall_s: Seconds = 0.0
    step: Cost = Cost()
    context_s: Seconds = 0.0
    transfer: Cost = Cost()
    kv_transfer: Cost = Cost()
    encoder_factor: Annotated[float, Meta(gt=0, le=1e3)] = 1.0
    interference: Interference | None = None
    sharing: Sharing | None = None
    media_threads: Count = 2
    text_waits_for_media: bool = False
    max_running: Count = 16
    max_step_tokens: Annotated[int, Meta(ge=1)] = 512
    max_media_step_s: Annotated[float, Meta(gt=0)] = 0.005
    max_encode_tokens: Annotated[int, Meta(ge=1)] = 1024
    max_encode_s: Annotated[float, Meta(gt=0)] = 0.05
    encode_parts: Count = 1
    tower_in_step: bool = False
    kv_tokens: Annotated[int, Meta(ge=0)] = 0
    prefix_cache_tokens: Annotated[int, Meta(ge=0)] = 0
    embedding_cache_tokens: Annotated[int, Meta(ge=0)] = 0
    prefill_ahead: bool = False
    evidence: dict[str, Evidence] = {}
    timeout_s: Annotated[float, Meta(gt=0, le=1e9)] = 120.0

    @property
    def knows_encoders_beside(self) -> bool:
        """Whether it says how an engine and encoders on its device slow each other down.

        A profile of a server without encoders apart has nothing of it; a file without evidence is taken at its word.
        """
        known = self.interference
        return known is not None and (
            not self.evidence or any(name in self.evidence or getattr(known, name) for name in _BESIDE)
        )

    @property
    def knows_pictures(self) -> bool:
        """Whether it says what pictures cost: the profile of a server that takes none, or does not tell, does not.

        A file without evidence is taken at its word.
        """
        return not self.evidence or "encode" in self.evidence or self.encode != Cost() or self.media != Cost()

    def prefill_s(self, num_tokens: int, num_prompts: int = 1) -> float:
        """Seconds for prompts of so many tokens in all, computed without anything beside them."""
        per_prompt = num_tokens / max(num_prompts, 1)
        return self.prefill.at(num_tokens) + self.prefill_quadratic_s * per_prompt * num_tokens

    def chunks_s(self, chunks: Iterable[tuple[int, int]]) -> float:
        """Seconds for parts of prompts in one step: the start of each in its prompt, and its tokens.

        A part looks back at all that is before it, so that the parts of a prompt together cost its square.
        """
        num_tokens = squares = 0
        for start, length in chunks:
            num_tokens += length
            squares += length * (2 * start + length)
        return self.prefill.at(num_tokens) + self.prefill_quadratic_s * squares

    def encode_s(self, pictures: Iterable[int]) -> float:
        """Seconds for a batch of pictures of so many visual tokens each."""
        num_tokens = squares = 0
        for length in pictures:
            num_tokens += length
            squares += length * length
        return self.encode.at(num_tokens) + self.encode_quadratic_s * squares

    def step_cores(self, num_running: int, seconds: float, num_context_tokens: float = 0.0) -> float:
        """Cores in use during a decode step that takes so long, its tokens' way to the client included."""
        if self.sharing is None or seconds <= 0:
            return 1.0
        return (self.sharing.step_cpu_s(num_running) + self.context_s * num_context_tokens) / seconds

    def step_s(self, num_running: int, num_context_tokens: float = 0.0) -> float:
        """Seconds for a decode step with nothing beside it."""
        return self.step.at(num_running) + self.context_s * num_context_tokens


def load_calibration(path: Path) -> Calibration:
    """Read a calibration file.

    Raises:
        InvalidSettingError: It cannot be read, or is not one.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Calibration)
    except OSError as error:
        raise InvalidSettingError(f"The calibration '{path}' cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise InvalidSettingError(
            f"'{path}' is no calibration: {error}", hint="Make one with `chiasm profile`."
        ) from error


def save_calibration(calibration: Calibration, path: Path) -> None:
    """Write a calibration file, for people too. Raises `InvalidSettingError`."""
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(calibration)) + b"\n")
    except OSError as error:
        raise InvalidSettingError(f"'{path}' cannot be written: {error.strerror}") from error
