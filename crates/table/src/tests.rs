//! Compares Tables with the output of kubectl for a real cluster.

use listwatch_json::{Value, json};

use super::*;
use listwatch_registry::{PrinterColumn, Registry};

/// The current time in these tests: 2024-05-01T12:00:00Z.
fn now() -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(1_714_564_800).unwrap()
}

fn resource(path: &str) -> Arc<Resource> {
    let registry = Registry::builtin();
    let (group, plural) = path.split_once('/').unwrap_or(("", path));
    let found = registry.resources().iter().find(|resource| resource.group == group && resource.plural == plural);
    Arc::clone(found.unwrap_or_else(|| panic!("{path} is served")))
}

/// Adds a name and a creation time to the JSON of an object, which is then one hour and five minutes old.
fn object(mut body: Value) -> Vec<u8> {
    let metadata = body.as_object_mut().unwrap().entry("metadata").or_insert_with(|| json!({}));
    metadata["name"] = json!("x");
    metadata["resourceVersion"] = json!("7");
    metadata["creationTimestamp"] = json!("2024-05-01T10:55:00Z");
    serde_json::to_vec(&body).unwrap()
}

/// Formats a row as `kubectl get -o wide` prints it.
fn wide(path: &str, body: Value) -> String {
    let cells = row(&resource(path), &object(body), now());
    let text = |cell: &Cell| match cell {
        Cell::Text(text) => text.clone(),
        Cell::Integer(number) => number.to_string(),
        Cell::Number(number) => number.to_string(),
        Cell::Bool(flag) => flag.to_string(),
        Cell::Null => "<none>".to_owned(),
    };
    cells.iter().map(text).collect::<Vec<_>>().join(" | ")
}

fn pod(status: Value) -> Value {
    json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}, "status": status})
}

/// Returns the cells ready, status and restarts of a pod.
fn pod_summary(body: Value) -> String {
    wide("pods", body).split(" | ").skip(1).take(3).collect::<Vec<_>>().join(" ")
}

#[test]
fn every_row_has_a_cell_for_every_column() {
    // An empty object, and an object whose fields all have an unexpected type.
    let odd = json!({"metadata": 7, "spec": [], "status": "x", "data": null, "webhooks": {}, "subsets": 3});
    for resource in Registry::builtin().resources() {
        let columns = columns(resource);
        for body in [b"{}".to_vec(), serde_json::to_vec(&odd).unwrap(), object(json!({"spec": {}, "status": {}}))] {
            assert_eq!(row(resource, &body, now()).len(), columns.len(), "{}", resource.plural);
        }
        let naming: Vec<_> = columns.iter().filter(|column| column.format == "name").collect();
        assert!(!naming.is_empty(), "no column names a {}", resource.kind);
        assert!(columns.iter().all(|column| column.priority <= 1 && !column.description.is_empty()));
    }
}

#[test]
fn pod_status_shows_the_state_of_containers() {
    let running = json!({"ready": true, "restartCount": 0, "state": {"running": {}}});
    let waiting = |why: &str| json!({"restartCount": 2, "state": {"waiting": {"reason": why}}});
    let ended = |code: i64, why: &str| json!({"state": {"terminated": {"exitCode": code, "reason": why}}});
    for (name, status, expected) in [
        ("nothing yet", json!({}), "0/2 Pending 0"),
        ("running", json!({"phase": "Running", "containerStatuses": [running, running]}), "2/2 Running 0"),
        (
            "one crashes",
            json!({"phase": "Running", "containerStatuses": [running, waiting("CrashLoopBackOff")]}),
            "1/2 CrashLoopBackOff 2",
        ),
        (
            "first container speaks last",
            json!({"phase": "Pending", "containerStatuses": [waiting("ImagePullBackOff"), waiting("ErrImagePull")]}),
            "0/2 ImagePullBackOff 4",
        ),
        ("exit code", json!({"phase": "Failed", "containerStatuses": [ended(3, "")]}), "0/2 ExitCode:3 0"),
        (
            "signal",
            json!({"containerStatuses": [{"state": {"terminated": {"exitCode": 137, "signal": 9}}}]}),
            "0/2 Signal:9 0",
        ),
        ("evicted", json!({"phase": "Failed", "reason": "Evicted"}), "0/2 Evicted 0"),
        (
            "completed, but one still runs and the pod is ready",
            json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [ended(0, "Completed"), running]}),
            "1/2 Running 0",
        ),
        (
            "completed, but one still runs",
            json!({"phase": "Running", "containerStatuses": [ended(0, "Completed"), running]}),
            "1/2 NotReady 0",
        ),
        (
            "completed, but the other failed",
            json!({"phase": "Failed", "containerStatuses": [ended(0, "Completed"), ended(1, "Error")]}),
            "0/2 Error 0",
        ),
        (
            "gated",
            json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "reason": "SchedulingGated"}]}),
            "0/2 SchedulingGated 0",
        ),
        (
            "restarted a while ago",
            json!({"phase": "Running", "containerStatuses": [
                {"ready": true, "restartCount": 3, "state": {"running": {}},
                 "lastState": {"terminated": {"finishedAt": "2024-05-01T11:50:00Z"}}}, running]}),
            "2/2 Running 3 (10m ago)",
        ),
    ] {
        assert_eq!(pod_summary(pod(status)), expected, "{name}");
    }
}

