"""Speaks with a language server for the toolbox: one line of JSON on standard input is asked, one on standard output answers.

    python3 -c lsp.py LANGUAGE DIRECTORY

A question is {"id", "op", ...}: "open" and "close" (uri), "symbols" (uri), "workspace" (query), "completions" (uri, position, context), "stop".
The answer is {"id", "result"} or {"id", "error"}. The first line has the id "start".
"""
import itertools, json, os, shutil, subprocess, sys, threading

SERVERS = {
    "python": [["pylsp"], ["python3", "-m", "pylsp"]],
    "typescript": [["typescript-language-server", "--stdio"]],
    "javascript": [["typescript-language-server", "--stdio"]],
}
# How long a server may think about one question, seconds.
WAIT = 60
# Longest message of a server, bytes.
LONGEST = 32 << 20
DOCUMENTS_MAX = 1000


def say(id, **what):
    sys.stdout.write(json.dumps({"id": id, **what}) + "\n")
    sys.stdout.flush()


class Wrong(Exception):
    pass


class Server:
    def __init__(self, argv, root):
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=root)
        self.numbers = itertools.count(1)
        self.waiting = {}
        self.lock = threading.Lock()
        self.open = {}
        threading.Thread(target=self.read, daemon=True).start()
        said = self.ask("initialize", {
            "processId": os.getpid(),
            "rootUri": "file://" + root,
            "workspaceFolders": [{"uri": "file://" + root, "name": os.path.basename(root)}],
            "capabilities": {"textDocument": {"documentSymbol": {}, "completion": {"contextSupport": True}}, "workspace": {"symbol": {}}},
        })
        self.can = (said or {}).get("capabilities") or {}
        self.tell("initialized", {})

    def send(self, message):
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        with self.lock:
            self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
            self.process.stdin.flush()

    def tell(self, method, params):
        self.send({"method": method, "params": params})

    def ask(self, method, params):
        number = next(self.numbers)
        event, answer = threading.Event(), {}
        self.waiting[number] = (event, answer)
        try:
            self.send({"id": number, "method": method, "params": params})
            if not event.wait(WAIT):
                raise Wrong("the language server does not answer")
        except OSError:
            raise Wrong("the language server has ended")
        finally:
            self.waiting.pop(number, None)
        if "error" in answer:
            raise Wrong(str((answer["error"] or {}).get("message", "the language server refused")))
        if "result" not in answer:
            raise Wrong("the language server has ended")
        return answer["result"]

    def read(self):
        try:
            while True:
                length = None
                while True:
                    line = self.process.stdout.readline(8192)
                    if not line:
                        return
                    if line in (b"\r\n", b"\n"):
                        break
                    name, _, value = line.partition(b":")
                    if name.strip().lower() == b"content-length":
                        length = int(value)
                if length is None or not 0 <= length <= LONGEST:
                    return
                self.take(json.loads(self.process.stdout.read(length)))
        except (ValueError, OSError):
            return
        finally:
            for event, _ in list(self.waiting.values()):
                event.set()

    def take(self, message):
        if "method" in message:
            # Settings that a server asks for stay at their defaults.
            if "id" in message:
                items = (message.get("params") or {}).get("items") if message["method"] == "workspace/configuration" else None
                self.send({"id": message["id"], "result": [None] * len(items) if items is not None else None})
            return
        waiting = self.waiting.get(message.get("id"))
        if waiting:
            waiting[1].update(message)
            waiting[0].set()

    def symbols(self, uri):
        found = []

        def take(items):
            for item in items or []:
                place = item.get("location") or {"uri": uri, "range": item.get("range")}
                found.append({"name": item.get("name"), "kind": item.get("kind"), "location": {"uri": place.get("uri", uri), "range": place.get("range")}})
                take(item.get("children"))

        take(self.ask("textDocument/documentSymbol", {"textDocument": {"uri": uri}}))
        return found

    def workspace(self, query):
        if self.can.get("workspaceSymbolProvider"):
            found = self.ask("workspace/symbol", {"query": query}) or []
            return [{"name": one.get("name"), "kind": one.get("kind"), "location": one.get("location")} for one in found]
        # The server does not know the workspace as a whole: takes the symbols of the open documents.
        every = (symbol for uri in list(self.open) for symbol in self.symbols(uri))
        return [symbol for symbol in every if query.lower() in (symbol["name"] or "").lower()]


def main():
    language, root = sys.argv[1], os.path.abspath(sys.argv[2])
    here = os.getcwd()
    argv = next((argv for argv in SERVERS.get(language, []) if shutil.which(argv[0])), None)
    try:
        if argv is None:
            raise Wrong("no language server for %s in this sandbox" % language)
        if not os.path.isdir(root):
            raise Wrong("%s is not a directory" % root)
        server = Server(argv, root)
    except (Wrong, OSError) as error:
        say("start", error=str(error))
        return 1
    say("start", result=None)

    def address(uri):
        # The SDKs put any path behind "file://", relative ones too.
        path = uri[len("file://"):] if uri.startswith("file://") else uri
        return "file://" + os.path.join(here, path)

    def work(asked):
        op = asked.get("op")
        if op == "stop":
            try:
                server.ask("shutdown", None)
                server.tell("exit", None)
            finally:
                say(asked["id"], result=None)
                server.process.kill()
                os._exit(0)
        if op == "workspace":
            return server.workspace(asked["query"])
        uri = address(asked["uri"])
        document = {"uri": uri}
        if op == "open":
            with open(uri[len("file://"):], encoding="utf-8", errors="replace") as file:
                text = file.read(LONGEST)
            if uri in server.open:
                server.tell("textDocument/didClose", {"textDocument": document})
            elif len(server.open) >= DOCUMENTS_MAX:
                raise Wrong("too many documents are open")
            server.open[uri] = True
            server.tell("textDocument/didOpen", {"textDocument": {"uri": uri, "languageId": language, "version": 1, "text": text}})
            return None
        if op == "close":
            server.open.pop(uri, None)
            server.tell("textDocument/didClose", {"textDocument": document})
            return None
        if op == "symbols":
            return server.symbols(uri)
        if op == "completions":
            params = {"textDocument": document, "position": asked["position"]}
            if asked.get("context"):
                params["context"] = asked["context"]
            found = server.ask("textDocument/completion", params)
            if isinstance(found, dict):
                return {"isIncomplete": bool(found.get("isIncomplete")), "items": found.get("items") or []}
            return {"isIncomplete": False, "items": found or []}
        raise Wrong("an unknown operation")

    for line in sys.stdin:
        asked = json.loads(line)
        try:
            say(asked["id"], result=work(asked))
        except (Wrong, OSError, KeyError) as error:
            say(asked["id"], error=str(error))
    return 0


sys.exit(main())
