"""The gateway counts the requests and tokens that sessions spend on models, and enforces their budgets."""

from concurrent.futures import ThreadPoolExecutor

from conftest import KNOWN, agent, api, atoll, is_done, requests, say, words
from script import ANSWER, PLAN

TASK = "The tests of this project fail. Mend it, and run them."
FIRST = {"openai": "python", "anthropic": "typescript"}


def used(asked):
    """The usage that the model reported for these requests, in the fields of the server."""
    names = [("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens")]
    told = {ours: sum(one["usage"].get(ours, one["usage"].get(theirs, 0)) for one in asked) for ours, theirs in names}
    return {"requests": len(asked), **told, "untold": 0}


def session(name, thread="main"):
    return api("GET", f"/v1/agents/{name}/sessions/{thread}")


def failed(told):
    return next(event["data"] for event in told if event["kind"] == "error")


def test_what_is_used_is_what_the_model_told():
    for vendor, recipe in FIRST.items():
        with agent(recipe, f"counts-{vendor}") as name:
            before = len(requests())
            assert is_done(say(name, TASK))
            asked = requests()[before:]
            assert len(asked) == len(PLAN) + 1 and all(one["stream"] for one in asked)
            assert session(name)["usage"] == used(asked)
            assert api("GET", f"/v1/agents/{name}")["usage"] == used(asked)
            # Each session has its own account, also when they work at the same time.
            before = len(requests())
            with ThreadPoolExecutor() as pool:
                both = list(pool.map(lambda thread: say(name, TASK, thread), ["a", "b"]))
            assert all(is_done(told) for told in both)
            all_asked = requests()[before:]
            a, b = session(name, "a")["usage"], session(name, "b")["usage"]
            assert {field: a[field] + b[field] for field in a} == used(all_asked)
            assert a["requests"] == b["requests"] == len(all_asked) // 2
            # The usage of a deleted session stays on the agent's account.
            whole = api("GET", f"/v1/agents/{name}")["usage"]
            assert whole == used(asked + all_asked)
            api("DELETE", f"/v1/agents/{name}/sessions/a")
            assert api("GET", f"/v1/agents/{name}")["usage"] == whole
            assert f" {whole['input_tokens'] + whole['output_tokens']} " in atoll("agent", "ls")
            # A request outside of any session counts for the agent, too: only a session has its session's credential.
            known = KNOWN[recipe]
            line = f'curl -sS https://{known.host}/v1/embeddings -H "Authorization: Bearer ${known.variable}" -d "{{}}"'
            atoll("exec", name, "--", "sh", "-c", line)
            assert api("GET", f"/v1/agents/{name}")["usage"]["requests"] == whole["requests"] + 1


def test_a_budget_of_requests_is_hard():
    with agent("python", "two-requests", "--budget-requests", "2") as name:
        before = len(requests())
        told = failed(say(name, TASK))
        assert told["code"] == "budget" and "2 of 2 requests" in told["text"], told
        assert session(name)["state"] == "failed"
        # The budget holds for the next message, and for another session.
        assert failed(say(name, "Go on."))["code"] == "budget"
        assert failed(say(name, TASK, "other"))["code"] == "budget"
        assert len(requests()) - before == 2
        api("DELETE", f"/v1/agents/{name}/sessions/main")
        assert failed(say(name, TASK, "other"))["code"] == "budget"
        assert len(requests()) - before == 2


def test_a_budget_of_tokens_of_each_session():
    with agent("typescript", "few-tokens", "--session-tokens", "2000") as name:
        told = say(name, TASK)
        assert failed(told)["code"] == "budget" and "of 2000 tokens" in failed(told)["text"], told
        # The gateway passed on the answer that went over the budget; it did not send the next request.
        assert session(name)["usage"]["requests"] == 2
        assert "the budget of this session" in failed(told)["text"]
        told = say(name, TASK, "other")
        assert session(name, "other")["usage"]["requests"] == 2, "another session has its own"
        assert ANSWER not in words(told)
