"""`can_take`: the one rule for taking another session's things, and the settings behind it.

Rules: TAKE-2 to TAKE-8, FIELD-1.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, get_args

from attrs import evolve, frozen

from aalis_api_session_manager.host import PlatformAdapter, Provided
from aalis_api_session_manager.kinds import IsOwner, SessionLookup, is_unfiled, root_session_of
from aalis_api_session_manager.model import Identity, SessionInfo
from aalis_api_session_manager.service import TAKE_UNKNOWN, TakeVerdict
from aalis_api_session_manager.take import one_to_one_with
from aalis_api_session_manager.text import TextRef
from aalis_plugin_session_manager.config import Profile, SessionManagerConfig, TakeScope
from aalis_plugin_session_manager.texts import TAKE_REFUSED

__all__ = ["Access", "TakeSettings"]

log = logging.getLogger(__name__)

_ALLOWED = TakeVerdict(True)
_UNKNOWN = TakeVerdict(False, TAKE_UNKNOWN)
_SCOPES: tuple[str, ...] = get_args(TakeScope)
_NOTHING: Mapping[str, Any] = {}
_SWITCHES = ("takeCrossAccount", "takeOtherGroups", "takeOtherPrivates")


@frozen(kw_only=True)
class TakeSettings:
    """The effective values for one session."""

    takeScope: str
    takeCrossAccount: bool
    takeOtherGroups: bool
    takeOtherPrivates: bool


def _stored(metadata: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The values of this plugin in a session's or a place's metadata: under `settings.session-manager`."""
    if not metadata:
        return _NOTHING
    settings = metadata.get("settings")
    own = settings.get("session-manager") if isinstance(settings, Mapping) else None
    return own if isinstance(own, Mapping) else _NOTHING


def _platform(root: SessionInfo) -> str | None:
    return root.origin_platform or root.created_from


@cache
def _refusal(needed: tuple[tuple[str, str], ...]) -> TakeVerdict:
    """The verdict that names each (rule, setting) that would have to change. Rule: TAKE-7."""
    rules = dict.fromkeys(rule for rule, _ in needed)
    params = {"settings": ", ".join(setting for _, setting in needed), "rules": ", ".join(rules)}
    return TakeVerdict(False, TextRef(TAKE_REFUSED, params))


