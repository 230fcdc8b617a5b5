"""The connector class that vLLM loads by name: `--ec-transfer-config '{"ec_connector": "ChiasmECConnector", ...}'`.

vLLM makes one object for its scheduler and one in each worker, which may be in the scheduler's process; every call goes
to the side that is there. For what is checked where, see docs/vllm_connector.md.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorBase, ECConnectorRole
from vllm.distributed.parallel_state import get_pp_group, get_tp_group
from vllm.logger import init_logger
from vllm.platforms import current_platform

from chiasm.engines.vllm.ec.announcement import Expected
from chiasm.engines.vllm.ec.forget_mark import ForgetMark, mark_folder
from chiasm.engines.vllm.ec.options import EcOptions, read_options
from chiasm.engines.vllm.ec.revision import embedding_revision
from chiasm.engines.vllm.items import ItemReader
from chiasm.engines.vllm.metadata import StepOrders, StepReport
from chiasm.engines.vllm.metrics import EcPrometheus, EcStats
from chiasm.engines.vllm.scheduler_side import ConsumingScheduler, PublishingScheduler
from chiasm.engines.vllm.worker_side import LoadingWorker, PublishingWorker
from chiasm.errors import InvalidSettingError

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ECConnectorOutput
    from vllm.v1.request import Request

logger = init_logger("vllm.chiasm.ec")
SCHEDULER = "chiasm.engines.vllm.scheduler.CheckedScheduler"
_TOWER_NEEDED = ("qwen3_vl", "qwen3_vl_moe", "qwen3_omni_moe")  # vLLM 0.32.0


class ChiasmECConnector(ECConnectorBase):  # type: ignore[misc]
    """See `ECConnectorBase` for when vLLM calls what."""

    def __init__(self, vllm_config: "VllmConfig", role: ECConnectorRole) -> None:
        super().__init__(vllm_config=vllm_config, role=role)
        transfer = vllm_config.ec_transfer_config
        options = read_options(transfer.ec_connector_extra_config)
        engine = f"{transfer.engine_id}/{vllm_config.parallel_config.data_parallel_rank}"
        self._publishing: PublishingScheduler | None = None
        self._consuming: ConsumingScheduler | None = None
        self._publisher: PublishingWorker | None = None
        self._loader: LoadingWorker | None = None
        if role is ECConnectorRole.SCHEDULER:
            self._start_scheduler_side(vllm_config, options, engine)
        else:
            self._start_worker_side(vllm_config, options, engine)
        logger.info("ChiasmECConnector: %s, %s, %s", transfer.ec_role, role.name.lower(), options)

    def _start_scheduler_side(self, config: "VllmConfig", options: EcOptions, engine: str) -> None:
        items = ItemReader(config.model_config)
        if self.is_producer:
            self._publishing = PublishingScheduler(options, engine, items)
        if self.is_consumer:
            _check_consumer(config)
            self._consuming = ConsumingScheduler(options, engine, _expected(config, options), items)

    def _start_worker_side(self, config: "VllmConfig", options: EcOptions, engine: str) -> None:
        if self.is_producer and get_tp_group().rank_in_group == 0 and get_pp_group().is_first_rank:
            self._publisher = PublishingWorker(options, engine, _expected(config, options).revision)
        if self.is_consumer:
            self._loader = LoadingWorker(_device(), ForgetMark(mark_folder(options.directory, engine)))

    def shutdown(self) -> None:
        """Let go of what this side holds."""
        for side in (self._consuming, self._publisher, self._loader):
            if side is not None:
                side.close()

    # workers

    def start_save_caches(self, **kwargs: Any) -> None:
        """Offer again what is wanted and not encoded again."""
        if self._publisher is not None:
            self._publisher.renew(self._orders().wanted, kwargs["encoder_cache"])

    def save_caches(self, encoder_cache: dict[str, torch.Tensor], mm_hash: str, **kwargs: Any) -> None:
        """Offer what was encoded."""
        if self._publisher is not None:
            self._publisher.publish(mm_hash, encoder_cache[mm_hash])

    def start_load_caches(self, encoder_cache: dict[str, torch.Tensor], **kwargs: Any) -> None:
        """Load what the scheduler has checked."""
        if self._loader is not None:
            self._loader.load(self._orders(), encoder_cache)

    def build_connector_worker_meta(self) -> StepReport | None:
        """Report to the scheduler."""
        return self._loader.take_report() if self._loader is not None else None

    def forget(self) -> int:
        """Offer nothing more, have the scheduler forget; returns how much was on offer. Between steps of a worker."""
        if self._loader is not None:
            self._loader.forget()
        return self._publisher.forget() if self._publisher is not None else 0

    def is_forgetting(self) -> bool:
        """Whether the scheduler has not forgotten yet."""
        return self._loader is not None and self._loader.is_forgetting()

    # scheduler

    def ensure_cache_available(self, request: "Request", num_computed_tokens: int) -> bool:
        """Let a request into the next step, or have it wait."""
        if self._publishing is not None:
            self._publishing.begin(request)
        return self._consuming is None or self._consuming.is_ready(request, num_computed_tokens)

    def has_cache_item(self, identifier: str) -> bool:
        """Whether the request just let in takes the item from the store."""
        return self._consuming is not None and self._consuming.is_held(identifier)

    def update_state_after_alloc(self, request: "Request", index: int) -> None:
        """Load an item with the next step."""
        if self._consuming is not None:
            self._consuming.load(request, index)

    def update_state_after_free(self, request: "Request", index: int) -> None:
        """An item has been used."""
        if self._consuming is not None:
            self._consuming.freed(request, index)

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> StepOrders:
        """Orders for the workers' next step."""
        orders = StepOrders()
        is_executed = scheduler_output.total_num_scheduled_tokens > 0
        for side in (self._publishing, self._consuming):
            if side is not None:
                side.orders(orders, is_executed=is_executed)
        return orders

    def update_connector_output(self, connector_output: "ECConnectorOutput") -> None:
        """Take the workers' reports."""
        report = connector_output.ec_connector_worker_meta
        if self._consuming is not None and isinstance(report, StepReport):
            self._consuming.reported(report)

    def take_unavailable_requests(self) -> set[str]:
        """Requests that end with an error, alone."""
        return self._consuming.take_failed() if self._consuming is not None else set()

    def requests_ended(self, request_ids: Iterable[str]) -> None:
        """`CheckedScheduler` ends these, since an embedding of theirs could not be loaded."""
        if self._consuming is not None:
            self._consuming.ended(request_ids)

    def request_finished(self, request: "Request") -> tuple[bool, dict[str, Any] | None]:
        """Tell the response what was published; never delays freeing."""
        if self._consuming is not None:
            self._consuming.finished(request)
        return False, self._publishing.finished(request) if self._publishing is not None else None

    # metrics

    def get_ec_connector_stats(self) -> EcStats | None:
        """Counts of the scheduler's side, which knows the workers' as well."""
        stats = EcStats(data={})
        if self._publishing is not None:
            stats.aggregate(EcStats(data=self._publishing.counters.take()))
        if self._consuming is not None:
            stats.aggregate(EcStats(data=self._consuming.take_counts()))
        return None if stats.is_empty() else stats

    @classmethod
    def build_ec_connector_stats(cls, data: dict[str, Any] | None = None) -> EcStats:
        """Counts that came from the engine's process."""
        return EcStats(data=data or {})

    @classmethod
    def build_prom_metrics(cls, *args: Any) -> EcPrometheus:
        """Counters for `/metrics`."""
        return EcPrometheus(*args)

    def _orders(self) -> StepOrders:
        orders = self._get_connector_metadata()
        assert isinstance(orders, StepOrders), "vLLM hands back what build_connector_meta made"
        return orders


