"""Which devices each server gets, and whether the model can be split as asked."""

from collections.abc import Mapping, Sequence
from typing import Any

from chiasm.errors import EngineStartError, InvalidSettingError
from chiasm.launch.processes.specs import WorkerSpec
from chiasm.settings import VllmSettings


def num_devices(vllm: VllmSettings) -> int:
    """Devices that one server with a language model needs."""
    return vllm.tensor_parallel * vllm.pipeline_parallel * vllm.data_parallel


def is_encoder(spec: WorkerSpec) -> bool:
    """Whether a server holds no language model."""
    return spec.roles == ("encode",)


def check_split(vllm: VllmSettings, text: Mapping[str, Any]) -> None:
    """Compare the asked-for parallelism with the language model's shape.

    Raises:
        InvalidSettingError: It cannot be split that way.
        EngineStartError: The model's configuration does not say its shape.
    """
    heads, layers = _stated(text, "num_attention_heads"), _stated(text, "num_hidden_layers")
    kv_heads = _stated(text, "num_key_value_heads") if text.get("num_key_value_heads") else heads
    if not _fits_heads(vllm.tensor_parallel, heads, kv_heads):
        fitting = ", ".join(str(size) for size in range(1, heads + 1) if _fits_heads(size, heads, kv_heads))
        raise InvalidSettingError(
            f"vllm.tensor_parallel = {vllm.tensor_parallel} does not divide the model's {heads} attention heads and "
            f"{kv_heads} heads of keys and values",
            hint=f"Choose one of {fitting}",
        )
    if vllm.pipeline_parallel > layers:
        raise InvalidSettingError(
            f"vllm.pipeline_parallel = {vllm.pipeline_parallel}, but the model has only {layers} layers",
            hint=f"At most {layers}",
        )
    if vllm.expert_parallel and not any(name in text for name in ("num_experts", "n_routed_experts")):
        raise InvalidSettingError(
            "vllm.expert_parallel is set, but the model has no experts",
            hint="Leave it out, or split it by tensor_parallel",
        )


def _stated(text: Mapping[str, Any], name: str) -> int:
    value = text.get(name) if isinstance(text, Mapping) else None
    if not isinstance(value, int) or value < 1:
        raise EngineStartError(
            f"config.json does not say {name} of the language model", hint="Download the model again, or serve another"
        )
    return value


def check_cores(vllm: VllmSettings, num_cores: int) -> None:
    """Compare the asked-for parallelism with this machine's cores, of which each part of a server needs one on CPU.

    Raises:
        InvalidSettingError: They would wait for each other at every layer.
    """
    if num_devices(vllm) > num_cores:
        parts = ((name, getattr(vllm, name)) for name in ("tensor_parallel", "pipeline_parallel", "data_parallel"))
        asked = " x ".join(f"vllm.{name} {size}" for name, size in parts if size > 1)
        raise InvalidSettingError(
            f"{asked} makes {num_devices(vllm)} parts of a server, which compute at once; this machine has {num_cores} "
            "cores to use",
            hint=f"Make {num_cores} or fewer of it; on CPU several servers (--workers) do more than data_parallel",
        )


def assigned(specs: Sequence[WorkerSpec], vllm: VllmSettings, num_cuda: int) -> list[str]:
    """CUDA_VISIBLE_DEVICES of each server, in order; encoders take one device each.

    Raises:
        InvalidSettingError: There are too few devices, or `vllm.devices` does not fit the servers.
    """
    needed = [1 if is_encoder(spec) else num_devices(vllm) for spec in specs]
    if vllm.devices:
        return _checked(specs, vllm, needed, num_cuda)
    if sum(needed) > num_cuda:
        wanted = ", ".join(f"{spec.name} {count}" for spec, count in zip(specs, needed, strict=True))
        raise InvalidSettingError(
            f"The servers need {sum(needed)} CUDA devices ({wanted}), this machine has {num_cuda}",
            hint="Start fewer, lower vllm.tensor_parallel, or let them share by vllm.devices, as in ['0', '0']",
        )
    firsts = [sum(needed[:index]) for index in range(len(needed))]
    return [
        ",".join(str(first + offset) for offset in range(count)) for first, count in zip(firsts, needed, strict=True)
    ]


def among(numbers: str, seen: str) -> str:
    """What `CUDA_VISIBLE_DEVICES` must be for devices that are counted among those that a process may see by it.

    `seen` is its own; empty where it may see all.
    """
    names = [one.strip() for one in seen.split(",")] if seen else []
    return ",".join(names[int(number)] if int(number) < len(names) else number.strip() for number in numbers.split(","))


def _fits_heads(size: int, heads: int, kv_heads: int) -> bool:
    """Whether each of `size` devices gets as many heads; of keys and values it may be the same one as another gets."""
    return heads % size == 0 and (kv_heads % size == 0 or size % kv_heads == 0)


def _checked(specs: Sequence[WorkerSpec], vllm: VllmSettings, needed: Sequence[int], num_cuda: int) -> list[str]:
    if len(vllm.devices) != len(specs):
        names = ", ".join(spec.name for spec in specs)
        raise InvalidSettingError(
            f"vllm.devices has {len(vllm.devices)} entries for {len(specs)} servers",
            hint=f"One each, in this order: {names}",
        )
    for spec, named, count in zip(specs, vllm.devices, needed, strict=True):
        numbers = [part.strip() for part in named.split(",")]
        unknown = [number for number in numbers if not number.isdigit() or int(number) >= num_cuda]
        if unknown or len(numbers) != count:
            raise InvalidSettingError(
                f"vllm.devices names '{named}' for {spec.name}, which needs {count} of the devices 0 to {num_cuda - 1}",
                hint="Numbers as nvidia-smi has them, separated by commas",
            )
    return list(vllm.devices)
