"""The models: what each must do, and which one the settings mean."""

from importlib import import_module

from aalis_api_session_manager.errors import ConfigError
from aalis_host.models.base import Model, ModelError, ModelMessage, ModelReply, ToolSchema
from aalis_host.models.offline import OfflineModel
from aalis_host.settings import ModelSettings

__all__ = ["Model", "ModelError", "ModelMessage", "ModelReply", "ToolSchema", "open_model"]


def open_model(settings: ModelSettings) -> Model:
    """The model of the settings. Raises ConfigError when its package or its key is missing."""
    if settings.kind == "offline":
        return OfflineModel()
    try:
        module = import_module("aalis_host.models.openai")
    except ImportError as error:
        raise ConfigError(
            f"model.kind is 'openai', but the package {error.name!r} is missing: pip install 'aalis-host[openai]'"
        ) from error
    model: Model = module.OpenAIModel(settings)
    return model
