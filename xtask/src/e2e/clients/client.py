"""Lists, pages, watches and resumes with Python's `kubernetes` package, and watches over a WebSocket.

Usage: client.py KUBECONFIG SCENARIO     (SCENARIO: a function below whose name begins with "scenario_")

Works in a namespace of its own, which it makes and removes. Prints one line of what it saw; an
assertion's text, and exit code 1, if it saw something else. Knows nothing of the server but the
Kubernetes API, so it can be run against any.
"""

import json
import ssl
import struct
import sys
import threading
import uuid

import websocket
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from kubernetes import client, config, dynamic, utils, watch

# Far above what anything here takes; only a hang reaches it (seconds).
PATIENCE = 60


class World:
    """One API server, and a namespace on it for this run alone."""

    def __init__(self, kubeconfig):
        self.api_client = config.new_client_from_config(kubeconfig)
        self.core = client.CoreV1Api(self.api_client)
        self.namespace = "python-" + uuid.uuid4().hex[:8]

    def __enter__(self):
        self.core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=self.namespace)))
        return self

    def __exit__(self, *_):
        self.core.delete_namespace(self.namespace)

    def make(self, name, labels=None, **data):
        meta = client.V1ObjectMeta(name=name, labels=labels)
        return self.core.create_namespaced_config_map(self.namespace, client.V1ConfigMap(metadata=meta, data=data))

    def change(self, name, **data):
        return self.core.patch_namespaced_config_map(name, self.namespace, {"data": data})

    def remove(self, name):
        return self.core.delete_namespaced_config_map(name, self.namespace)

    def list(self, **options):
        return self.core.list_namespaced_config_map(self.namespace, _request_timeout=PATIENCE, **options)

    def watch(self, count, **options):
        """The first `count` events, as (type, name, resource version)."""
        seen, stream = [], watch.Watch()
        events = stream.stream(
            self.core.list_namespaced_config_map, self.namespace, _request_timeout=PATIENCE, **options
        )
        for event in events:
            meta = event["object"].metadata
            seen.append((event["type"], meta.name, meta.resource_version))
            if len(seen) == count:
                stream.stop()
        return seen


def names(items):
    return [item.metadata.name for item in items]


def scenario_list(world):
    for n in range(5):
        world.make(f"m{n}", labels={"parity": "odd" if n % 2 else "even"}, n=str(n))
    everything = world.list()
    assert names(everything.items) == ["m0", "m1", "m2", "m3", "m4"], names(everything.items)
    assert everything.metadata.resource_version.isdigit()
    odd = world.list(label_selector="parity=odd")
    assert names(odd.items) == ["m1", "m3"], names(odd.items)
    one = world.list(field_selector="metadata.name=m2")
    assert [item.data for item in one.items] == [{"n": "2"}], one.items
    untyped = dynamic.DynamicClient(world.api_client).resources.get(api_version="v1", kind="ConfigMap")
    found = untyped.get(namespace=world.namespace, label_selector="parity=even")
    assert [item.metadata.name for item in found.items] == ["m0", "m2", "m4"]
    return "5 listed, 2 by label, 1 by field, 3 by the dynamic client"


def scenario_page(world):
    wanted = [f"m{n:02}" for n in range(23)]
    for name in wanted:
        world.make(name)
    found, token, versions, pages = [], None, set(), 0
    while True:
        page = world.list(limit=5, _continue=token)
        pages += 1
        found += names(page.items)
        versions.add(page.metadata.resource_version)
        if pages == 1:
            # A write between two pages does not show in the later ones.
            world.make("m04-late")
            world.remove("m22")
            assert page.metadata.remaining_item_count == 18, page.metadata
        token = page.metadata._continue
        if not token:
            break
    assert found == wanted, found
    assert len(versions) == 1, f"pages of one list are of one version: {versions}"
    assert pages == 5, pages
    try:
        world.list(limit=5, _continue="no token")
        raise AssertionError("a broken continue token was taken")
    except client.ApiException as error:
        assert error.status == 400, error
    return f"{pages} pages of one version, writes between them unseen"