def _check_consumer(config: "VllmConfig") -> None:
    if config.scheduler_config.scheduler_cls != SCHEDULER:
        raise InvalidSettingError(
            "ChiasmECConnector: with this scheduler, answers could be computed of embeddings that were not loaded; "
            f"start consumers with --scheduler-cls {SCHEDULER}"
        )
    if config.parallel_config.nnodes > 1:
        raise InvalidSettingError(
            "ChiasmECConnector: a consumer's workers must be on its scheduler's host; use servers of one node"
        )
    multimodal = config.model_config.get_multimodal_config()
    has_tower = any(multimodal.get_limit_per_prompt(modality) for modality in ("image", "video"))
    if not has_tower and _deepstack_levels(config) and config.model_config.hf_config.model_type in _TOWER_NEEDED:
        raise InvalidSettingError(  # it would end at the first picture: the model forgets its deepstack levels
            "ChiasmECConnector: this vLLM cannot run a model with deepstack without its vision tower; "
            "start the consumer with an image limit above 0 (the tower is loaded, and not run)"
        )


def _vision_config(config: "VllmConfig") -> Any:
    model = config.model_config.hf_config
    return getattr(getattr(model, "thinker_config", model), "vision_config", None)


def _deepstack_levels(config: "VllmConfig") -> int:
    return len(getattr(_vision_config(config), "deepstack_visual_indexes", None) or ())


def _expected(config: "VllmConfig", options: EcOptions) -> Expected:
    model = config.model_config
    dtype = str(model.dtype).removeprefix("torch.")
    revision = options.model_revision or embedding_revision(Path(model.model), model.revision or "", dtype)
    width = options.width or model.get_inputs_embeds_size() * (1 + _deepstack_levels(config))
    merge_size = getattr(_vision_config(config), "spatial_merge_size", 1)
    return Expected(width=width, dtype=dtype, revision=revision, merge_size=merge_size)


def _device() -> torch.device:
    if current_platform.is_cuda_alike():
        return torch.device(current_platform.device_type, torch.accelerator.current_device_index())
    return torch.device(current_platform.device_type)