#[test]
fn pod_status_shows_the_progress_of_init_containers() {
    let init = |statuses: Value, conditions: Value| {
        json!({
            "spec": {"containers": [{"name": "a"}],
                "initContainers": [{"name": "i1"}, {"name": "side", "restartPolicy": "Always"}]},
            "status": {"phase": "Pending", "initContainerStatuses": statuses, "conditions": conditions,
                "containerStatuses": [{"restartCount": 5, "state": {"waiting": {"reason": "PodInitializing"}}}]}})
    };
    let through = json!({"name": "i1", "restartCount": 1, "state": {"terminated": {"exitCode": 0}}});
    let side = json!({"name": "side", "restartCount": 2, "started": true, "ready": true, "state": {"running": {}}});
    for (name, body, expected) in [
        ("not begun", init(json!([{"name": "i1", "state": {}}]), json!([])), "0/2 Init:0/2 0"),
        ("one through", init(json!([through, {"name": "side"}]), json!([])), "0/2 Init:1/2 1"),
        (
            "waiting",
            init(json!([{"name": "i1", "state": {"waiting": {"reason": "ErrImagePull"}}}]), json!([])),
            "0/2 Init:ErrImagePull 0",
        ),
        (
            "failed",
            init(json!([{"name": "i1", "restartCount": 4, "state": {"terminated": {"exitCode": 2}}}]), json!([])),
            "0/2 Init:ExitCode:2 4",
        ),
        ("a sidecar counts as a container", init(json!([through, side]), json!([])), "1/2 PodInitializing 7"),
    ] {
        assert_eq!(pod_summary(body), expected, "{name}");
    }
}

#[test]
fn pod_with_deletion_timestamp_is_terminating() {
    let deleting = |status: Value| {
        let mut body = pod(status);
        body["metadata"] = json!({"deletionTimestamp": "2024-05-01T12:00:30Z"});
        body
    };
    assert_eq!(pod_summary(deleting(json!({"phase": "Running"}))), "0/2 Terminating 0");
    assert_eq!(pod_summary(deleting(json!({"phase": "Succeeded"}))), "0/2 Succeeded 0");
    assert_eq!(pod_summary(deleting(json!({"phase": "Running", "reason": "NodeLost"}))), "0/2 Unknown 0");
    let wide_cells = wide(
        "pods",
        json!({"spec": {"nodeName": "n1", "readinessGates": [{"conditionType": "g1"}, {"conditionType": "g2"}]},
            "status": {"podIPs": [{"ip": "10.0.0.7"}], "conditions": [{"type": "g2", "status": "True"}]}}),
    );
    assert_eq!(wide_cells, "x | 0/0 | Pending | 0 | 65m | 10.0.0.7 | n1 | <none> | 1/2");
}

