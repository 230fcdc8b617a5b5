"""The scheduler of a server that takes embeddings: `--scheduler-cls chiasm.engines.vllm.scheduler.CheckedScheduler`.

What was computed of an embedding that a worker could not load ends here, before the step's tokens are taken: requests
fail alone, and the prefix cache forgets its blocks. vLLM's own scheduler lets an EC connector do neither.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.request import RequestStatus

from chiasm.engines.vllm.losses import touches
from chiasm.engines.vllm.metadata import StepReport

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

logger = init_logger("vllm.chiasm.ec")


class CheckedScheduler:
    """Makes vLLM's scheduler for its settings, steps ahead or not, with losses looked for."""

    def __new__(cls, vllm_config: Any, **kwargs: Any) -> Any:
        """What vLLM calls in place of its own class."""
        is_ahead = vllm_config.scheduler_config.async_scheduling
        return (_CheckedAhead if is_ahead else _Checked)(vllm_config=vllm_config, **kwargs)


class _Looking:
    """In front of vLLM's class, whose methods these are."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._entered: dict[int, set[str]] = {}
        """By step whose answers are out, requests that it let in: they may have found blocks of the same step."""

    def schedule(self, *args: Any, **kwargs: Any) -> "SchedulerOutput":
        step: SchedulerOutput = super().schedule(*args, **kwargs)  # type: ignore[misc]
        entered = {one.req_id for one in step.scheduled_new_reqs} | step.scheduled_cached_reqs.resumed_req_ids
        if entered:
            self._entered[id(step)] = entered
        return step

    def update_from_output(
        self: Any, scheduler_output: "SchedulerOutput", model_runner_output: "ModelRunnerOutput"
    ) -> dict[int, EngineCoreOutputs]:
        report = getattr(model_runner_output.ec_connector_output, "ec_connector_worker_meta", None)
        lost = report.failed if isinstance(report, StepReport) else ()
        failed = self._end_those_of(lost) if lost else ()
        self._entered.pop(id(scheduler_output), None)
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        for request in failed:
            outputs.setdefault(request.client_index, EngineCoreOutputs()).outputs.append(_ending(request))
        return outputs

    def _end_those_of(self: Any, lost: Collection[str]) -> "list[Request]":
        """End requests that were computed of what is lost, or may have been; let nobody else find their blocks.

        Whose blocks they are is not looked for: requests that were aborted meanwhile have left theirs behind.
        """
        entered = set().union(*self._entered.values())
        touched = [
            request_id
            for request_id, request in self.requests.items()
            if touches(request, lost, is_new=request_id in entered)
        ]
        for pool in {id(one.block_pool): one.block_pool for one in _managers(self)}.values():
            pool.evict_blocks({block.block_id for block in pool.blocks})
        self.ec_connector.requests_ended(touched)
        failed: list[Request] = self.finish_requests(touched, RequestStatus.FINISHED_ERROR)
        logger.warning("The prefix cache was emptied, since an embedding could not be loaded")
        return failed


def _managers(scheduler: Any) -> Any:
    return scheduler.kv_cache_manager.coordinator.single_type_managers


def _ending(request: "Request") -> EngineCoreOutput:
    return EngineCoreOutput(
        request_id=request.request_id,
        new_token_ids=[],
        finish_reason=request.get_finished_reason(),
        events=request.take_events(),
        trace_headers=request.trace_headers,
    )


class _Checked(_Looking, Scheduler):  # type: ignore[misc]
    pass


class _CheckedAhead(_Looking, AsyncScheduler):  # type: ignore[misc]
    pass
