"""A fleet of vLLM servers: started here, or found where they run."""

import asyncio
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import chiasm
from chiasm.adapters.files import preloaded
from chiasm.engines.vllm.ec.engine_folder import OwnedFolder, engine_folder
from chiasm.errors import EngineStartError, InvalidSettingError, UnsupportedModelError
from chiasm.launch.members import Connect
from chiasm.launch.model import model_directory, preparer_of, served_name
from chiasm.launch.processes.base import Process, Spawn
from chiasm.launch.processes.specs import (
    WHOLE,
    WorkerSpec,
    crowding_of,
    niceness_of,
    settings_of_one,
    specs_of,
)
from chiasm.launch.vllm.cache_events import events_of_listed, events_of_started, require_listener, wants_events
from chiasm.launch.vllm.devices import among, assigned, check_cores, check_split, is_encoder, num_devices
from chiasm.launch.vllm.flags import Place, arguments_of, environment_of, hands_embeddings_over, registers_kv
from chiasm.launch.vllm.installed import InstalledVllm, installed_vllm, interpreter
from chiasm.launch.vllm.ports import lasting_port
from chiasm.launch.vllm.process import Command, VllmProcess
from chiasm.launch.vllm.scratch import Scratch, environment_in
from chiasm.launch.vllm.workers_file import ListedWorker, read_workers
from chiasm.media.decoding import PictureDecoder
from chiasm.media.prepare.base import ImagePreparer
from chiasm.media.spool import Spool
from chiasm.protocol.adapters import AdapterLoad
from chiasm.protocol.worker import Role, Worker
from chiasm.routing.vllm import ServedModel, VllmWorker
from chiasm.routing.vllm.adapters import AdapterCopies
from chiasm.routing.vllm.model import config_of, special_tokens_of
from chiasm.routing.vllm.versions.registry import version_for
from chiasm.routing.vllm.videos import VideoFrames
from chiasm.routing.vllm.worker import VllmOptions
from chiasm.settings import RoutingSettings, Settings
from chiasm.settings.process import inherited_environment

if TYPE_CHECKING:
    from chiasm.routing.vllm.cache_events import EventsAddress

PLUGIN = "chiasm.engines.vllm.plugin:register"


