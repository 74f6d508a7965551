"""Talks to an agent in ten lines: talk.py AGENT TEXT. A connection that breaks goes on where it was; what is asked for is allowed."""
import contextlib, http.client, json, os, sys, urllib.request as web
head = {"Authorization": "Bearer " + os.environ["ATOLL_API_KEY"], "Content-Type": "application/json"}
call = lambda path, body=None: json.loads(web.urlopen(web.Request(f"{os.environ['ATOLL_URL']}/v1/agents/{sys.argv[1]}/sessions{path}", body and json.dumps(body).encode(), head)).read() or "{}")
call("", {"thread": "main"})
after, kind = call("/main/messages", {"text": sys.argv[2]})["number"], None
while kind not in ("done", "error"):
    with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
        for event in call(f"/main/events?after={after}&wait_ms=30000")["items"]:
            print(after := event["number"], kind := event["kind"], event["data"].get("text", ""), flush=True)
            kind == "approval" and call(f"/main/approvals/{event['data']['id']}", {"option": event["data"]["options"][0]["id"]})
