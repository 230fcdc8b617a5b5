"""What an operator can set: one frozen section per room, and where each value came from.

A room's constructor takes its own section, never the whole `Settings`. Environment variables are read only here.
"""

from chiasm.settings.sections import (
    EngineSettings,
    GatewaySettings,
    MediaSettings,
    ObservabilitySettings,
    RoutingSettings,
    Settings,
    TransferSettings,
)
from chiasm.settings.sources import ResolvedSettings, resolve

__all__ = [
    "EngineSettings",
    "GatewaySettings",
    "MediaSettings",
    "ObservabilitySettings",
    "ResolvedSettings",
    "RoutingSettings",
    "Settings",
    "TransferSettings",
    "resolve",
]
