"""Talks to an agent in ten lines: talk.py AGENT TEXT. A connection that breaks goes on where it was; what is asked for is allowed."""
import contextlib, http.client, json, os, sys, urllib.request as web
head = {"Authorization": "Bearer " + os.environ["ATOLL_API_KEY"], "Content-Type": "application/json"}
call = lambda path, body=None: web.urlopen(web.Request(f"{os.environ['ATOLL_URL']}/v1/agents/{sys.argv[1]}/sessions{path}", body and json.dumps(body).encode(), head))
after = call("", {"thread": "main"}) and json.load(call("/main/messages", {"text": sys.argv[2]}))["number"]
while True:
    with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
        for event in (json.loads(line[6:]) for line in call(f"/main/stream?after={after}") if line.startswith(b"data: ")):
            print(after := event["number"], kind := event["kind"], event["data"].get("text", ""), flush=True)
            kind == "approval" and call(f"/main/approvals/{event['data']['id']}", {"option": event["data"]["options"][0]["id"]})
            kind in ("done", "error") and sys.exit(kind == "error")