def scenario_watch(world):
    start = world.list().metadata.resource_version
    seen, ready = [], threading.Event()

    def follow():
        ready.set()
        seen.extend(world.watch(4, resource_version=start, timeout_seconds=PATIENCE))

    follower = threading.Thread(target=follow)
    follower.start()
    ready.wait()
    world.make("a", x="1")
    world.change("a", x="2")
    world.make("b")
    gone = world.remove("a")
    follower.join(PATIENCE)
    assert not follower.is_alive(), "the watch did not see four events"
    assert [event[:2] for event in seen] == [("ADDED", "a"), ("MODIFIED", "a"), ("ADDED", "b"), ("DELETED", "a")], seen
    versions = [int(event[2]) for event in seen]
    assert versions == sorted(set(versions)), f"versions rise: {versions}"
    assert world.api_client.sanitize_for_serialization(gone)["status"] == "Success", gone
    return f"4 events at {versions}"


def scenario_resume(world):
    start = world.list().metadata.resource_version
    world.make("a")
    world.make("b")
    first = world.watch(1, resource_version=start)
    assert [event[:2] for event in first] == [("ADDED", "a")], first
    # What happens while nobody watches is there when the watch goes on.
    world.change("b", x="1")
    world.remove("a")
    world.make("c")
    rest = world.watch(4, resource_version=first[0][2])
    wanted = [("ADDED", "b"), ("MODIFIED", "b"), ("DELETED", "a"), ("ADDED", "c")]
    assert [event[:2] for event in rest] == wanted, rest
    # A version that is far away is refused, and says why.
    try:
        world.list(resource_version=str(int(rest[-1][2]) + 1_000_000), resource_version_match="NotOlderThan")
        raise AssertionError("a version of the future was answered")
    except client.ApiException as error:
        assert error.status == 504, error
        assert "Too large resource version" in error.body, error.body
    # The package ends a watch by the server's time, and goes on by itself where it left.
    short = list(
        watch.Watch().stream(
            world.core.list_namespaced_config_map, world.namespace, timeout_seconds=3, _request_timeout=PATIENCE
        )
    )
    assert [event["object"].metadata.name for event in short] == ["b", "c"], short
    return f"went on after {first[0][2]}, 4 events missed meanwhile, none lost"


def scenario_websocket(world):
    settings = world.api_client.configuration
    start = world.list().metadata.resource_version
    path = f"/api/v1/namespaces/{world.namespace}/configmaps?watch=true&resourceVersion={start}"
    trust = ssl.create_default_context(cafile=settings.ssl_ca_cert)

    def connect(options=""):
        return websocket.create_connection(
            settings.host.replace("https://", "wss://") + path + options,
            header={"Authorization": next(iter(settings.api_key.values()))},
            sslopt={"context": trust},
            timeout=PATIENCE,
        )

    socket = connect()
    world.make("a", x="1")
    world.change("a", x="2")
    seen = []
    while len(seen) < 2:
        kind, message = socket.recv_data()
        assert kind == websocket.ABNF.OPCODE_TEXT, kind
        event = json.loads(message)
        seen.append((event["type"], event["object"]["metadata"]["name"]))
    assert seen == [("ADDED", "a"), ("MODIFIED", "a")], seen
    socket.ping("still there?")
    kind, message = socket.recv_data(control_frame=True)
    assert (kind, message) == (websocket.ABNF.OPCODE_PONG, b"still there?"), (kind, message)
    socket.close()
    # A watch of its own, so that its time limit does not end the checks above.
    socket = connect("&timeoutSeconds=1")
    kind = websocket.ABNF.OPCODE_TEXT
    while kind == websocket.ABNF.OPCODE_TEXT:
        kind, message = socket.recv_data(control_frame=True)
    assert kind == websocket.ABNF.OPCODE_CLOSE, (kind, message)
    socket.close()
    return "2 events as text messages, a pong, a close when the time was over"