#[test]
fn columns_of_workloads_have_the_types_of_kube_apiserver() {
    let check = |path: &str, expected: &str| {
        let columns = super::columns(&resource(path));
        let shown = columns.iter().map(|column| {
            let format = if column.format.is_empty() { String::new() } else { format!("/{}", column.format) };
            let wide = "*".repeat(column.priority.try_into().unwrap());
            format!("{}{wide}:{}{format}", column.name, column.type_)
        });
        assert_eq!(shown.collect::<Vec<_>>().join(" "), expected, "{path}");
    };
    let template = "Containers*:string Images*:string Selector*:string";
    let sets = "Name:string/name Desired:integer Current:integer Ready:integer";
    check("apps/controllerrevisions", "Name:string/name Controller:string Revision:string Age:string");
    let daemons = format!("{sets} Up-to-date:integer Available:integer Node Selector:string Age:string {template}");
    check("apps/daemonsets", &daemons);
    let deployments = format!("Name:string/name Ready:string Up-to-date:string Available:string Age:string {template}");
    check("apps/deployments", &deployments);
    check("apps/replicasets", &format!("{sets} Age:string {template}"));
    check("apps/statefulsets", "Name:string/name Ready:string Age:string Containers*:string Images*:string");
    let times = "Last Schedule:string Age:string";
    let crons =
        format!("Name:string/name Schedule:string Timezone:string Suspend:boolean Active:integer {times} {template}");
    check("batch/cronjobs", &crons);
    let jobs = format!("Name:string/name Status:string Completions:string Duration:string Age:string {template}");
    check("batch/jobs", &jobs);
}

