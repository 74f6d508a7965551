"""Talks to an agent in a sandbox: client.py AGENT TEXT… A connection that breaks goes on where it was."""
import http.client, json, os, sys, urllib.request

def call(method, path, body=None, **headers):
    url = f"{os.environ['ATOLL_URL']}/v1/agents/{sys.argv[1]}/sessions{path}"
    headers = {"Authorization": f"Bearer {os.environ['ATOLL_API_KEY']}", "Content-Type": "application/json", **headers}
    return urllib.request.urlopen(urllib.request.Request(url, body and json.dumps(body).encode(), headers, method=method))

session = json.load(call("POST", "", {"thread": "main"}))["id"]
asked = after = json.load(call("POST", f"/{session}/messages", {"text": " ".join(sys.argv[2:])}))["number"]
while True:
    try:
        for line in call("GET", f"/{session}/stream", **{"Last-Event-ID": str(after)}):
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                after = event["number"]
                print(after, event["kind"], event["data"].get("text", ""), flush=True)
                if event["kind"] == "approval":
                    # It can do no more than its sandbox may: whatever it asks for is allowed.
                    call("POST", f"/{session}/approvals/{event['data']['id']}", {"option": event["data"]["options"][0]["id"]})
                if event["data"].get("message") == asked:
                    sys.exit(event["kind"] != "done")
    except (OSError, http.client.HTTPException):
        pass
