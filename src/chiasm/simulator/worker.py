"""A worker that takes time: media threads, an engine, and what routing knows of it."""

from collections.abc import Callable, Sequence
from functools import partial

import simpy

from chiasm.protocol.worker import WorkerInfo
from chiasm.simulator.calibration import Calibration
from chiasm.simulator.cluster import WorkerSpec
from chiasm.simulator.device import Busy, Device
from chiasm.simulator.engine import Engine, Generation
from chiasm.simulator.media import MediaThreads
from chiasm.simulator.traffic import Picture, Request


class SimulatedWorker:
    """One of a fleet's workers. `info` is what a real one would say of itself."""

    def __init__(self, env: simpy.Environment, spec: WorkerSpec, calibration: Calibration, device: Device) -> None:
        self._env = env
        self._costs = calibration
        self._media = MediaThreads(env, calibration.media_threads, self._begin)
        self._device = device
        self.busy = Busy()
        self.engine = Engine(
            env,
            calibration,
            device,
            self.busy,
            is_apart="prefill" not in spec.roles and "decode" not in spec.roles,
            kv_tokens=spec.kv_tokens or calibration.kv_tokens,
        )
        self.info = WorkerInfo(
            name=spec.name,
            model="simulated",
            family="simulated",
            roles=spec.roles,
            dtype="float32",
            device=spec.device,
            max_model_tokens=2**31,
            takes_images="encode" in spec.roles,
            model_revision="simulated",
            processor_revision="simulated",
            started_at_unix_s=0.0,
        )

    def encode(self, pictures: Sequence[Picture], owner: str) -> simpy.Event:
        """From bytes to embeddings: prepared side by side, encoded in batches with whatever else waits."""
        done, left = self._env.event(), len(pictures)

        def on_encoded() -> None:
            nonlocal left
            left -= 1
            if not left:
                done.succeed()

        for picture in pictures:
            self._media.prepare(picture, partial(self._prepared, picture, owner, on_encoded))
        return done

    def pass_media_queue(self) -> simpy.Event:
        """Wait for a media thread and do nothing there, as text does where both share a front."""
        done = self._env.event()
        self._media.prepare(None, done.succeed)
        return done

    def generate(self, request: Request, num_output_tokens: int, num_known_tokens: int) -> Generation:
        """Queue a request's prompt; `num_output_tokens` of 1 end with its first token."""
        generation = Generation(
            self._env,
            request.prompt_tokens,
            num_output_tokens,
            num_known_tokens,
            has_media=bool(request.pictures),
        )
        self.engine.submit(generation)
        return generation

    def _begin(self, picture: Picture) -> float:
        seconds = self._costs.media.at(picture.num_pixels) * self._device.media_factor()
        self.engine.num_media += 1
        self.busy.add("media", seconds)
        return seconds

    def _prepared(self, picture: Picture, owner: str, on_encoded: Callable[[], None]) -> None:
        self.engine.num_media -= 1
        self.engine.encode(owner, picture.num_tokens, on_encoded)
