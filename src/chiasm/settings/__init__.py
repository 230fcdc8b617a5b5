"""What an operator can set: one frozen section per room, and where each value came from.

A room's constructor takes its own section, never the whole `Settings`. Environment variables are read only here.
"""

from chiasm.settings.adapters import AdapterSettings
from chiasm.settings.cluster import ClusterSettings
from chiasm.settings.media import MediaSettings
from chiasm.settings.sections import (
    EngineSettings,
    GatewaySettings,
    ObservabilitySettings,
    PoolingSettings,
    RoutingSettings,
    Settings,
    TransferSettings,
)
from chiasm.settings.sources import ResolvedSettings, resolve
from chiasm.settings.vllm import VllmSettings

__all__ = [
    "AdapterSettings",
    "ClusterSettings",
    "EngineSettings",
    "GatewaySettings",
    "MediaSettings",
    "ObservabilitySettings",
    "PoolingSettings",
    "ResolvedSettings",
    "RoutingSettings",
    "Settings",
    "TransferSettings",
    "VllmSettings",
    "resolve",
]
