"""What a person reads of the command line, beside its help."""

from typing import Any, Final

from aalis_api_session_manager.text import TextRef, add_texts

__all__ = ["text"]

_PREFIX: Final = "cli."
_TEXTS: Final = {
    "no-session": {"en": "no session {id}", "zh_CN": "没有会话 {id}"},
    "kept": {
        "en": "{error}; the change to session {id} was kept and tried to the end, `aalis sessions show {id}` shows"
        " whether it was stored",
        "zh_CN": "{error};对会话 {id} 的更改一直保留并重试到最后,`aalis sessions show {id}` 可查看是否已保存",
    },
    "no-workspace": {"en": "no workspace {id}", "zh_CN": "没有工作区 {id}"},
    "no-service": {
        "en": "no plugin provides the service {service}; `aalis plugins` says which failed",
        "zh_CN": "没有插件提供服务 {service};`aalis plugins` 会说明哪个失败了",
    },
    "bad-time": {
        "en": "{name}: {value} is no time; give a span such as 90m, 12h, 7d, 2w, or 2026-11-30, 2026-11-30T09:30",
        "zh_CN": "{name}:{value} 不是时间;请用时长如 90m、12h、7d、2w,或 2026-11-30、2026-11-30T09:30",
    },
    "bad-identity": {
        "en": "{value} is no account; give platform:user, such as onebot:10001",
        "zh_CN": "{value} 不是账号;请用 平台:用户,例如 onebot:10001",
    },
    "no-tool": {"en": "there is no tool {name}{hint}", "zh_CN": "没有工具 {name}{hint}"},
    "no-home": {
        "en": "{path}: {reason}; say with --db where the database is to be",
        "zh_CN": "{path}:{reason};请用 --db 指定数据库的位置",
    },
    "unreadable": {"en": "{path}: {reason}", "zh_CN": "{path}:{reason}"},
    # listings
    "head.session": {"en": "session", "zh_CN": "会话"},
    "head.label": {"en": "label", "zh_CN": "名称"},
    "head.kind": {"en": "kind", "zh_CN": "种类"},
    "head.place": {"en": "place", "zh_CN": "场所"},
    "head.status": {"en": "status", "zh_CN": "状态"},
    "head.last-turn": {"en": "last turn", "zh_CN": "最近一轮"},
    "head.tokens": {"en": "tokens", "zh_CN": "token"},
    "head.age": {"en": "age", "zh_CN": "存在"},
    "head.name": {"en": "name", "zh_CN": "名称"},
    "head.version": {"en": "version", "zh_CN": "版本"},
    "head.provides": {"en": "provides", "zh_CN": "提供"},
    "head.state": {"en": "state", "zh_CN": "状态"},
    "head.group": {"en": "group", "zh_CN": "组"},
    "head.description": {"en": "description", "zh_CN": "说明"},
    "head.setting": {"en": "setting", "zh_CN": "设置项"},
    "head.value": {"en": "value", "zh_CN": "值"},
    "head.default": {"en": "default", "zh_CN": "默认值"},
    "head.source": {"en": "source", "zh_CN": "来源"},
    "kind.owner": {"en": "owner", "zh_CN": "owner"},
    "kind.room": {"en": "room", "zh_CN": "房间"},
    "kind.task": {"en": "task", "zh_CN": "任务"},
    "status.active": {"en": "active", "zh_CN": "进行中"},
    "status.waiting": {"en": "waiting", "zh_CN": "等待中"},
    "status.completed": {"en": "completed", "zh_CN": "已完成"},
    "status.error": {"en": "error", "zh_CN": "出错"},
    "status.archived": {"en": "archived", "zh_CN": "已归档"},
    "outcome.replied": {"en": "replied", "zh_CN": "已回复"},
    "outcome.silent": {"en": "silent", "zh_CN": "未回复"},
    "outcome.aborted": {"en": "aborted", "zh_CN": "被停止"},
    "outcome.error": {"en": "error", "zh_CN": "出错"},
    "nothing-listed": {"en": "nothing to show", "zh_CN": "没有可显示的内容"},
    "label.title": {"en": "title", "zh_CN": "标题"},
    "label.parent": {"en": "parent", "zh_CN": "父会话"},
    "label.children": {"en": "children", "zh_CN": "子会话"},
    "label.window": {"en": "window", "zh_CN": "聊天窗口"},
    "label.created": {"en": "created", "zh_CN": "创建"},
    "label.updated": {"en": "updated", "zh_CN": "更新"},
    "label.from": {"en": "created from", "zh_CN": "创建来源"},
    "label.directory": {"en": "directory", "zh_CN": "目录"},
    "label.input": {"en": "instruction", "zh_CN": "任务指令"},
    "label.result": {"en": "result", "zh_CN": "结果"},
    "label.metadata": {"en": "metadata", "zh_CN": "元数据"},
    "label.instance": {"en": "served by", "zh_CN": "接管者"},
    "label.last-reply": {"en": "last reply", "zh_CN": "最近回复"},
    "window": {"en": "{type} {target} ({audience})", "zh_CN": "{type} {target}({audience})"},
    "audience.many": {"en": "several people", "zh_CN": "多方"},
    "audience.one": {"en": "one to one", "zh_CN": "一对一"},
    "when": {"en": "{at:datetime}", "zh_CN": "{at:datetime}"},
    "tokens": {"en": "{input} in, {output} out", "zh_CN": "输入 {input},输出 {output}"},
    "history.older": {
        "en": "{count} older: {command}",
        "zh_CN": "更早还有 {count} 条:{command}",
    },
    "history.newer": {
        "en": "{count} newer: {command}",
        "zh_CN": "更新还有 {count} 条:{command}",
    },
    "more-than": {"en": "more than {count}", "zh_CN": "超过 {count}"},
    # changes
    "titled": {"en": "{id} is now titled {title}", "zh_CN": "{id} 的标题现为 {title}"},
    "deleted": {"en": "deleted {id}, with {count} below it", "zh_CN": "已删除 {id} 及其下 {count} 个"},
    "delete-sure": {
        "en": "Delete {label} ({id}), what is below it ({count}) and their messages?",
        "zh_CN": "要删除 {label}({id})、其下 {count} 个会话及全部消息吗?",
    },
    "delete-sure-alone": {
        "en": "Delete {label} ({id}) and its messages?",
        "zh_CN": "要删除 {label}({id})及其全部消息吗?",
    },
    # can-take
    "take.allowed": {"en": "allowed ({rules})", "zh_CN": "允许({rules})"},
    "take.refused": {"en": "refused ({rules}): {reason}", "zh_CN": "拒绝({rules}):{reason}"},
    # check
    "check.damaged": {"en": "it isn't readable JSON", "zh_CN": "不是可读的 JSON"},
    "check.other-id": {"en": "its id isn't its key; it isn't loaded", "zh_CN": "id 与键不一致,不会加载"},
    "check.field": {"en": "{field}: {reason}; the field is dropped", "zh_CN": "{field}:{reason};该字段被丢弃"},
    "check.no-parent": {"en": "its parent {parent} doesn't exist", "zh_CN": "父会话 {parent} 不存在"},
    "check.cycle": {"en": "its parents form a ring: {ring}", "zh_CN": "父会话成环:{ring}"},
    "check.children": {
        "en": "a child is listed twice; the list is made from the children's parents",
        "zh_CN": "子会话重复列出;实际列表由子会话的父会话得出",
    },
    "check.fine": {"en": "{count} records, nothing wrong", "zh_CN": "{count} 条记录,没有问题"},
    "check.found": {"en": "{count} records, {problems} problems", "zh_CN": "{count} 条记录,{problems} 个问题"},
    # plugins, configuration
    "plugin.runs": {"en": "runs", "zh_CN": "运行中"},
    "plugin.failed": {"en": "failed: {reason}", "zh_CN": "失败:{reason}"},
    "config.right": {"en": "the configuration is right ({file})", "zh_CN": "配置无误({file})"},
    "config.no-file": {"en": "no file, defaults only", "zh_CN": "没有文件,全部为默认值"},
    "config.unknown-plugin": {
        "en": "plugins.{name}: no such plugin is installed{hint}",
        "zh_CN": "plugins.{name}:没有安装这个插件{hint}",
    },
    "config.plugin": {"en": "plugins.{name}: {reason}", "zh_CN": "plugins.{name}:{reason}"},
    # chat
    "chat.opened": {
        "en": "session {id}; come back with: {command}",
        "zh_CN": "会话 {id};之后可用 {command} 继续",
    },
    "chat.leave": {"en": "Ctrl-D leaves.", "zh_CN": "Ctrl-D 离开。"},
    "chat.failed": {"en": "The turn failed.", "zh_CN": "这一轮出错了。"},
    "chat.stopped": {"en": "the turn was stopped", "zh_CN": "这一轮被停止"},
    # replay
    "replay.reading": {"en": "reading the times", "zh_CN": "读取时间"},
    "replay.replaying": {"en": "replaying", "zh_CN": "回放"},
    "replay.bad-line": {"en": "line {number}: {reason}", "zh_CN": "第 {number} 行:{reason}"},
    "replay.long-line": {"en": "longer than {limit} bytes", "zh_CN": "超过 {limit} 字节"},
    "replay.more-bad-lines": {"en": "and {count} more bad lines", "zh_CN": "另有 {count} 个坏行"},
    "replay.not-stored": {"en": "line {number} wasn't stored: {reason}", "zh_CN": "第 {number} 行没有存下:{reason}"},
    "replay.no-event": {
        "en": "{path} holds no OneBot v11 event",
        "zh_CN": "{path} 中没有 OneBot v11 事件",
    },
    "replay.rooms": {"en": "rooms", "zh_CN": "房间"},
    "replay.messages": {"en": "messages", "zh_CN": "消息"},
    "replay.repeated": {"en": "repeated, skipped", "zh_CN": "重复,已跳过"},
    "replay.other": {"en": "other events, skipped", "zh_CN": "其他事件,已跳过"},
    "replay.bad": {"en": "bad lines", "zh_CN": "坏行"},
    "replay.failed": {"en": "not stored", "zh_CN": "未存下"},
    "replay.turns": {"en": "turns", "zh_CN": "回合"},
    "replay.replies": {"en": "replies", "zh_CN": "回复"},
    "replay.errors": {"en": "turns that failed", "zh_CN": "出错的回合"},
    "replay.input": {"en": "input tokens", "zh_CN": "输入 token"},
    "replay.output": {"en": "output tokens", "zh_CN": "输出 token"},
    "replay.seconds": {"en": "seconds", "zh_CN": "秒"},
    "replay.rate": {"en": "messages a second", "zh_CN": "每秒消息"},
    # delegate
    "delegate.waiting": {"en": "waiting for {target}", "zh_CN": "等待 {target}"},
    "delegate.itself": {
        "en": "{id} can't delegate to itself; give another session as TO",
        "zh_CN": "{id} 不能委派给自己;请用另一个会话作为 TO",
    },
    "delegate.here": {
        "en": "no answer within {seconds} s: the work was done in this process and is stopped now; see: {command}",
        "zh_CN": "{seconds} 秒内没有答复:任务在本进程中执行,现已停止;请看:{command}",
    },
    "delegate.elsewhere": {
        "en": "no answer within {seconds} s: the host that serves {target} goes on with it; see: {command}",
        "zh_CN": "{seconds} 秒内没有答复:接管 {target} 的主机会继续执行;请看:{command}",
    },
    # import
    "import.importing": {"en": "importing", "zh_CN": "导入"},
    "import.sessions": {"en": "sessions found", "zh_CN": "找到会话"},
    "import.sessions-new": {"en": "sessions new here", "zh_CN": "新增会话"},
    "import.sessions-there": {"en": "sessions here already", "zh_CN": "已有会话"},
    "import.sessions-skipped": {"en": "sessions unreadable", "zh_CN": "不可读的会话"},
    "import.messages": {"en": "messages found", "zh_CN": "找到消息"},
    "import.messages-new": {"en": "messages new here", "zh_CN": "新增消息"},
    "import.messages-there": {"en": "messages here already", "zh_CN": "已有消息"},
    "import.messages-skipped": {"en": "messages unreadable", "zh_CN": "不可读的消息"},
    "import.bad-session": {"en": "session {id} isn't brought in: {reason}", "zh_CN": "会话 {id} 未导入:{reason}"},
    "import.bad-message": {"en": "message {id} isn't brought in: {reason}", "zh_CN": "消息 {id} 未导入:{reason}"},
    "import.dry": {"en": "a dry run: nothing was written", "zh_CN": "试运行:未写入任何内容"},
    "import.not-theirs": {
        "en": "{path} is no database of the TypeScript Aalis: {reason}",
        "zh_CN": "{path} 不是 TypeScript 版 Aalis 的数据库:{reason}",
    },
}
add_texts({_PREFIX + key: languages for key, languages in _TEXTS.items()})


def text(key: str, **params: Any) -> TextRef:
    """One of this package's texts; a parameter that is neither text nor a number stands in it as `str` has it."""
    plain = {name: value if isinstance(value, str | int) else str(value) for name, value in params.items()}
    return TextRef(_PREFIX + key, plain)
