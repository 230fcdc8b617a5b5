"""A worker that takes time: media threads, an engine, and what routing knows of it."""

from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import simpy

from chiasm.errors import EngineDeadError
from chiasm.protocol.worker import WorkerInfo
from chiasm.simulator.caches import TokenCache
from chiasm.simulator.calibration import Calibration
from chiasm.simulator.cluster import WorkerSpec
from chiasm.simulator.device import Busy, Device
from chiasm.simulator.engine import Engine
from chiasm.simulator.generation import Generation
from chiasm.simulator.host import Cores
from chiasm.simulator.media import MediaThreads
from chiasm.simulator.traffic import Picture, Request

OnPicture = Callable[[Picture], None]


class SimulatedWorker:
    """One of a fleet's workers. `info` is what a real one would say of itself.

    It lives until `die`, and again from `revive` on, with nothing of what it had.
    """

    def __init__(
        self, env: simpy.Environment, spec: WorkerSpec, calibration: Calibration, device: Device, cores: Cores
    ) -> None:
        self._env = env
        self._spec = spec
        self._costs = msgspec.structs.replace(
            calibration, encoder_factor=calibration.encoder_factor * spec.encoder_factor
        )
        self._device = device
        self._cores = cores
        self._encoding: dict[simpy.Event, None] = {}  # in order: what happens must not hang on addresses
        self.is_alive = True
        self.busy = Busy()
        self.info = WorkerInfo(
            name=spec.name,
            model="simulated",
            family="simulated",
            roles=spec.roles,
            dtype="float32",
            device=spec.device,
            max_model_tokens=2**31,
            takes_images="encode" in spec.roles,
            takes_late_embeddings=calibration.prefill_ahead and "prefill" in spec.roles,
            model_revision="simulated",
            processor_revision="simulated",
            started_at_unix_s=0.0,
        )
        self._begin_life()

    def die(self) -> None:
        """All work and all caches are gone; who waits for work sees `EngineDeadError`."""
        error = EngineDeadError(f"Worker '{self.info.name}' died")
        self.is_alive = False
        self._media.stop()
        for done in self._encoding:
            done.defused = True
            done.fail(error)
        self._encoding.clear()
        self.engine.stop(error)

    def revive(self) -> None:
        """Work again, with empty caches."""
        self.is_alive = True
        self._begin_life()

    def encode(self, pictures: Sequence[Picture], owner: str, on_each: OnPicture = lambda _: None) -> simpy.Event:
        """From bytes to embeddings: prepared side by side, encoded in batches with whatever else waits.

        `on_each` is called with each picture whose embedding is there. Raises `EngineDeadError`.
        """
        self._check()
        done, left = self._env.event(), len(pictures)
        self._encoding[done] = None

        def on_encoded(picture: Picture) -> None:
            nonlocal left
            left -= 1
            self.embeddings.keep(picture.identity, picture.num_tokens)
            on_each(picture)
            if not left:
                self._encoding.pop(done, None)
                done.succeed()

        for picture in pictures:
            self._media.prepare(picture, partial(self._prepared, picture, owner, partial(on_encoded, picture)))
        return done

    def pass_media_queue(self) -> simpy.Event:
        """Wait for a media thread and do nothing there, as text does where both share a front."""
        self._check()
        done = self._env.event()
        self._encoding[done] = None

        def on_thread() -> None:
            self._encoding.pop(done, None)
            done.succeed()

        self._media.prepare(None, on_thread)
        return done

    def generate(
        self, request: Request, num_output_tokens: int, num_known_tokens: int, num_missing_tokens: int = 0
    ) -> Generation:
        """Queue a request's prompt; `num_output_tokens` of 1 end with its first token. Raises `EngineDeadError`."""
        self._check()
        generation = Generation(
            self._env,
            request.prompt_tokens,
            num_output_tokens,
            num_known_tokens,
            has_media=bool(request.pictures),
            num_missing_tokens=num_missing_tokens,
        )
        self.engine.submit(generation)
        return generation

    def _begin_life(self) -> None:
        costs, roles = self._costs, self._spec.roles
        cores_each = costs.sharing.media if costs.sharing is not None else 1.0
        self._media = MediaThreads(self._cores, costs.media_threads, self._begin, self.busy, cores_each)
        self.prefixes = TokenCache(costs.prefix_cache_tokens)
        self.embeddings = TokenCache(costs.embedding_cache_tokens)
        self.engine = Engine(
            self._env,
            costs,
            self._device,
            self.busy,
            self._cores,
            is_apart="prefill" not in roles and "decode" not in roles,
            kv_tokens=self._spec.kv_tokens or costs.kv_tokens,
        )

    def _check(self) -> None:
        if not self.is_alive:
            raise EngineDeadError(f"Worker '{self.info.name}' is dead")

    def _begin(self, picture: Picture) -> float:
        self.engine.media_changed(1)
        return self._costs.media.at(picture.num_pixels) * self._device.media_factor()

    def _prepared(self, picture: Picture, owner: str, on_encoded: Callable[[], None]) -> None:
        self.engine.media_changed(-1)
        self.engine.encode(owner, picture.num_tokens, on_encoded)