# The messages that a list and a watch of config maps are made of, and their fields' numbers: from
# the public generated.proto of apimachinery and of the core API.
MESSAGES = {
    "TypeMeta": [("apiVersion", 1, "string"), ("kind", 2, "string")],
    "Unknown": [("typeMeta", 1, "TypeMeta"), ("raw", 2, "bytes"), ("contentType", 4, "string")],
    "RawExtension": [("raw", 1, "bytes")],
    "WatchEvent": [("type", 1, "string"), ("object", 2, "RawExtension")],
    "ListMeta": [("resourceVersion", 2, "string"), ("continue", 3, "string"), ("remainingItemCount", 4, "int64")],
    "Time": [("seconds", 1, "int64"), ("nanos", 2, "int32")],
    "StringPair": [("key", 1, "string"), ("value", 2, "string")],
    "ObjectMeta": [
        ("name", 1, "string"),
        ("namespace", 3, "string"),
        ("uid", 5, "string"),
        ("resourceVersion", 6, "string"),
        ("creationTimestamp", 8, "Time"),
        ("labels", 11, "StringPair*"),
    ],
    "ConfigMap": [("metadata", 1, "ObjectMeta"), ("data", 2, "StringPair*")],
    "ConfigMapList": [("metadata", 1, "ListMeta"), ("items", 2, "ConfigMap*")],
}


def protobuf_messages():
    """Google's decoder, given the messages above."""
    kind = descriptor_pb2.FieldDescriptorProto
    scalars = {"string": kind.TYPE_STRING, "bytes": kind.TYPE_BYTES, "int64": kind.TYPE_INT64, "int32": kind.TYPE_INT32}
    file = descriptor_pb2.FileDescriptorProto(name="lists.proto", package="k8s", syntax="proto2")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, of in fields:
            added = message.field.add(name=field, number=number)
            added.label = kind.LABEL_REPEATED if of.endswith("*") else kind.LABEL_OPTIONAL
            if of in scalars:
                added.type = scalars[of]
            else:
                added.type, added.type_name = kind.TYPE_MESSAGE, ".k8s." + of.rstrip("*")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName("k8s." + name)) for name in MESSAGES}


def scenario_protobuf(world):
    for n in range(4):
        world.make(f"p{n}", labels={"n": str(n)}, text="é" * n, other="x")
    messages = protobuf_messages()
    path = f"/api/v1/namespaces/{world.namespace}/configmaps"

    def ask(query, accept):
        return world.api_client.call_api(
            "GET",
            world.api_client.configuration.host + path + query,
            header_params={
                "Accept": accept,
                "Authorization": next(iter(world.api_client.configuration.api_key.values())),
            },
            _request_timeout=PATIENCE,
        )

    def opened(envelope, of):
        assert envelope[:4] == b"k8s\0", envelope[:16]
        unknown = messages["Unknown"].FromString(envelope[4:])
        assert (unknown.typeMeta.apiVersion, unknown.typeMeta.kind) == ("v1", of), unknown.typeMeta
        found = messages[of].FromString(unknown.raw)
        return found

    def shown(found):
        meta = found.metadata
        pairs = [{pair.key: pair.value for pair in pairs} for pairs in (meta.labels, found.data)]
        return [meta.name, meta.namespace, meta.uid, meta.resourceVersion, meta.creationTimestamp.seconds, *pairs]

    def told(found):
        meta = found.metadata
        seconds = int(meta.creation_timestamp.timestamp())
        return [meta.name, meta.namespace, meta.uid, meta.resource_version, seconds, meta.labels, found.data]

    answer = ask("", "application/vnd.kubernetes.protobuf")
    body = answer.read()
    assert answer.headers["Content-Type"] == "application/vnd.kubernetes.protobuf", answer.headers
    listed, wanted = opened(body, "ConfigMapList"), world.list()
    assert [shown(item) for item in listed.items] == [told(item) for item in wanted.items], listed
    assert listed.metadata.resourceVersion == wanted.metadata.resource_version

    world.change("p1", text="changed")
    world.remove("p2")
    query = f"?watch=true&timeoutSeconds=3&resourceVersion={wanted.metadata.resource_version}"
    stream = ask(query, "application/vnd.kubernetes.protobuf;stream=watch").read()
    events = []
    while stream:
        (length,) = struct.unpack(">I", stream[:4])
        event = messages["WatchEvent"].FromString(stream[4 : 4 + length])
        events.append((event.type, opened(event.object.raw, "ConfigMap")))
        stream = stream[4 + length :]
    assert [(kind, found.metadata.name) for kind, found in events] == [("MODIFIED", "p1"), ("DELETED", "p2")], events
    assert {pair.key: pair.value for pair in events[0][1].data} == {"text": "changed", "other": "x"}, events
    return f"{len(listed.items)} objects and {len(events)} events, read by Google's decoder, are what JSON says"


