"""Raw requests to the storage for builds, signed with AWS Signature Version 4."""

import datetime
import hashlib
import hmac
import io
import tarfile
import urllib.error
import urllib.parse
import urllib.request

from conftest import call

METHOD = "AWS4-HMAC-SHA256"


def access(key=None):
    status, shown = call("GET", "/object-storage/push-access", key=key)
    assert status == 200, shown
    return shown


def archive(**members):
    """A tar archive."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name.replace("__", "/"))
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return made.getvalue()


def name_of(hash):
    return f"/contexts/atoll/{hash}/context.tar"


def signing(shown, date):
    """The scope and the signing key of a day."""
    scope = f"{date[:8]}/{shown['region']}/s3/aws4_request"
    key = f"AWS4{shown['secret']}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return scope, key


def chunks(shown, pieces, headers):
    """A body in signed chunks: each signature is computed from the one before."""
    date, last = headers["x-amz-date"], headers["authorization"].rpartition("=")[2]
    scope, key = signing(shown, date)
    body = b""
    for piece in [*pieces, b""]:
        lines = [METHOD + "-PAYLOAD", date, scope, last, hashlib.sha256(b"").hexdigest(), hashlib.sha256(piece).hexdigest()]
        last = hmac.new(key, "\n".join(lines).encode(), "sha256").hexdigest()
        body += f"{len(piece):x};chunk-signature={last}\r\n".encode() + piece + b"\r\n"
    return body


def signature(shown, method, url, headers, query, content):
    path = urllib.parse.urlsplit(url).path
    names = sorted(headers)
    encoded = "&".join(
        f"{urllib.parse.quote(name, safe='')}={urllib.parse.quote(value, safe='')}" for name, value in sorted(query.items())
    )
    lines = [method, path, encoded, *(f"{name}:{headers[name]}" for name in names), "", ";".join(names), content]
    request = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    date = headers["x-amz-date"]
    scope, key = signing(shown, date)
    made = hmac.new(key, "\n".join([METHOD, date, scope, request]).encode(), "sha256").hexdigest()
    return f"{METHOD} Credential={shown['accessKey']}/{scope}, SignedHeaders={';'.join(names)}, Signature={made}"


def ask(shown, method, path, body=b"", query=None, change=lambda headers: None, content=None):
    """Sends a signed request; returns status, headers and body of the answer."""
    query, url = query or {}, shown["storageUrl"] + path
    content = content or hashlib.sha256(b"" if callable(body) else body).hexdigest()
    headers = {
        "host": urllib.parse.urlsplit(url).netloc,
        "x-amz-date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ"),
        "x-amz-content-sha256": content,
        "x-amz-security-token": shown["sessionToken"],
    }
    headers["authorization"] = signature(shown, method, url, headers, query, content)
    change(headers)
    body = body(headers) if callable(body) else body
    url += "?" + urllib.parse.urlencode(query, quote_via=urllib.parse.quote) if query else ""
    request = urllib.request.Request(url, method=method, data=body or None, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.headers, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()