class VllmCrew:
    """Implements `chiasm.launch.crew.Crew`.

    Servers that are started here listen on Unix sockets in a folder of this user's, under a key of their own; their
    embeddings go through a folder in memory that goes with the crew, or, after a crew that was killed, with the next;
    so does what they leave behind (`chiasm.launch.vllm.scratch`).
    """

    def __init__(self, settings: Settings, specs: Sequence[WorkerSpec] | None = None) -> None:
        """Look at the settings, the model and the installed vLLM; nothing is started.

        Without `specs`, the servers are those of the topology. One with an address listens there.

        Raises:
            MissingExtraError: There is no vLLM to start, or nobody to listen to cache events that must be.
            EngineStartError: Its version is unknown, or the model directory cannot be read.
            InvalidSettingError: Parallelism, devices or the workers' file do not fit.
        """
        self.model = served_model(settings)
        self.preparer, self.takes_images = self.model.preparer, self.model.takes_images
        self._settings = settings
        self._by_name = {one.name: one for one in _listed(settings)}
        self.listed: Sequence[tuple[str | None, str]] = [(one.name, one.url) for one in self._by_name.values()]
        self.shares_host = not self.listed
        self.start_timeout_s = settings.vllm.start_timeout_s
        if specs is None:
            self.specs: Sequence[WorkerSpec] = [] if self.listed else vllm_specs(settings.routing)
        else:
            self.specs = specs
        is_ours = not self.listed and specs is None  # nobody else speaks to the servers, so that nobody needs the token
        self._token = settings.routing.worker_token or (secrets.token_urlsafe(24) if is_ours else "")
        self._spool: Spool | None = None
        self._videos: VideoFrames | None = None
        self._embeddings: OwnedFolder | None = None
        self._scratch: Scratch | None = None
        self._adapters: AdapterCopies | None = None
        self._events: Mapping[str, EventsAddress | None] = {}  # by server, of those that are started
        if any(one.kv_events for one in self._by_name.values()):
            require_listener("kv_events of the workers' file", "leave it out")
        self._kv_ports: dict[str, int] = {}  # by server, of those that keep keys and values without saying so
        self._check_kv()
        if self.specs:
            self._prepare()
        self.crowding = self._crowding()

    @property
    def connect(self) -> Connect:
        """See `Crew`. Each data-parallel rank is a worker of its own."""
        return self._connect

    def spawner(self, folder: Path, spool: Spool | None) -> Spawn:
        """See `Crew`."""
        settings = settings_of_one(self._settings, max(1, len(self.specs)))
        self._spool = spool
        spool_folder = None if spool is None else spool.folder
        self._embeddings = OwnedFolder(engine_folder("", f"crew/{secrets.token_hex(8)}"))
        self._scratch = scratch = Scratch()
        inside = _importable(folder)
        self._adapters, first = self._copied_adapters(folder)
        self._events = {one.name: events_of_started(one, settings.vllm, folder) for one in self.specs}

        def spawn(spec: WorkerSpec) -> Process:
            assert self._embeddings is not None, "made above"
            place = self.place(spec.address or f"unix:{folder / spec.name}.sock", spool_folder, self._embeddings.path)
            port = self._kv_ports.get(spec.name, place.kv_port)
            place = place._replace(adapters=first, cache_events=self._events[spec.name], kv_port=port)
            environment = inherited_environment() | environment_of(spec, settings, place)
            environment |= {"PYTHONPATH": str(inside)} | ({"VLLM_API_KEY": self._token} if self._token else {})
            if self._installed.device == "cuda":
                seen = environment.get("CUDA_VISIBLE_DEVICES", "")
                environment["CUDA_VISIBLE_DEVICES"] = among(self._devices[spec.name], seen)
            scratch_folder = scratch.renewed(spec.name)
            command = Command(
                arguments=tuple(arguments_of(spec, settings, place)),
                environment=environment_in(scratch_folder, environment),
                scratch=scratch_folder,
                address=place.address,
                start_timeout_s=settings.vllm.start_timeout_s,
                stop_timeout_s=settings.vllm.stop_timeout_s,
                niceness=niceness_of(spec, settings),
            )
            return VllmProcess(spec.name, command)

        return spawn

    def place(self, address: str, spool: Path | None, embeddings: Path) -> Place:
        """Where a server finds and keeps things."""
        return Place(
            python=interpreter(self._settings.vllm.python),
            directory=model_directory(self._settings.engine.model),
            served_name=self.model.name,
            address=address,
            spool=spool,
            embeddings=embeddings,
            device=self._device(),
            takes_images=self.model.takes_images,
            takes_videos=self.model.takes_videos,
            needs_tower=self.model.has_deepstack,
            kv_port=lasting_port(self._settings.transfer.host),
        )

    def _copied_adapters(self, folder: Path) -> tuple[AdapterCopies | None, list[tuple[str, str]]]:
        """Where servers find adapters, and those to start with. Raises `AdapterError`."""
        settings = self._settings.adapters
        if not (settings.roots or settings.preload):
            return None, []
        directory = model_directory(self._settings.engine.model)
        names = {self.model.name, directory.name, directory.resolve().name, *settings.base_names}
        copies = AdapterCopies(folder / "adapters", self.model.config, names, settings)
        infos = [copies.place(AdapterLoad(name=name, directory=path)) for name, path in preloaded(settings)]
        revisions = dict.fromkeys(info.ref.revision for info in infos)
        return copies, [(revision, str(copies.path(revision))) for revision in revisions]

    def close(self) -> None:
        """See `Crew`: embeddings that nobody took go."""
        if self._videos is not None:
            self._videos.close()
        if self._embeddings is not None:
            self._embeddings.close()
        if self._scratch is not None:
            self._scratch.close()

    def _prepare(self) -> None:
        vllm = self._settings.vllm
        self._installed: InstalledVllm = installed_vllm(vllm.python)
        version_for(self._installed.version, vllm.assume_version)
        wants_events(vllm.kv_events)
        check_split(vllm, self.model.text)
        self._devices: dict[str, str] = {}
        if self._device() == "cuda":
            named = assigned(self.specs, vllm, self._installed.num_cuda)
            self._devices = dict(zip((spec.name for spec in self.specs), named, strict=True))
        else:
            check_cores(vllm, len(os.sched_getaffinity(0)))
        registering = [spec.name for spec in self.specs if registers_kv(spec.roles, self._settings)]
        if registering and self._device() == "cpu":
            raise InvalidSettingError(
                "vllm.kv_connector = 'mooncake' does not run on CPU in vLLM 0.32", hint="Use 'nixl', or CUDA devices"
            )
        self._kv_ports = {name: lasting_port(self._settings.transfer.host) for name in registering}

    def _check_kv(self) -> None:
        """Raises `InvalidSettingError` where keys and values could not be found by those that are to fetch them."""
        registered = [one.name for one in self._by_name.values() if one.kv_bootstrap]
        if registered and self._settings.vllm.kv_connector != "mooncake":
            raise InvalidSettingError(
                f"'{registered[0]}' has kv_bootstrap, where Mooncake's keys and values are found, and "
                f"vllm.kv_connector is '{self._settings.vllm.kv_connector}'",
                hint="Set vllm.kv_connector = 'mooncake', or leave kv_bootstrap out",
            )
        unknown = [
            one.name
            for one in self._by_name.values()
            if registers_kv(one.roles, self._settings) and not one.kv_bootstrap
        ]
        unknown += [spec.name for spec in self.specs if spec.address and registers_kv(spec.roles, self._settings)]
        if unknown:
            raise InvalidSettingError(
                f"Where '{unknown[0]}' registers its keys and values with Mooncake is not known",
                hint="Start it by vLLM's own command, with VLLM_MOONCAKE_BOOTSTRAP_PORT, and give its entry of the "
                "workers' file kv_bootstrap = \"http://host:port\"; or use vllm.kv_connector = 'nixl'",
            )

    def _crowding(self) -> float:
        if not self.specs or self._device() != "cpu":
            return 0.0
        vllm, parts = self._settings.vllm, list[int]()
        for spec in self.specs:  # each data-parallel rank is a worker
            parts += [1] if is_encoder(spec) else [num_devices(vllm) // vllm.data_parallel] * vllm.data_parallel
        return crowding_of(self._settings, parts)

    def _device(self) -> str:
        wanted = self._settings.vllm.device
        if wanted == "cuda" and not self._installed.num_cuda:
            raise EngineStartError(
                "vllm.device is 'cuda', but the installed vLLM sees no device",
                hint="Look at `nvidia-smi`, or use 'cpu'",
            )
        return self._installed.device if wanted == "auto" else wanted

    async def _connect(self, name: str | None, address: str) -> Sequence[tuple[str, Worker]]:
        assert name is not None, "workers of vLLM do not know their names"
        listed = self._by_name.get(name)
        spec = next((one for one in self.specs if one.name == name), None)
        roles = listed.roles if listed is not None else spec.roles if spec is not None else WHOLE
        ranks = self._num_ranks(listed, spec)
        hands_over = hands_embeddings_over(roles, self._settings, takes_images=self.model.takes_images)
        videos = self._frames_of_videos() if listed is None or listed.videos else None
        workers: list[tuple[str, Worker]] = []
        turn = asyncio.Lock()
        try:
            for rank in range(ranks):
                called = name if rank == 0 else f"{name}.{rank}"
                options = VllmOptions(
                    name=called,
                    roles=roles,
                    device="elsewhere" if listed is not None else self._device(),
                    token=self._token or None,
                    assume_version=self._settings.vllm.assume_version,
                    spool=None if self._spool is None else self._spool.folder,
                    videos=videos,
                    max_running=self._settings.vllm.max_running,
                    ttl_s=self._settings.transfer.ttl_s,
                    data_parallel_rank=rank if ranks > 1 else None,
                    adapters=None if listed is not None else self._adapters,
                    loads_adapters=bool(self._settings.adapters.roots),
                    server=name if ranks > 1 else "",
                    ec_connector=self._settings.vllm.ec_connector if hands_over else "",
                    turn=turn,
                    cache_events=self._events_of(name, listed, rank),
                    kv_register=self._kv_register_of(name, listed, roles),
                )
                workers.append((called, await VllmWorker.connect(address, self.model, options)))
        except BaseException:
            for _, worker in workers:
                await worker.aclose()
            raise
        return workers

    def _frames_of_videos(self) -> VideoFrames | None:
        """Who makes them, for all servers; None for a model without videos. On the event loop."""
        if self._videos is None and self.model.takes_videos and self.model.preparer is not None:
            decoder = PictureDecoder(self._settings.media)
            self._videos = VideoFrames(decoder, self.model.preparer, self._spool)
        return self._videos

    def _events_of(self, name: str, listed: ListedWorker | None, rank: int) -> "EventsAddress | None":
        if listed is not None:
            return events_of_listed(listed, rank)
        first = self._events.get(name)
        return first.of_rank(rank) if first is not None else None

    def _kv_register_of(self, name: str, listed: ListedWorker | None, roles: Sequence[Role]) -> str:
        if not registers_kv(roles, self._settings):
            return ""
        return (
            f"http://{self._settings.transfer.host}:{self._kv_ports[name]}" if listed is None else listed.kv_bootstrap
        )

    def _num_ranks(self, listed: ListedWorker | None, spec: WorkerSpec | None) -> int:
        if listed is not None:
            return listed.data_parallel
        return 1 if spec is None or is_encoder(spec) else self._settings.vllm.data_parallel


class VllmRosterCrew(VllmCrew):
    """Nothing of its own: servers on other hosts, of the topology's names and roles, whose addresses a roster has."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, specs=())
        videos = self.model.takes_videos
        ranks = settings.vllm.data_parallel
        self._by_name = {
            spec.name: ListedWorker(url="", roles=spec.roles, name=spec.name, data_parallel=ranks, videos=videos)
            for spec in vllm_specs(settings.routing)
        }
        self.shares_host = False
        self._check_kv()


def vllm_specs(routing: RoutingSettings) -> list[WorkerSpec]:
    """The servers of a topology: the embedded engine's, but 'auto' has encoders beside whole servers."""
    if routing.topology == "local":
        return [WorkerSpec(name="worker-0", roles=WHOLE)]
    if routing.topology == "auto":
        encoders = [WorkerSpec(name=f"encode-{number}", roles=("encode",)) for number in range(routing.encoders)]
        return encoders + [WorkerSpec(name=f"worker-{number}", roles=WHOLE) for number in range(routing.workers)]
    return specs_of(routing)


def served_model(settings: Settings) -> ServedModel:
    """What the control plane knows of the model.

    Raises:
        EngineStartError: Its directory cannot be read.
        UnsupportedModelError: It is to be split, and how it sizes pictures is not known.
    """
    from chiasm.engines.embedded.revision import model_revision

    directory = model_directory(settings.engine.model)
    try:
        preparer = preparer_of(directory)
    except UnsupportedModelError:
        if settings.routing.topology not in ("local", "agg"):
            raise  # grids of pictures could not be checked
        preparer = None
    return ServedModel(
        name=served_name(settings.engine),
        revision=model_revision(directory, settings.engine.dtype),
        dtype=settings.engine.dtype,
        config=config_of(directory),
        special_tokens=special_tokens_of(directory),
        refuses_special_tokens=settings.vllm.special_tokens == "refuse",
        preparer=preparer,
        max_picture_embeddings=_room_for(preparer, settings.vllm.picture_hint),
    )


def _room_for(preparer: ImagePreparer | None, hint: Sequence[int]) -> int | None:
    """Embeddings of the largest picture that servers are told of. Raises `InvalidSettingError` for what is no size."""
    if not hint or preparer is None:
        return None
    if len(hint) != 2 or min(hint) < 1:
        raise InvalidSettingError("vllm.picture_hint is a width and a height in pixels", hint="As in [1024, 1024]")
    return preparer.plan(hint[0], hint[1]).num_embeddings


def _listed(settings: Settings) -> Sequence[ListedWorker]:
    return read_workers(settings.vllm.workers_file) if settings.vllm.workers_file else ()


def _importable(folder: Path) -> Path:
    """A folder from which servers import this Chiasm, and nothing else of our own environment.

    It says what an installation says: which plugin of vLLM's is ours.
    """
    inside = folder / "site"
    inside.mkdir(exist_ok=True)
    link = inside / "chiasm"
    if not link.is_symlink():
        link.symlink_to(Path(chiasm.__file__).parent, target_is_directory=True)
    metadata = inside / f"chiasm-{chiasm.__version__}.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: chiasm\nVersion: {chiasm.__version__}\n")
    (metadata / "entry_points.txt").write_text(f"[vllm.general_plugins]\nchiasm = {PLUGIN}\n")
    return inside
