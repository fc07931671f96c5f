"""An extension server for a test: serves things of ext.example.com/v1 over TLS, with the standard library alone. As a
validating webhook at the path of reviews, it rejects objects with the name `denied`.

Usage: extension_server.py CERTIFICATE KEY. Prints its port.
"""

import json
import ssl
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

GROUP_VERSION = "ext.example.com/v1"
BASE = "/apis/" + GROUP_VERSION
COLLECTION = BASE + "/namespaces/default/things"

things = []
changed = threading.Condition()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, code, body):
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        if url.path == BASE:
            verbs = ["create", "get", "list", "watch"]
            thing = {"name": "things", "singularName": "thing", "namespaced": True, "kind": "Thing", "verbs": verbs}
            resources = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": GROUP_VERSION}
            self.answer(200, {**resources, "resources": [thing]})
        elif url.path == "/openapi/v3":
            item = {"serverRelativeURL": "/openapi/v3" + BASE + "?hash=1"}
            self.answer(200, {"paths": {BASE[1:]: item}})
        elif url.path == "/openapi/v3" + BASE:
            self.answer(200, {"openapi": "3.0.0", "info": {"title": "things"}, "paths": {}})
        elif url.path == "/openapi/v2":
            definitions = {"com.example.Thing": {"type": "object"}}
            operation = {"post": {"parameters": [{"schema": {"$ref": "#/definitions/com.example.Thing"}}]}}
            self.answer(200, {"swagger": "2.0", "paths": {COLLECTION: operation}, "definitions": definitions})
        elif url.path == COLLECTION and query.get("watch") == ["true"]:
            self.watch()
        elif url.path == COLLECTION:
            with changed:
                items = list(things)
            self.answer(200, {"kind": "ThingList", "apiVersion": GROUP_VERSION, "metadata": {}, "items": items})
        elif url.path == COLLECTION + "/a/attach":
            self.echo()
        elif url.path == COLLECTION + "/a/log":
            self.log()
        elif url.path.startswith(COLLECTION + "/"):
            name = url.path[len(COLLECTION) + 1 :]
            found = [thing for thing in things if thing["metadata"]["name"] == name]
            self.answer(200, found[0]) if found else self.answer(404, {"kind": "Status", "code": 404, "reason": "NotFound"})
        else:
            self.answer(404, {"kind": "Status", "code": 404})

    def do_POST(self):
        thing = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if urlsplit(self.path).path == BASE + "/reviews":
            self.review(thing)
            return
        groups = self.headers.get_all("X-Remote-Group", [])
        seen = {"user": self.headers["X-Remote-User"], "groups": ",".join(groups), "token": self.headers["Authorization"]}
        seen["address"] = self.headers["X-Forwarded-For"]
        seen["audit"] = self.headers["Audit-ID"]
        thing["metadata"]["annotations"] = seen
        if thing["metadata"]["name"] == "slow":
            time.sleep(30)
        with changed:
            things.append(thing)
            changed.notify_all()
        self.answer(201, thing)

    def review(self, review):
        request = review["request"]
        response = {"uid": request["uid"], "allowed": request["name"] != "denied"}
        response["status"] = {"message": "reviewed for " + self.headers["X-Remote-User"]}
        self.answer(200, {"kind": review["kind"], "apiVersion": review["apiVersion"], "response": response})

    def log(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        for line in range(6):
            self.wfile.write(b"%d" % line)
            self.wfile.flush()
            time.sleep(0.5)
        self.close_connection = True

    def do_DELETE(self):
        self.answer(200, {"kind": "Status", "deleted": self.path})

    def echo(self):
        self.send_response(101)
        self.send_header("Connection", "Upgrade")
        self.send_header("Upgrade", self.headers["Upgrade"])
        self.end_headers()
        self.close_connection = True
        while data := self.connection.recv(1024):
            self.connection.sendall(data)

    def watch(self):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        sent = 0
        while True:
            with changed:
                changed.wait_for(lambda: len(things) > sent)
                new, sent = things[sent:], len(things)
            for thing in new:
                frame = json.dumps({"type": "ADDED", "object": thing}).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(frame), frame))
                self.wfile.flush()


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
server.serve_forever()
