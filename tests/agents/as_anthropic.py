"""The scripted model as Anthropic's API: messages, streamed or whole."""

import json

from script import next_step, tokens


def messages(body):
    """`POST /v1/messages`: the answer, or an iterator over the pieces of its stream."""
    blocks = [block for message in body["messages"] if isinstance(message["content"], list) for block in message["content"]]
    results = sum(block.get("type") == "tool_result" for block in blocks)
    tools = [(tool["name"], tool.get("input_schema", {})) for tool in body.get("tools", [])]
    step = next_step(body["messages"], tools, results)
    sent, said = tokens(step, results)
    content = [{"type": "text", "text": step.text}]
    if step.tool:
        content.append({"type": "tool_use", "id": f"toolu_{results}", "name": step.tool, "input": step.arguments})
    usage = {"input_tokens": sent, "output_tokens": said, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    answer = {
        "id": f"msg_{results}", "type": "message", "role": "assistant", "model": body["model"], "content": content,
        "stop_reason": "tool_use" if step.tool else "end_turn", "stop_sequence": None, "usage": usage,
    }
    return (stream(answer) if body.get("stream") else answer), usage


def stream(answer):
    usage = answer["usage"]
    # The number of output tokens is known only at the end of the stream.
    yield event("message_start", message={**answer, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}})
    for index, block in enumerate(answer["content"]):
        if block["type"] == "text":
            yield event("content_block_start", index=index, content_block={"type": "text", "text": ""})
            deltas = [{"type": "text_delta", "text": word + " "} for word in block["text"].split(" ")]
        else:
            yield event("content_block_start", index=index, content_block={**block, "input": {}})
            deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
        for delta in deltas:
            yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)
    end = {"stop_reason": answer["stop_reason"], "stop_sequence": None}
    yield event("message_delta", delta=end, usage={"output_tokens": usage["output_tokens"]})
    yield event("message_stop")


def event(kind, **data):
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()
