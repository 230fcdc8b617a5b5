"""From settings to a store; each is imported only when it is asked for."""

import secrets
from pathlib import Path

from chiasm.errors import InvalidSettingError, MissingExtraError
from chiasm.settings import GatewaySettings
from chiasm.sharing.base import Store
from chiasm.sharing.local import LocalStore


def make_store(settings: GatewaySettings) -> Store:
    """Make the store that the settings name; nothing is connected yet, and the caller closes it.

    Raises:
        InvalidSettingError: Its address or password file is not usable.
        MissingExtraError: Its client is not installed.
    """
    name = f"gateway-{secrets.token_hex(6)}"
    if not settings.store:
        return LocalStore(name)
    try:
        from chiasm.sharing.redis import RedisStore
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "gateway.store needs redis-py", hint="Install it: pip install 'chiasm[redis]'"
        ) from error

    password = _password(settings)
    if settings.store_user and not password:
        raise InvalidSettingError(
            "gateway.store_user has no password", hint="Set gateway.store_password_file, or gateway.store_password"
        )
    return RedisStore(name, settings.store, password, user=settings.store_user)


def _password(settings: GatewaySettings) -> str:
    if settings.store_password_file is None:
        return settings.store_password
    try:
        return Path(settings.store_password_file).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettingError("gateway.store_password_file cannot be read") from error
