"""Attacks by visitors of ports, and by pages in sandboxes on more than their own origin."""

from verdict import held_if, must_refuse
from world import Broken

SERVE = """use IO::Socket::INET; my $l = IO::Socket::INET->new(LocalAddr => "0.0.0.0:3000", Listen => 16, ReuseAddr => 1) or die;
while (my $c = $l->accept) { my $all = ""; while (my $line = <$c>) { last if $line =~ /^\\r?\\n$/; $all .= $line }
print $c "HTTP/1.1 200 OK\\r\\nContent-Length: " . length($all) . "\\r\\nSet-Cookie: a=1; Domain=localhost; Path=/\\r\\n"
. "Service-Worker-Allowed: /\\r\\nClear-Site-Data: \\"*\\"\\r\\nConnection: close\\r\\n\\r\\n$all"; close $c }"""


class Web:
    """A sandbox with a server that answers each request with its headers."""

    def __init__(self, world):
        self.world, self.name = world, world.new_name("web")
        self.box = world.sandbox(name=self.name)

    def __enter__(self):
        self.world.ok("POST", f"/v1/sandboxes/{self.box}/execs", {"argv": ["perl", "-e", SERVE]})
        for _ in range(400):
            if self.by_path().status == 200:
                return self
        raise Broken(f"nothing listens: {self.by_path()!r}")

    def __exit__(self, *_):
        self.world.delete(self.box)

    def by_path(self, key=..., **more):
        return self.world.ask("GET", f"/v1/sandboxes/{self.box}/ports/3000/", key=key, **more)

    def by_host(self, key=None, **more):
        host = f"3000-{self.name}.localhost:{self.world.port}"
        return self.world.ask("GET", "/", key=key, host=host, **more)


def attack_port_without_a_token(world):
    """tries: visit a port without a token, with nonsense, and with a token of another port
    because: a port is private until somebody lets others in"""
    with Web(world) as web:
        other = world.ok("POST", f"/v1/sandboxes/{web.box}/access", {"port": 3001})["token"]
        return must_refuse(web.by_path(key=None), web.by_host(), web.by_host(headers={"x-atoll-token": "atollp_nonsense"}),
                           web.by_host(headers={"x-atoll-token": other}))


def attack_token_as_a_key(world):
    """tries: use a token of a port as an API key
    because: tokens and keys are looked up apart
    levels: container"""
    with Web(world) as web:
        token = world.ok("POST", f"/v1/sandboxes/{web.box}/access", {"all_ports": True})["token"]
        return must_refuse(*(world.ask("GET", path, key=token) for path in ("/v1/info", "/v1/sandboxes", f"/v1/sandboxes/{web.box}")))


def attack_key_reaches_the_page(world):
    """tries: collect the visitor's key in the page's server
    because: credentials of ours are taken out of what goes in"""
    with Web(world) as web:
        seen = web.by_path().text + web.by_host(headers={"x-atoll-token": world.key}).text
        return held_if(world.key not in seen, "the key arrives inside")


def attack_cookie_for_the_host(world):
    """tries: set a cookie for the whole host from a page below a path
    because: cookies are confined to their path or host"""
    with Web(world) as web:
        cookie = web.by_path().headers.get("set-cookie") or ""
        return held_if("domain=" not in cookie.lower() and "path=/;" not in cookie.lower() + ";" or not cookie, cookie)


def attack_worker_for_the_origin(world):
    """tries: register a worker, or clear data, for the whole origin of the API from a page below a path
    because: with a path only headers about one answer pass"""
    with Web(world) as web:
        headers = web.by_path().headers
        return held_if(not headers.get("service-worker-allowed") and not headers.get("clear-site-data"), "it passes")


def attack_cross_site_to_port(world):
    """tries: have another site use a visitor's cookie for a port
    because: a cookie alone does not serve other sites
    levels: container"""
    with Web(world) as web:
        token = world.ok("POST", f"/v1/sandboxes/{web.box}/access", {"port": 3000})["token"]
        host = f"3000-{web.name}.localhost:{world.port}"
        first = world.ask("GET", f"/?atoll_token={token}", key=None, host=host, headers={"accept": "text/html"})
        cookie = (first.headers.get("set-cookie") or "").split(";")[0]
        if not cookie:
            raise Broken(repr(first))
        headers = {"cookie": cookie, "origin": "http://evil.example"}
        return must_refuse(world.ask("POST", "/", b"x", key=None, host=host, headers=headers))


def attack_other_ports_of_the_host(world):
    """tries: reach a port of the host or of the agent through the ports of a sandbox
    because: a port is the sandbox's own, in its own network namespace"""
    with Web(world) as web:
        answers = [world.ask("GET", f"/v1/sandboxes/{web.box}/ports/{port}/v1/info") for port in (world.port, 22, 1, 65535)]
        return held_if(all(answer.status != 200 for answer in answers), repr(answers))


def attack_port_is_an_oracle(world):
    """tries: learn by a port's answer whether a private sandbox is there
    because: strangers get the same answer wherever they knock
    levels: container"""
    with Web(world) as web:
        nowhere = world.ask("GET", "/", key=None, host=f"3000-nowhere-x.localhost:{world.port}")
        there = web.by_host()
        return held_if((there.status, there.code) == (nowhere.status, nowhere.code), f"{there!r} {nowhere!r}")