class Access:
    """Decides on records alone; who is an owner and what adapters declare is asked at each call."""

    def __init__(
        self,
        config: SessionManagerConfig,
        lookup: SessionLookup,
        place_metadata: Callable[[SessionInfo], Mapping[str, Any] | None],
        is_owner: IsOwner,
        adapters: Callable[[], Sequence[Provided[PlatformAdapter]]],
    ) -> None:
        self._config = config
        self._lookup = lookup
        self._place_metadata = place_metadata
        self._is_owner = is_owner
        self._adapters = adapters
        self._from_configuration: dict[tuple[str | None, str | None], TakeSettings] = {}

    def can_take(self, current_id: str, target_id: str, principal: Identity | None) -> TakeVerdict:
        """Rules: TAKE-2 to TAKE-5, in this order. Never raises."""
        if current_id == target_id:
            return _ALLOWED
        try:
            return self._decide(current_id, target_id, principal if principal and principal.user_id else None)
        except Exception:
            log.exception("session %r: what it may take from %r can't be told", current_id, target_id)
            return _UNKNOWN

    def _decide(self, current_id: str, target_id: str, principal: Identity | None) -> TakeVerdict:
        current, target = self._known_root(current_id), self._known_root(target_id)
        if current is None or target is None:
            return _UNKNOWN
        if current is target:
            return _ALLOWED
        settings = self.settings_of(current_id, current)
        same_platform = _platform(current) is not None and _platform(current) == _platform(target)
        needed: list[tuple[str, str]] = []
        if settings.takeScope == "current" or (settings.takeScope == "platform" and not same_platform):
            needed.append(("TAKE-4", "takeScope = platform or all" if same_platform else "takeScope = all"))
        if same_platform and self._accounts_differ(current, target) and not settings.takeCrossAccount:
            needed.append(("TAKE-5", "takeCrossAccount = true"))
        if target.origin_chat is not None and target.origin_chat.multi_party:
            if not settings.takeOtherGroups:
                needed.append(("TAKE-5", "takeOtherGroups = true"))
        elif not settings.takeOtherPrivates and not self._own_private(target, principal):
            needed.append(("TAKE-5", "takeOtherPrivates = true"))
        return _refusal(tuple(needed)) if needed else _ALLOWED

    def _known_root(self, session_id: str) -> SessionInfo | None:
        """The root that it can be told where it comes from. Rule: TAKE-3."""
        root = root_session_of(session_id, self._lookup)
        if root is None or is_unfiled(root) or (root.origin_platform is not None and root.origin_chat is None):
            return None
        return root

    @staticmethod
    def _accounts_differ(current: SessionInfo, target: SessionInfo) -> bool:
        own = current.origin_chat.self_id if current.origin_chat else None
        other = target.origin_chat.self_id if target.origin_chat else None
        return own is not None and other is not None and own != other

    def _own_private(self, target: SessionInfo, principal: Identity | None) -> bool:
        if principal is None:
            return False
        if target.origin_platform is None or target.origin_chat is None:
            return self._is_owner(principal.platform, principal.user_id)
        window_type = target.origin_chat.type
        declared = any(
            adapter.instance.session_types.get(window_type) is False
            for adapter in self._adapters()
            if adapter.instance.platform == target.origin_platform
        )
        return one_to_one_with(target, principal, declared, self._is_owner)

    def settings_of(self, session_id: str, root: SessionInfo | None) -> TakeSettings:
        """The effective values, nearest first; a child's own can only narrow its root's. Rule: FIELD-1.

        `root` None: a broken chain, which has neither root nor place.
        """
        if root is None:
            return self._configured(None, None)
        window_type = root.origin_chat.type if root.origin_chat else None
        settings = self._configured(_platform(root), window_type)
        if not is_unfiled(root):
            settings = _overridden(settings, _stored(self._place_metadata(root)))
        settings = _overridden(settings, _stored(root.metadata))
        session = self._lookup(session_id)
        if session is not None and session is not root:
            settings = _narrowed(settings, _stored(session.metadata))
        return settings

    def _configured(self, platform: str | None, window_type: str | None) -> TakeSettings:
        """The values of the configuration, with the profiles of the platform and its window type on top."""
        known = self._from_configuration.get((platform, window_type))
        if known is None:
            known = TakeSettings(**_set_in(self._config))
            profile = self._config.profiles.get(platform or "")
            if profile is not None:
                known = evolve(known, **_set_in(profile))
                if window_type is not None and window_type in profile.types:
                    known = evolve(known, **_set_in(profile.types[window_type]))
            self._from_configuration[platform, window_type] = known
        return known


def _set_in(source: SessionManagerConfig | Profile) -> dict[str, Any]:
    values = {
        "takeScope": source.take_scope,
        "takeCrossAccount": source.take_cross_account,
        "takeOtherGroups": source.take_other_groups,
        "takeOtherPrivates": source.take_other_privates,
    }
    return {key: value for key, value in values.items() if value is not None}


def _usable(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The values among what is stored that have the right type."""
    found = {key: stored[key] for key in _SWITCHES if isinstance(stored.get(key), bool)}
    if stored.get("takeScope") in _SCOPES:
        found["takeScope"] = stored["takeScope"]
    return found


def _overridden(settings: TakeSettings, stored: Mapping[str, Any]) -> TakeSettings:
    return evolve(settings, **_usable(stored)) if stored else settings


def _narrowed(settings: TakeSettings, stored: Mapping[str, Any]) -> TakeSettings:
    own = _usable(stored)
    narrow: dict[str, Any] = {key: own[key] and getattr(settings, key) for key in _SWITCHES if key in own}
    if "takeScope" in own:
        narrow["takeScope"] = min(own["takeScope"], settings.takeScope, key=_SCOPES.index)
    return evolve(settings, **narrow) if narrow else settings
