"""The checks of `chiasm doctor` for vLLM as the engine: versions, devices, media policy, a real hand-over."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from chiasm.cli.checks import ANSWER, Check, question, video_question
from chiasm.cli.printing import LoadingLine
from chiasm.errors import ChiasmError, HandleExpiredError, MissingExtraError, UnsupportedMediaError
from chiasm.settings import Settings

if TYPE_CHECKING:
    from chiasm.cli.client import ChatClient
    from chiasm.launch.vllm.crew import VllmCrew
    from chiasm.launch.vllm.installed import InstalledVllm

_LOOK = (
    "The log of the server that prefills says what did not fit, in a line with 'fails alone': all servers need the "
    "same model files, --dtype and transport"
)
_SHOWN_PACKAGES = ("torch", "transformers", "torchvision", "nixl", "mooncake")


def vllm_checks(settings: Settings) -> Iterator[Check]:
    """Yield findings as they are made, cheap ones first; servers are only started when nothing has failed before."""
    from chiasm.launch.vllm.crew import VllmCrew

    if not settings.vllm.workers_file:
        check, installed = _installed(settings)
        yield check
        if installed is None:
            return
        yield from _packages(installed, settings)
    try:
        crew = VllmCrew(settings)
    except ChiasmError as error:
        yield Check("workers", "fail", error.message, error.hint)
        return
    yield _workers(crew)
    if settings.routing.topology == "e-p-d" and settings.vllm.kv_connector == "mooncake":
        yield Check(
            "mooncake", "warn", "servers that prefill listen on every address of their hosts, and ask nobody for a key",
            "Let nobody but the other servers reach their ports, or use vllm.kv_connector = 'nixl'",
        )  # fmt: skip
    yield _media(settings)
    yield _cache_events(settings, crew)
    yield from _hand_over(settings, takes_videos=crew.model.takes_videos)


def _installed(settings: Settings) -> tuple[Check, "InstalledVllm | None"]:
    from chiasm.launch.vllm.installed import installed_vllm
    from chiasm.routing.vllm.versions.registry import version_for

    try:
        found = installed_vllm(settings.vllm.python)
        version_for(found.version, settings.vllm.assume_version)
    except ChiasmError as error:
        return Check("vllm", "fail", error.message, error.hint), None
    devices = f"{found.num_cuda} CUDA devices" if found.num_cuda else "CPU"
    detail = f"{found.distribution} {found.version} on {devices}, {settings.vllm.python or 'this environment'}"
    if settings.vllm.assume_version:
        fix = "Answers were only compared with the embedded engine's for the versions in docs/vllm.md"
        return Check("vllm", "warn", f"{detail}, taken for {settings.vllm.assume_version}", fix), found
    return Check("vllm", "ok", detail), found


def _packages(installed: "InstalledVllm", settings: Settings) -> Iterator[Check]:
    """What the servers need besides vLLM itself."""
    found = [f"{name} {installed.packages[name]}" for name in _SHOWN_PACKAGES if name in installed.packages]
    topology, vllm = settings.routing.topology, settings.vllm
    if topology in ("e-pd", "e-p-d", "auto") and vllm.ec_connector == "chiasm" and "msgspec" not in installed.packages:
        yield Check(
            "packages of vLLM", "fail", "Chiasm's connector needs its base dependencies inside vLLM's environment",
            "pip install --no-deps chiasm there, and what `pip check` then misses",
        )  # fmt: skip
    elif topology == "e-p-d" and vllm.kv_connector == "mooncake" and "mooncake" not in installed.packages:
        yield Check(
            "packages of vLLM", "fail", "Mooncake is missing, by which keys and values reach decode",
            "pip install mooncake-transfer-engine there; for CUDA 13 there is a distribution of its own",
        )  # fmt: skip
    elif topology == "e-p-d" and vllm.kv_connector == "nixl" and "nixl" not in installed.packages:
        yield Check(
            "packages of vLLM",
            "fail",
            "NIXL is missing, by which keys and values reach decode",
            "pip install nixl there",
        )
    else:
        yield Check("packages of vLLM", "ok", ", ".join(found))


def _workers(crew: "VllmCrew") -> Check:
    if crew.listed:
        return Check("workers", "ok", ", ".join(f"{name} runs already" for name, _ in crew.listed))
    roles = [f"{spec.name} ({', '.join(spec.roles)})" for spec in crew.specs]
    return Check("workers", "ok", f"{', '.join(roles)} of {crew.model.family}")


def _media(settings: Settings) -> Check:
    """Who may be fetched from. Servers themselves fetch nothing when Chiasm starts them."""
    media = settings.media
    hosts = ", ".join(media.allowed_domains) or "no host"
    if settings.vllm.workers_file:
        return Check(
            "media", "warn", f"the gateway fetches from {hosts}; what servers that run already may fetch is not known",
            "Start them with --allowed-media-domains none.invalid: the gateway fetches for them",
        )  # fmt: skip
    return Check("media", "ok", f"the gateway fetches from {hosts}, servers from nowhere")


def _cache_events(settings: Settings, crew: "VllmCrew") -> Check:
    """Whether servers say what their prefix caches evict."""
    from chiasm.launch.vllm.cache_events import how_to_hear, silent_servers

    if silent := silent_servers(settings.vllm, crew.specs):
        detail = f"{', '.join(silent)} will not say what is evicted: routing guesses"
        return Check("cache events", "warn", detail, how_to_hear(settings.vllm))
    return Check("cache events", "ok", "routing forgets what servers evict")


def _hand_over(settings: Settings, *, takes_videos: bool) -> Iterator[Check]:
    """Start everything and ask about a red circle: which way did it go, and what was the answer."""
    from chiasm.cli.client import ChatClient
    from chiasm.launch.local import background_server

    own = msgspec.structs.replace(settings.gateway, host="127.0.0.1", port=0, api_keys=())
    try:
        with LoadingLine() as progress:
            server_context = background_server(msgspec.structs.replace(settings, gateway=own), progress)
            with server_context as server:
                yield Check("start", "ok", f"{server.model} is served")
                chunks = _answered(ChatClient(server.address), question(takes_images=server.takes_images))
                yield _judged(chunks, is_packaged=not settings.engine.model, settings=settings)
                if takes_videos:
                    yield _video(ChatClient(server.address), settings)
    except ChiasmError as error:
        yield _failed(error)


def _failed(error: ChiasmError) -> Check:
    hint = _LOOK if error.code == HandleExpiredError.code else error.hint
    return Check("hand-over", "fail", error.message, hint)


def _answered(client: "ChatClient", body: dict[str, Any]) -> list[dict[str, Any]]:
    return list(client.stream(body | {"chiasm": {"receipt": True}}))


def _video(client: "ChatClient", settings: Settings) -> Check:
    """The same of a clip. Models and servers that take none as they are set up are only told of."""
    try:
        chunks = _answered(client, video_question())
    except (MissingExtraError, UnsupportedMediaError) as error:
        return Check("video", "warn", error.message, error.hint)
    except ChiasmError as error:
        return Check("video", "fail", error.message, error.hint)
    return _judged(chunks, is_packaged=not settings.engine.model, settings=settings, name="video")


def _judged(
    chunks: list[dict[str, Any]],
    *,
    is_packaged: bool,
    settings: Settings,
    name: Literal["hand-over", "video"] = "hand-over",
) -> Check:
    shown = "picture" if name == "hand-over" else "video"
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    receipt: dict[str, Any] = next((chunk["chiasm"]["receipt"] for chunk in chunks if "chiasm" in chunk), {})
    attempts = (receipt.get("route") or {}).get("attempts", [])
    way = ", ".join(f"{one['stage']} on {one['worker']}: {one['outcome']}" for one in attempts)
    is_split = settings.routing.topology in ("e-pd", "e-p-d")
    if is_split and [one["outcome"] for one in attempts if one["stage"] == "encode"] != ["ok"]:
        return Check(
            name, "fail", f"no encoder handed the {shown} over ({way or 'nothing was tried'})",
            "Look at the encoder's log: it needs an EC connector as producer, prefill the same one as consumer",
        )  # fmt: skip
    if is_packaged and ANSWER not in text.lower():
        return Check(
            name, "fail", f"asked for the colour of a red circle in a {shown}, the model said {text!r} ({way})",
            f"Embeddings or {shown}s arrive changed: compare with --set routing.topology=agg",
        )  # fmt: skip
    first_s = receipt.get("ttft_s") or 0.0
    return Check(name, "ok", f"{way}; first token after {first_s:.2f} s; answer {text!r}")