def refused(code, reason, call):
    """The error that a call has to end with."""
    try:
        call()
    except client.ApiException as error:
        status = json.loads(error.body)
        assert (error.status, status["reason"]) == (code, reason), (error.status, status)
        return status
    raise AssertionError(f"it was taken; wanted {code} {reason}")


def deployment(name, image, **spec):
    labels = {"app": name}
    container = client.V1Container(name="main", image=image, ports=[client.V1ContainerPort(container_port=80)])
    template = client.V1PodTemplateSpec(
        metadata=client.V1ObjectMeta(labels=labels), spec=client.V1PodSpec(containers=[container])
    )
    selector = client.V1LabelSelector(match_labels=labels)
    return client.V1Deployment(
        metadata=client.V1ObjectMeta(name=name),
        spec=client.V1DeploymentSpec(selector=selector, template=template, **spec),
    )


def scenario_write(world):
    """Typed objects: create, replace with and without a version, status, scale, delete with preconditions."""
    apps, ns = client.AppsV1Api(world.api_client), world.namespace
    dry = apps.create_namespaced_deployment(ns, deployment("web", "registry.example/web:1"), dry_run="All")
    assert dry.spec.replicas == 1, "a dry run shows defaults"
    refused(404, "NotFound", lambda: apps.read_namespaced_deployment("web", ns))
    made = apps.create_namespaced_deployment(ns, deployment("web", "registry.example/web:1", replicas=2))
    assert made.spec.strategy.type == "RollingUpdate" and made.metadata.generation == 1, made
    again = deployment("web", "registry.example/web:1")
    refused(409, "AlreadyExists", lambda: apps.create_namespaced_deployment(ns, again))
    stale = apps.read_namespaced_deployment("web", ns)
    made.spec.template.spec.containers[0].image = "registry.example/web:2"
    replaced = apps.replace_namespaced_deployment("web", ns, made)
    assert replaced.metadata.generation == 2, replaced.metadata
    conflict = refused(409, "Conflict", lambda: apps.replace_namespaced_deployment("web", ns, stale))
    assert "please apply your changes to the latest version and try again" in conflict["message"], conflict
    replaced.spec.selector.match_labels["app"] = "other"
    immutable = refused(422, "Invalid", lambda: apps.replace_namespaced_deployment("web", ns, replaced))
    assert {cause["field"] for cause in immutable["details"]["causes"]} >= {"spec.selector"}, immutable

    seen = apps.patch_namespaced_deployment_status("web", ns, {"status": {"replicas": 2, "observedGeneration": 2}})
    assert (seen.status.replicas, seen.metadata.generation) == (2, 2), "status makes no generation"
    scale = apps.read_namespaced_deployment_scale("web", ns)
    assert (scale.spec.replicas, scale.status.replicas, scale.status.selector) == (2, 2, "app=web"), scale
    scale.spec.replicas = 5
    apps.replace_namespaced_deployment_scale("web", ns, scale)
    scaled = apps.read_namespaced_deployment("web", ns)
    assert (scaled.spec.replicas, scaled.metadata.generation) == (5, 3), scaled

    options = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid="another"))
    refused(409, "Conflict", lambda: apps.delete_namespaced_deployment("web", ns, body=options))
    apps.delete_namespaced_deployment("web", ns, propagation_policy="Background")
    refused(404, "NotFound", lambda: apps.read_namespaced_deployment("web", ns))
    for n in range(3):
        world.make(f"n{n}", labels={"n": "some" if n else "none"})
    world.core.delete_collection_namespaced_config_map(ns, label_selector="n=some")
    assert names(world.list(label_selector="n").items) == ["n0"]
    return "create, dry run, replace, conflict, immutable field, status, scale, preconditions, collection"


