"""The section of clusters, on whose nodes gateway and workers are placed."""

from typing import Annotated, Literal

from msgspec import Meta

from chiasm.settings.base import Section

_Cpus = Annotated[float, Meta(gt=0, description="Cores that Ray sets aside for each of these.")]
_Gpus = Annotated[float, Meta(ge=0, description="GPUs that Ray sets aside for each of these.")]


class ClusterSettings(Section, frozen=True, kw_only=True):
    """Gateway and workers as actors of Ray."""

    address: Annotated[
        str,
        Meta(
            description="ray: the cluster that this machine is in, else one of its own on this machine; "
            "'ray://host:port': that one, which this machine must be in. Empty: no cluster."
        ),
    ] = ""
    gateways: Annotated[
        int,
        Meta(
            ge=1,
            le=16,
            description="How many gateways there are. Several need gateway.store; the ports of those after the first "
            "count up from gateway.port.",
        ),
    ] = 1
    gateway_cpus: _Cpus = 1.0
    encode_cpus: _Cpus = 1.0
    prefill_cpus: Annotated[
        float, Meta(gt=0, description="Cores that Ray sets aside for each worker that prefills, whatever else it does.")
    ] = 1.0
    decode_cpus: _Cpus = 1.0
    encode_gpus: _Gpus = 0.0
    prefill_gpus: _Gpus = 0.0
    decode_gpus: _Gpus = 0.0
    place_timeout_s: Annotated[
        float, Meta(gt=0, description="How long to wait for a node that has room, before a start has failed.")
    ] = 60.0
    scaling: Annotated[
        Literal["off", "dry_run", "act"],
        Meta(description="Whether encoders come and go by their queue; dry_run: it is only said what would be done."),
    ] = "dry_run"
    max_encoders: Annotated[
        int, Meta(ge=1, le=64, description="The most encoders there may be; the least is routing.encoders.")
    ] = 4
    encoder_queue_s: Annotated[
        float, Meta(gt=0, description="What a picture should wait for an encoder; scaling aims at it.")
    ] = 0.5
    scaling_period_s: Annotated[float, Meta(gt=0, description="Time between decisions of scaling.")] = 15.0
    calm_s: Annotated[
        float, Meta(gt=0, description="For how long fewer encoders must be enough before one goes; its cache goes too.")
    ] = 300.0
    encoder_hour_cost: Annotated[
        float, Meta(ge=0, description="What an encoder costs in an hour, in any currency.")
    ] = 0.0
    max_hour_cost: Annotated[
        float, Meta(ge=0, description="What encoders may cost in an hour, in the same; 0: no limit.")
    ] = 0.0
