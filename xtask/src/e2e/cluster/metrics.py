"""The resource metrics API with values from a file: {"pods": [...], "cpu": "300m"}.

It accepts only requests with the certificate of the front proxy, as extension API servers do.
"""

import datetime
import json
import ssl
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SETTINGS = json.loads(sys.argv[1])
GROUP_VERSION = "metrics.k8s.io/v1beta1"
ROOT = f"/apis/{GROUP_VERSION}"
PODS = f"{ROOT}/namespaces/{SETTINGS['namespace']}/pods"
VERBS = ["get", "list"]


def resources():
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": GROUP_VERSION,
        "resources": [
            {"name": "pods", "singularName": "", "namespaced": True, "kind": "PodMetrics", "verbs": VERBS},
        ],
    }


def pods():
    with open(SETTINGS["values"]) as file:
        values = json.load(file)
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

    def item(name):
        return {
            "metadata": {"name": name, "namespace": SETTINGS["namespace"], "creationTimestamp": now},
            "timestamp": now,
            "window": "10s",
            "containers": [{"name": "app", "usage": {"cpu": values["cpu"], "memory": "1Mi"}}],
        }

    return {
        "kind": "PodMetricsList",
        "apiVersion": GROUP_VERSION,
        "metadata": {},
        "items": [item(name) for name in values["pods"]],
    }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path = self.path.split("?")[0].rstrip("/")
        body = {ROOT: resources, PODS: pods}.get(path)
        answer = json.dumps(body() if body else {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404})
        answer = answer.encode()
        self.send_response(200 if body else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(SETTINGS["certificate"], SETTINGS["key"])
context.load_verify_locations(SETTINGS["front_proxy_ca"])
context.verify_mode = ssl.CERT_REQUIRED
server = ThreadingHTTPServer(("127.0.0.1", SETTINGS["port"]), Handler)
server.daemon_threads = True
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
print("listening", flush=True)
server.serve_forever()
