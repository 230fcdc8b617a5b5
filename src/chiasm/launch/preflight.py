"""What can be known to be wrong before a model is loaded: nobody waits a minute for a typing error in a file's name."""

from chiasm.adapters.files import check_folders
from chiasm.errors import InvalidSettingError
from chiasm.launch.processes.specs import specs_of
from chiasm.observability.logs import LOGGER
from chiasm.settings import GatewaySettings, Settings
from chiasm.tenancy.audit import AuditLog
from chiasm.tenancy.tenants import Tenants


def check_gateway(settings: GatewaySettings) -> None:
    """Read the keys file and open the audit file. Raises `InvalidSettingError`."""
    tenants = Tenants(settings)
    if settings.keys_file and not (tenants.file.keys or settings.api_keys):
        LOGGER.warning("The keys file has no key: nobody is let in until 'chiasm keys new' adds one to it")
    AuditLog(settings.audit_file).close()


def check_backend(settings: Settings) -> None:
    """Look whether adapters listed for workers of this host are there, and whether somebody reads the files named.

    Raises:
        InvalidSettingError: The workers' file is for vLLM, and another engine was asked for; or there is no fleet to
            route over with the costs of a file.
        AdapterError: A folder cannot be read.
    """
    if settings.vllm.workers_file and settings.engine.kind != "vllm":
        raise InvalidSettingError(
            f"Workers of a file are servers of vLLM, and the engine is {settings.engine.kind}",
            hint="Add --engine vllm, or give --workers a number",
        )
    if settings.routing.costs and settings.routing.topology == "local":
        raise InvalidSettingError(
            "Costs are for choosing among workers, and routing.topology is local",
            hint="Add --topology auto, or another with workers, or leave routing.costs out",
        )
    if _has_language_models(settings):
        check_folders(settings.adapters)


def _has_language_models(settings: Settings) -> bool:
    """Whether this host is to run what reads adapters; those of workers elsewhere need not lie here."""
    if settings.routing.topology == "local":
        return True
    specs = () if settings.vllm.workers_file else specs_of(settings.routing)
    return any(set(spec.roles) & {"prefill", "decode"} for spec in specs)
