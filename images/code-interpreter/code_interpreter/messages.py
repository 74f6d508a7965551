"""From messages of a Jupyter kernel to the events that E2B's clients read."""

from datetime import datetime, timezone

# Kinds of data that have a field of their own.
FIELDS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "e2b/data": "data",
    "e2b/chart": "chart",
}


def event(message):
    """What a message says to a client, or None."""
    kind, content = message["msg_type"], message["content"]
    if kind == "stream" and content["name"] in ("stdout", "stderr"):
        return {"type": content["name"], "text": content["text"], "timestamp": _date(message)}
    if kind in ("display_data", "execute_result"):
        return result(content["data"], kind == "execute_result")
    if kind == "execute_input":
        return {"type": "number_of_executions", "execution_count": content["execution_count"]}
    if kind == "error":
        return error(content)
    return None


def stream(name, text):
    """Text that a cell wrote to one of its streams, now."""
    return {"type": name, "text": text, "timestamp": datetime.now(timezone.utc).isoformat()}


def result(bundle, is_main):
    """A value in all its forms."""
    event = {"type": "result", "is_main_result": is_main}
    extra = {}
    for kind, value in bundle.items():
        if isinstance(value, list) and all(isinstance(part, str) for part in value):
            value = "".join(value)
        if kind in FIELDS:
            event[FIELDS[kind]] = value
        else:
            extra[kind] = value
    text = event.get("text")
    # A text as the value of a cell is shown without its quotes.
    if isinstance(text, str) and len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        event["text"] = text[1:-1]
    if extra:
        event["extra"] = extra
    return event


def error(content):
    """How a cell failed."""
    return {
        "type": "error",
        "name": content.get("ename", ""),
        "value": content.get("evalue", ""),
        "traceback": "\n".join(content.get("traceback", [])),
    }


def _date(message):
    date = message["header"].get("date")
    return date.isoformat() if hasattr(date, "isoformat") else date