def scenario_patch(world):
    """Each type of patch, chosen by its media type."""
    apps, ns = client.AppsV1Api(world.api_client), world.namespace
    apps.create_namespaced_deployment(ns, deployment("web", "registry.example/web:1"))

    def patch(content_type, body):
        return apps.patch_namespaced_deployment("web", ns, body, _content_type=content_type)

    def images(found):
        return [container.image for container in found.spec.template.spec.containers]

    sidecar = {"name": "sidecar", "image": "registry.example/sidecar:1"}
    pod = {"spec": {"template": {"spec": {"containers": [sidecar]}}}}
    found = patch("application/strategic-merge-patch+json", pod)
    assert images(found) == ["registry.example/sidecar:1", "registry.example/web:1"], "containers merge by name"
    found = patch("application/merge-patch+json", pod)
    assert images(found) == ["registry.example/sidecar:1"], "a merge patch replaces lists"
    steps = [
        {"op": "test", "path": "/spec/template/spec/containers/0/name", "value": "sidecar"},
        {"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "registry.example/sidecar:2"},
        {"op": "add", "path": "/metadata/labels", "value": {"stage": "two"}},
    ]
    found = patch("application/json-patch+json", steps)
    assert images(found) == ["registry.example/sidecar:2"] and found.metadata.labels == {"stage": "two"}, found
    before = found.metadata.resource_version
    steps[0]["value"] = "web"
    refused(422, "Invalid", lambda: patch("application/json-patch+json", steps))
    found = patch("application/merge-patch+json", {"metadata": {"labels": {"stage": "two"}}})
    assert found.metadata.resource_version == before, "a patch that changes nothing makes no version"
    both = [{"name": "main", "image": "registry.example/web:3"}, {"name": "sidecar", "$patch": "delete"}]
    pod["spec"]["template"]["spec"]["containers"] = both
    found = patch("application/strategic-merge-patch+json", pod)
    assert images(found) == ["registry.example/web:3"], "a directive takes one away"
    untyped = dynamic.DynamicClient(world.api_client).resources.get(api_version="apps/v1", kind="Deployment")
    body = {"metadata": {"name": "web", "annotations": {"by": "dynamic"}}}
    found = untyped.patch(body=body, namespace=ns, content_type="application/merge-patch+json")
    assert found.metadata.annotations.by == "dynamic", found
    return "strategic, merge and JSON patches, typed and dynamic"


def scenario_yaml(world):
    """The package's own way of creating what a manifest says."""
    documents = [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
         "spec": {"containers": [{"name": "web", "image": "registry.example/web:1"}]}},
        {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "nightly"}, "spec": {
            "schedule": "0 3 * * *", "jobTemplate": {"spec": {"template": {"spec": {
                "restartPolicy": "Never", "containers": [{"name": "c", "image": "registry.example/c:1"}]}}}}}},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "reader"},
         "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]},
    ]
    made = utils.create_from_yaml(world.api_client, yaml_objects=documents, namespace=world.namespace)
    kinds = [found.kind for group in made for found in (group if isinstance(group, list) else [group])]
    assert len(kinds) == len(documents), kinds
    service = world.core.read_namespaced_service("web", world.namespace)
    assert service.spec.cluster_ip.count(".") == 3 and service.spec.type == "ClusterIP", service.spec
    try:
        utils.create_from_yaml(world.api_client, yaml_objects=documents[:1], namespace=world.namespace)
        raise AssertionError("it was created twice")
    except utils.FailToCreateError as error:
        assert [one.status for one in error.api_exceptions] == [409], error
    return f"{len(kinds)} kinds from manifests"


def main():
    scenario = globals()["scenario_" + sys.argv[2]]
    with World(sys.argv[1]) as world:
        print(scenario(world))


if __name__ == "__main__":
    main()