#[test]
fn row_cells_equal_those_of_kubectl() {
    let template = json!({"metadata": {"labels": {"b": "2", "a": "1"}},
        "spec": {"containers": [{"name": "c1", "image": "i:1"}, {"name": "c2", "image": "i:2"}]}});
    let selector = json!({"matchLabels": {"b": "2"}, "matchExpressions": [
        {"key": "a", "operator": "In", "values": ["z", "y"]}, {"key": "c", "operator": "DoesNotExist"}]});
    for (path, body, expected) in [
        ("configmaps", json!({"data": {"a": "1", "b": "2"}, "binaryData": {"c": ""}}), "x | 3 | 65m"),
        ("secrets", json!({"data": {"a": ""}}), "x | Opaque | 1 | 65m"),
        ("namespaces", json!({"status": {"phase": "Terminating"}}), "x | Terminating | 65m"),
        ("serviceaccounts", json!({}), "x | 65m"),
        ("limitranges", json!({}), "x | 2024-05-01T10:55:00Z"),
        ("rbac.authorization.k8s.io/clusterroles", json!({}), "x | 2024-05-01T10:55:00Z"),
        ("apiextensions.k8s.io/customresourcedefinitions", json!({}), "x | 2024-05-01T10:55:00Z"),
        (
            "nodes",
            json!({"metadata": {"labels": {"node-role.kubernetes.io/worker": "", "kubernetes.io/role": "edge"}},
                "spec": {"unschedulable": true},
                "status": {"conditions": [{"type": "Ready", "status": "False"}],
                    "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                    "nodeInfo": {"kubeletVersion": "v1.36.0", "kernelVersion": "6.1", "architecture": "arm64"}}}),
            "x | NotReady,SchedulingDisabled | edge,worker | 65m | v1.36.0 | 10.0.0.1 | <none> | <unknown> | 6.1 (arm64) | <unknown>",
        ),
        (
            "services",
            json!({"spec": {"clusterIP": "10.1.0.1", "selector": {"app": "web"}, "type": "NodePort",
                "ports": [{"port": 80, "nodePort": 30080}, {"port": 53, "protocol": "UDP"}]}}),
            "x | NodePort | 10.1.0.1 | <none> | 80:30080/TCP,53/UDP | 65m | app=web",
        ),
        (
            "services",
            json!({"spec": {"type": "LoadBalancer"}}),
            "x | LoadBalancer | <none> | <pending> | <none> | 65m | <none>",
        ),
        (
            "services",
            json!({"spec": {"type": "LoadBalancer", "externalIPs": ["9.9.9.9"]},
                "status": {"loadBalancer": {"ingress": [{"hostname": "h"}, {"ip": "1.1.1.1"}]}}}),
            "x | LoadBalancer | <none> | 1.1.1.1,h,9.9.9.9 | <none> | 65m | <none>",
        ),
        (
            "endpoints",
            json!({"subsets": [{"addresses": [{"ip": "1.1.1.1"}, {"ip": "::1"}], "ports": [{"port": 80}, {"port": 81}]}]}),
            "x | 1.1.1.1:80,[::1]:80,1.1.1.1:81 + 1 more... | 65m",
        ),
        (
            "discovery.k8s.io/endpointslices",
            json!({"addressType": "IPv4", "ports": [{"port": 80}, {"name": "n"}, {}], "endpoints": [{"addresses": ["a", "b"]}]}),
            "x | IPv4 | 80,n,* | a,b | 65m",
        ),
        (
            "discovery.k8s.io/endpointslices",
            json!({"addressType": "IPv4", "ports": [{"name": "x"}, {"name": "y", "port": 5}, {"name": ""}]}),
            "x | IPv4 | x,5, | <unset> | 65m",
        ),
        (
            "networking.k8s.io/ingresses",
            json!({"spec": {"ingressClassName": "nginx", "tls": [{}], "rules": [{"host": "a"}, {"host": "b"}, {"host": "c"}, {"host": "d"}]}}),
            "x | nginx | a,b,c + 1 more... |  | 80, 443 | 65m",
        ),
        (
            "networking.k8s.io/networkpolicies",
            json!({"spec": {"podSelector": selector}}),
            "x | a in (y,z),b=2,!c | 65m",
        ),
        ("networking.k8s.io/networkpolicies", json!({"spec": {"podSelector": {}}}), "x | <none> | 65m"),
        (
            "apps/deployments",
            json!({"spec": {"replicas": 3, "template": template, "selector": selector},
                "status": {"readyReplicas": 2, "updatedReplicas": 3, "availableReplicas": 1}}),
            "x | 2/3 | 3 | 1 | 65m | c1,c2 | i:1,i:2 | a in (y,z),b=2,!c",
        ),
        ("apps/deployments", json!({"spec": {}}), "x | 0/1 | 0 | 0 | 65m |  |  | "),
        (
            "apps/replicasets",
            json!({"spec": {"replicas": 0, "template": template}, "status": {"replicas": 1}}),
            "x | 0 | 1 | 0 | 65m | c1,c2 | i:1,i:2 | <none>",
        ),
        (
            "apps/statefulsets",
            json!({"spec": {"replicas": 2, "template": template}}),
            "x | 0/2 | 65m | c1,c2 | i:1,i:2",
        ),
        (
            "apps/daemonsets",
            json!({"spec": {"template": {"spec": {"nodeSelector": {"z": "1"}}}}, "status": {"desiredNumberScheduled": 4, "numberReady": 3}}),
            "x | 4 | 0 | 3 | 0 | 0 | z=1 | 65m |  |  | <none>",
        ),
        (
            "batch/jobs",
            json!({"spec": {"completions": 2}, "status": {"succeeded": 1, "startTime": "2024-05-01T11:00:00Z"}}),
            "x | Running | 1/2 | 60m | 65m |  |  | <none>",
        ),
        (
            "batch/jobs",
            json!({"spec": {"parallelism": 3}, "status": {"startTime": "2024-05-01T11:00:00Z",
                "completionTime": "2024-05-01T11:00:09Z", "conditions": [{"type": "Complete", "status": "True"}]}}),
            "x | Complete | 0/1 of 3 | 9s | 65m |  |  | <none>",
        ),
        (
            "batch/cronjobs",
            json!({"spec": {"schedule": "* * * * *"}, "status": {"active": [{}], "lastScheduleTime": "2024-05-01T11:59:30Z"}}),
            "x | * * * * * | <none> | <unset> | 1 | 30s | 65m |  |  | <none>",
        ),
        (
            "policy/poddisruptionbudgets",
            json!({"spec": {"minAvailable": "50%"}, "status": {"disruptionsAllowed": 1}}),
            "x | 50% | N/A | 1 | 65m",
        ),
        (
            "autoscaling/horizontalpodautoscalers",
            json!({"spec": {"scaleTargetRef": {"kind": "Deployment", "name": "web"}, "minReplicas": 2, "maxReplicas": 9, "metrics": [
                    {"type": "Resource", "resource": {"name": "cpu", "target": {"averageUtilization": 80}}},
                    {"type": "External", "external": {"target": {"averageValue": "5"}}},
                    {"type": "Pods", "pods": {"target": {"averageValue": "1k"}}}]},
                "status": {"currentReplicas": 4, "currentMetrics": [{"resource": {"current": {"averageUtilization": 61}}}]}}),
            "x | Deployment/web | cpu: 61%/80%, <unknown>/5 (avg) + 1 more... | 2 | 9 | 4 | 65m",
        ),
        (
            "persistentvolumes",
            json!({"spec": {"capacity": {"storage": "5Gi"}, "accessModes": ["ReadWriteMany", "ReadWriteOnce", "ReadWriteOnce"],
                "claimRef": {"namespace": "ns", "name": "c"}, "storageClassName": "fast"}, "status": {"phase": "Bound"}}),
            "x | 5Gi | RWO,RWX | Retain | Bound | ns/c | fast | <unset> |  | 65m | Filesystem",
        ),
        (
            "persistentvolumeclaims",
            json!({"spec": {"resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "fast"}}),
            "x | Pending |  |  |  | fast | <unset> | 65m | Filesystem",
        ),
        (
            "storage.k8s.io/storageclasses",
            json!({"metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}, "provisioner": "p"}),
            "x (default) | p | Delete | Immediate | false | 65m",
        ),
        (
            "rbac.authorization.k8s.io/rolebindings",
            json!({"roleRef": {"kind": "Role", "name": "r"}, "subjects": [{"kind": "User", "name": "u1"}, {"kind": "User", "name": "u2"},
                {"kind": "ServiceAccount", "namespace": "n", "name": "s"}]}),
            "x | Role/r | 65m | u1, u2 |  | n/s",
        ),
        (
            "resourcequotas",
            json!({"status": {"hard": {"pods": "5", "limits.cpu": "2", "cpu": "1"}, "used": {"pods": "3"}}}),
            "x | cpu: 0/1, pods: 3/5 | limits.cpu: 0/2 | 65m",
        ),
        ("coordination.k8s.io/leases", json!({"spec": {"holderIdentity": "me"}}), "x | me | 65m"),
        (
            "apps/controllerrevisions",
            json!({"metadata": {"ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "controller": true}]}, "revision": 4}),
            "x | statefulset.apps/db | 4 | 65m",
        ),
        (
            "certificates.k8s.io/certificatesigningrequests",
            json!({"spec": {"signerName": "s", "username": "u", "expirationSeconds": 3600}, "status": {"certificate": "eA==", "conditions": [{"type": "Approved"}]}}),
            "x | 65m | s | u | 60m | Approved,Issued",
        ),
        (
            "apiregistration.k8s.io/apiservices",
            json!({"status": {"conditions": [{"type": "Available", "status": "False", "reason": "Gone"}]}}),
            "x | Local | False (Gone) | 65m",
        ),
        (
            "resource.k8s.io/resourceclaims",
            json!({"status": {"allocation": {}, "reservedFor": [{}]}}),
            "x | allocated,reserved | 65m",
        ),
    ] {
        assert_eq!(wide(path, body), expected, "{path}");
    }
}

#[test]
fn event_row_has_the_count_and_times_of_the_event_or_its_series() {
    let event = |body: Value| wide("events", body);
    assert_eq!(
        event(json!({"type": "Warning", "reason": "BackOff", "message": " it failed\n", "count": 3,
            "involvedObject": {"kind": "Pod", "name": "web", "fieldPath": "spec.x"},
            "source": {"component": "kubelet", "host": "n1"},
            "firstTimestamp": "2024-05-01T11:00:00Z", "lastTimestamp": "2024-05-01T11:59:55Z"})),
        "5s | Warning | BackOff | pod/web | spec.x | kubelet, n1 | it failed | 60m | 3 | x"
    );
    assert_eq!(
        event(json!({"type": "Normal", "reason": "R", "involvedObject": {"kind": "Node"}, "reportingComponent": "c",
            "eventTime": "2024-05-01T11:59:00.000001Z"})),
        "59s | Normal | R | node |  | c |  | 59s | 1 | x"
    );
    assert_eq!(
        event(
            json!({"eventTime": "2024-05-01T11:00:00Z", "series": {"count": 9, "lastObservedTime": "2024-05-01T11:59:59Z"}})
        ),
        "1s |  |  |  |  |  |  | 60m | 9 | x"
    );
}

#[test]
fn scale_table_has_desired_and_available_replicas_of_any_kind() {
    fn check(resource: &Arc<Resource>, replicas: Value, expected: [Value; 3]) {
        let body = object(
            json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "spec": replicas, "status": {"replicas": 2}}),
        );
        let table = TableView::of_scale(resource, IncludeObject::None, MetaVersion::V1).object(&body, now());
        let table: Value = serde_json::from_slice(&table).unwrap();
        let columns = table["columnDefinitions"].as_array().unwrap();
        let names: Vec<_> = columns.iter().map(|column| column["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["Name", "Desired", "Available", "Age"]);
        let cells = table["rows"][0]["cells"].as_array().unwrap();
        assert_eq!((&cells[..3], &cells[3]), (&expected[..], &json!("65m")), "{}", resource.plural);
    }
    let custom = Arc::new(Resource { custom: true, ..Resource::clone(&resource("configmaps")) });
    for builtin in ["apps/deployments", "apps/replicasets", "apps/statefulsets", "replicationcontrollers"].map(resource)
    {
        check(&builtin, json!({"replicas": 3}), [json!("x"), json!(3), json!(2)]);
        check(&builtin, json!({}), [json!("x"), json!(0), json!(2)]);
    }
    check(&custom, json!({"replicas": 3}), [json!("x"), json!(3), json!(2)]);
    // A Scale of zero replicas lacks the field, and a path without a value has an empty cell.
    check(&custom, json!({}), [json!("x"), Value::Null, json!(2)]);
}

#[test]
fn custom_resource_has_its_additional_printer_columns() {
    let column = |name: &str, type_: &str, path: &str| PrinterColumn {
        name: name.to_owned(),
        type_: type_.to_owned(),
        format: String::new(),
        description: String::new(),
        priority: 0,
        json_path: path.to_owned(),
    };
    let mut custom = Resource { custom: true, ..Resource::clone(&resource("configmaps")) };
    let body = object(
        json!({"spec": {"n": 3, "s": "text", "f": 1.5, "b": true, "list": ["a"], "z": null, "o": {"b": 1, "a": "<"}, "big": 1500000.5, "d": "2024-05-01T11:59:00Z"}}),
    );
    assert_eq!(row(&custom, &body, now()), ["x".into(), Cell::from("65m")], "name and age are the default");
    assert_eq!(columns(&custom)[1].type_, "date");
    custom.printer_columns = vec![
        column("N", "integer", ".spec.n"),
        column("S", "string", ".spec.s"),
        column("F", "number", ".spec.f"),
        column("B", "boolean", ".spec.b"),
        column("L", "string", ".spec.list"),
        column("NS", "string", ".spec.n"),
        column("O", "string", ".spec.o"),
        column("Big", "string", ".spec.big"),
        column("BS", "string", ".spec.b"),
        column("Z", "string", ".spec.z"),
        column("Gone", "integer", ".spec.gone"),
        column("Wrong", "integer", ".spec.s"),
        column("D", "date", ".spec.d"),
        column("Bad", "date", ".spec.s"),
        column("Path", "string", "..d"),
        column("Null in a number", "integer", ".spec.z"),
    ];
    let cells = row(&custom, &body, now());
    let expected = [
        Cell::from("x"),
        Cell::Integer(3),
        Cell::from("text"),
        Cell::Number(1.5),
        Cell::Bool(true),
        Cell::from("[\"a\"]"),
        Cell::from("3"),
        Cell::from("{\"a\":\"\\u003c\",\"b\":1}"),
        Cell::from("1.5000005e+06"),
        Cell::from("true"),
        Cell::from("<no value>"),
        Cell::Null,
        Cell::Null,
        Cell::from("60s"),
        Cell::from("<invalid>"),
        Cell::from("2024-05-01T11:59:00Z"),
        Cell::Null,
    ];
    assert_eq!(cells, expected);
    assert_eq!(columns(&custom)[1].description, "Custom resource definition column (in JSONPath format): .spec.n");
    custom.printer_columns.insert(1, column("Broken", "string", ".spec["));
    assert_eq!(row(&custom, &body, now()), [Cell::from("x"), Cell::Integer(3)], "columns end at an invalid path");
    assert_eq!(columns(&custom).len(), 2);
}

#[test]
fn table_of_a_list_has_the_list_metadata() {
    let namespaces = resource("namespaces");
    let view = TableView::new(&namespaces, IncludeObject::None, MetaVersion::V1);
    let (one, two) = (object(json!({})), object(json!({"status": {"phase": "Terminating"}})));
    let meta = ListMeta {
        resource_version: "42".to_owned(),
        continue_token: Some("t\"".to_owned()),
        remaining_item_count: Some(5),
    };
    let body = view.list([&one[..], &two[..]], &meta, now());
    assert!(body.starts_with(br#"{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"42","#));
    assert!(body.ends_with(b"}\n"));
    let table: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(table["metadata"], json!({"resourceVersion": "42", "continue": "t\"", "remainingItemCount": 5}));
    let names: Vec<&str> =
        table["columnDefinitions"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["Name", "Status", "Age"]);
    assert_eq!(
        table["columnDefinitions"][0].as_object().unwrap().keys().collect::<Vec<_>>(),
        ["name", "type", "format", "description", "priority"]
    );
    assert_eq!(
        table["rows"],
        json!([{"cells": ["x", "Active", "65m"], "object": null}, {"cells": ["x", "Terminating", "65m"], "object": null}])
    );
    let empty: Value = serde_json::from_slice(&view.list([], &ListMeta::default(), now())).unwrap();
    assert_eq!(empty["rows"], json!([]), "no rows are an empty list, never null");
}

#[test]
fn row_contains_the_object_requested_by_include_object() {
    let configmaps = resource("configmaps");
    let body = object(json!({"kind": "ConfigMap", "apiVersion": "v1", "data": {"k": "v"}}));
    let whole: Value = serde_json::from_slice(&body).unwrap();
    for (include, expected) in [
        (IncludeObject::None, Value::Null),
        (
            IncludeObject::Metadata,
            json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1beta1", "metadata": whole["metadata"]}),
        ),
        (IncludeObject::Object, whole.clone()),
    ] {
        let view = TableView::new(&configmaps, include, MetaVersion::V1Beta1);
        let table: Value = serde_json::from_slice(&view.object(&body, now())).unwrap();
        assert_eq!(table["rows"][0]["object"], expected, "{include:?}");
        assert_eq!(table["apiVersion"], "meta.k8s.io/v1beta1");
        assert_eq!(table["metadata"], json!({"resourceVersion": "7"}));
    }
    for (text, expected) in [
        (None, Some(IncludeObject::Metadata)),
        (Some(""), Some(IncludeObject::Metadata)),
        (Some("None"), Some(IncludeObject::None)),
        (Some("Object"), Some(IncludeObject::Object)),
        (Some("none"), None),
    ] {
        assert_eq!(IncludeObject::parse(text).ok(), expected, "includeObject={text:?}");
    }
    let refused = IncludeObject::parse(Some("all")).unwrap_err();
    assert_eq!(refused.code, 400);
    assert!(refused.message.starts_with("Unable to convert to Table as requested: includeObject: Invalid value"));
}

#[test]
fn only_the_first_event_of_a_watch_has_column_definitions() {
    let pods = resource("pods");
    let view = TableView::new(&pods, IncludeObject::None, MetaVersion::V1);
    let done = object(json!({"status": {"phase": "Succeeded"}}));
    let first: Value = serde_json::from_slice(&view.event_object(&done, true, now())).unwrap();
    let second: Value = serde_json::from_slice(&view.event_object(&done, false, now())).unwrap();
    assert_eq!(first["columnDefinitions"].as_array().unwrap().len(), 9);
    assert_eq!(second["columnDefinitions"], Value::Null);
    assert_eq!(second["metadata"]["resourceVersion"], "7");
    assert_eq!(second["rows"][0]["conditions"][0]["reason"], "Succeeded");
    assert_eq!(second["rows"][0]["object"], Value::Null);
    // A bookmark is a row, too. The last bookmark of the initial events keeps its annotation.
    let bookmark = |annotations: &str| {
        let json = format!(
            r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"resourceVersion":"9","creationTimestamp":null{annotations}}}}}"#
        );
        serde_json::from_slice::<Value>(&view.event_object(json.as_bytes(), false, now())).unwrap()
    };
    let plain = bookmark("");
    assert_eq!((&plain["metadata"]["resourceVersion"], &plain["rows"][0]["object"]), (&json!("9"), &Value::Null));
    assert_eq!(plain["rows"][0]["cells"][4], "<unknown>");
    let end = bookmark(r#","annotations":{"k8s.io/initial-events-end":"true"}"#);
    assert_eq!(end["rows"][0]["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert_eq!(end["rows"][0]["object"]["kind"], "PartialObjectMetadata");
}
