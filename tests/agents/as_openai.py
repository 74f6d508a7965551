"""The scripted model as OpenAI's API: chat completions and responses, streamed or whole."""

import json

from script import next_step, tokens


def chat(body):
    """`POST /v1/chat/completions`: the answer, or an iterator over the pieces of its stream."""
    messages = body["messages"]
    tools = [(tool["function"]["name"], tool["function"].get("parameters", {})) for tool in body.get("tools", [])]
    results = sum(message["role"] == "tool" for message in messages)
    step = next_step(messages, tools, results)
    sent, said = tokens(step, results)
    usage = {"prompt_tokens": sent, "completion_tokens": said, "total_tokens": sent + said}
    head = {"id": f"chatcmpl-{results}", "created": 1, "model": body["model"]}
    calls = []
    if step.tool:
        call = {"name": step.tool, "arguments": json.dumps(step.arguments)}
        calls = [{"id": f"call_{results}", "type": "function", "function": call}]
    reason = "tool_calls" if calls else "stop"
    if not body.get("stream"):
        message = {"role": "assistant", "content": step.text, **({"tool_calls": calls} if calls else {})}
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return {**head, "object": "chat.completion", "choices": [choice], "usage": usage}, usage
    return chat_stream(head, step, calls, reason, usage, body), usage


def chat_stream(head, step, calls, reason, usage, body):
    def piece(delta, finish=None):
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return sse({**head, "object": "chat.completion.chunk", "choices": [choice]})

    yield piece({"role": "assistant", "content": ""})
    for word in step.text.split(" "):
        yield piece({"content": word + " "})
    for index, call in enumerate(calls):
        yield piece({"tool_calls": [{"index": index, **call}]})
    yield piece({}, reason)
    if (body.get("stream_options") or {}).get("include_usage"):
        yield sse({**head, "object": "chat.completion.chunk", "choices": [], "usage": usage})
    yield b"data: [DONE]\n\n"


def responses(body):
    """`POST /v1/responses`."""
    items = body["input"] if isinstance(body["input"], list) else []
    tools = [(tool["name"], tool.get("parameters", {})) for tool in body.get("tools", []) if tool.get("type") == "function"]
    results = sum(item.get("type", "").endswith("call_output") for item in items)
    step = next_step(items, tools, results)
    sent, said = tokens(step, results)
    usage = {
        "input_tokens": sent, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": said,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": sent + said,
    }
    content = [{"type": "output_text", "text": step.text, "annotations": []}]
    output = [{"type": "message", "id": f"msg_{results}", "role": "assistant", "status": "completed", "content": content}]
    if step.tool:
        output.append({
            "type": "function_call", "id": f"fc_{results}", "call_id": f"call_{results}", "status": "completed",
            "name": step.tool, "arguments": json.dumps(step.arguments),
        })
    answer = {
        "id": f"resp_{results}", "object": "response", "created_at": 1, "model": body["model"], "status": "completed",
        "output": output, "usage": usage,
    }
    return (responses_stream(answer) if body.get("stream") else answer), usage


def responses_stream(answer):
    number = 0

    def event(kind, **data):
        nonlocal number
        number += 1
        return f"event: {kind}\n".encode() + sse({"type": kind, "sequence_number": number, **data})

    begun = {**answer, "status": "in_progress", "output": [], "usage": None}
    yield event("response.created", response=begun)
    for index, item in enumerate(answer["output"]):
        at = {"output_index": index, "item_id": item["id"]}
        if item["type"] == "message":
            part = item["content"][0]
            yield event("response.output_item.added", output_index=index, item={**item, "status": "in_progress", "content": []})
            yield event("response.content_part.added", **at, content_index=0, part={**part, "text": ""})
            for word in part["text"].split(" "):
                yield event("response.output_text.delta", **at, content_index=0, delta=word + " ")
            yield event("response.output_text.done", **at, content_index=0, text=part["text"])
            yield event("response.content_part.done", **at, content_index=0, part=part)
        else:
            yield event("response.output_item.added", output_index=index, item={**item, "status": "in_progress", "arguments": ""})
            yield event("response.function_call_arguments.delta", **at, delta=item["arguments"])
            yield event("response.function_call_arguments.done", **at, arguments=item["arguments"])
        yield event("response.output_item.done", output_index=index, item=item)
    yield event("response.completed", response=answer)


def sse(data):
    return f"data: {json.dumps(data)}\n\n".encode()
