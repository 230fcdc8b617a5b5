"""From settings to a transport; each is imported only when it is asked for."""

from chiasm.connectors.base import Transport
from chiasm.settings import TransferSettings


def make_transport(settings: TransferSettings) -> Transport:
    """Start the transport that the settings name; the caller closes it.

    Raises:
        InvalidSettingError: It cannot be used here.
    """
    if settings.connector == "shm":
        from chiasm.connectors.shm.transport import ShmTransport

        return ShmTransport(max_bytes=settings.max_bytes)
    if settings.connector == "tcp":
        from chiasm.connectors.tcp.transport import TcpTransport

        return TcpTransport(host=settings.host, max_bytes=settings.max_bytes, timeout_s=settings.timeout_s)
    from chiasm.connectors.file import FileTransport

    return FileTransport(directory=settings.directory, max_bytes=settings.max_bytes)
