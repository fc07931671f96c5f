//! Scenarios that only read: initial objects, credentials, discovery and kubectl's output.

use std::collections::BTreeSet;

use crate::failure::{Outcome, ensure, fail};

use super::World;

/// Compares the namespaces with those that every cluster has.
pub(crate) fn first_namespaces(world: &mut World) -> Outcome<String> {
    let names = names(&world.access.kube("get namespaces -o name")?);
    for wanted in ["default", "kube-system", "kube-public", "kube-node-lease"] {
        ensure!(names.contains(&format!("namespace/{wanted}")), "no namespace {wanted} among {names:?}");
    }
    Ok("default, kube-system, kube-public, kube-node-lease".to_owned())
}

/// Checks that health and version need no credential, and that all other paths do.
pub(crate) fn credentials(world: &mut World) -> Outcome<String> {
    let access = &world.access;
    let ask = |path: &str| access.answer(access.curl_anonymous(path));
    for path in ["/version", "/healthz", "/livez", "/readyz"] {
        let code = access.health(&access.curl_anonymous(path))?.code;
        ensure!(code == 200, "GET {path} without a token answered {code}, wanted 200");
    }
    let wrong =
        access.answer(access.curl_anonymous("/api/v1/pods").args(["--header", "Authorization: Bearer wrong"]))?;
    let answers = [("no token", ask("/api/v1/pods")?), ("no token", ask("/apis")?), ("a wrong token", wrong)];
    for (who, answer) in answers {
        // A kube-apiserver that accepts anonymous users responds with 403 to a request without a
        // token.
        let refused = answer.code == 401 || (world.server.is_none() && who == "no token" && answer.code == 403);
        ensure!(refused, "with {who}: {}, wanted 401", answer.code);
        let status = answer.json()?;
        ensure!(status["kind"] == "Status" && status["status"] == "Failure", "with {who}, not a Status: {status}");
    }
    let version = access.fetch_json("/version")?;
    Ok(format!("401 without a token; /version says {}", version["gitVersion"].as_str().unwrap_or("nothing")))
}

/// Checks the kinds, short names and scopes in the output of `kubectl api-resources`.
pub(crate) fn discovery(world: &mut World) -> Outcome<String> {
    let listed = world.access.kube("api-resources --no-headers")?;
    let rows: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    for wanted in [
        "pods po v1 true Pod",
        "services svc v1 true Service",
        "configmaps cm v1 true ConfigMap",
        "namespaces ns v1 false Namespace",
        "nodes no v1 false Node",
        "persistentvolumeclaims pvc v1 true PersistentVolumeClaim",
        "deployments deploy apps/v1 true Deployment",
        "statefulsets sts apps/v1 true StatefulSet",
        "cronjobs cj batch/v1 true CronJob",
        "ingresses ing networking.k8s.io/v1 true Ingress",
        "horizontalpodautoscalers hpa autoscaling/v2 true HorizontalPodAutoscaler",
        "poddisruptionbudgets pdb policy/v1 true PodDisruptionBudget",
        "priorityclasses pc scheduling.k8s.io/v1 false PriorityClass",
        "leases coordination.k8s.io/v1 true Lease",
        "roles rbac.authorization.k8s.io/v1 true Role",
        "endpointslices discovery.k8s.io/v1 true EndpointSlice",
    ] {
        ensure!(rows.contains(&wanted.split(' ').collect()), "api-resources has no `{wanted}`");
    }
    let versions = world.access.kube("api-versions")?;
    for wanted in ["v1", "apps/v1", "batch/v1", "coordination.k8s.io/v1", "storage.k8s.io/v1"] {
        ensure!(versions.lines().any(|line| line == wanted), "api-versions has no {wanted}");
    }
    Ok(format!("{} resources, {} versions", rows.len(), versions.lines().count()))
}

/// Lists the category `all` in all namespaces.
pub(crate) fn get_all(world: &mut World) -> Outcome<String> {
    let all = world.access.kube("get all -A")?;
    for wanted in [
        "pod/toolbox",
        "service/web",
        "deployment.apps/payment",
        "statefulset.apps/postgres",
        "daemonset.apps/log-agent",
        "job.batch/migrate-schema",
        "cronjob.batch/nightly-report",
        "horizontalpodautoscaler.autoscaling/web",
    ] {
        ensure!(all.split_whitespace().any(|word| word == wanted), "`get all -A` shows no {wanted}:\n{all}");
    }
    ensure!(!all.contains("configmap/"), "`get all -A` shows config maps, which are not in the category");
    Ok(format!("{} lines", all.lines().count()))
}

/// Lists every kind of the manifests by its lower-case name, in all namespaces.
pub(crate) fn get_each_kind(world: &mut World) -> Outcome<String> {
    let kinds = world.model.kinds();
    for (kind, wanted) in &kinds {
        let listed = names(&world.access.kube(&format!("get {} -A -o name", kind.to_lowercase()))?);
        let found = world.model.objects.keys().filter(|(other, ..)| other == kind);
        let missing: Vec<_> =
            found.filter(|(_, _, name)| !listed.iter().any(|line| line.ends_with(&format!("/{name}")))).collect();
        ensure!(missing.is_empty(), "`get {kind}` lists {} of {wanted}; without {missing:?}", listed.len());
    }
    Ok(format!("{} kinds", kinds.len()))
}

/// Checks the columns of kubectl, which the server sends as a Table.
pub(crate) fn columns(world: &mut World) -> Outcome<String> {
    let node = r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"rack-1","labels":{"node-role.kubernetes.io/control-plane":""}}}"#;
    world.access.kubectl(["apply", "-f", "-"]).input(node).text()?;
    let event = r#"{"apiVersion":"v1","kind":"Event","metadata":{"name":"toolbox.1","namespace":"shop"},
        "involvedObject":{"kind":"Pod","namespace":"shop","name":"toolbox"},"reason":"Pulled","message":"image pulled",
        "type":"Normal","count":1,"firstTimestamp":"2026-01-05T08:00:00Z","lastTimestamp":"2026-01-05T08:00:00Z","source":{"component":"e2e"}}"#;
    world.access.kubectl(["apply", "-f", "-"]).input(event).text()?;
    let checks = [
        ("get pods -n shop", "NAME READY STATUS RESTARTS AGE"),
        ("get pods -A", "NAMESPACE NAME READY STATUS RESTARTS AGE"),
        ("get pods -n shop -o wide", "NAME READY STATUS RESTARTS AGE IP NODE NOMINATED NODE READINESS GATES"),
        ("get nodes", "NAME STATUS ROLES AGE VERSION"),
        ("get services -n shop", "NAME TYPE CLUSTER-IP EXTERNAL-IP PORT(S) AGE"),
        ("get deployments -n shop", "NAME READY UP-TO-DATE AVAILABLE AGE"),
        ("get configmaps -n shop", "NAME DATA AGE"),
        ("get namespaces", "NAME STATUS AGE"),
        ("get events -n shop", "LAST SEEN TYPE REASON OBJECT MESSAGE"),
    ];
    for (command, wanted) in checks {
        let printed = world.access.kube(command)?;
        let header: Vec<_> = printed.lines().next().unwrap_or_default().split_whitespace().collect();
        ensure!(
            header.join(" ") == wanted,
            "`kubectl {command}` prints the columns {}; wanted {wanted}",
            header.join(" ")
        );
    }
    let row = |command: &str, name: &str| -> Outcome<String> {
        let printed = world.access.kube(command)?;
        match printed.lines().find(|line| line.split_whitespace().any(|word| word == name)) {
            Some(line) => Ok(line.split_whitespace().collect::<Vec<_>>().join(" ")),
            None => fail!("`kubectl {command}` shows no {name}"),
        }
    };
    for (command, name, wanted) in [
        ("get pods -n shop", "canary", "canary 0/2 Pending 0 "),
        ("get configmaps -n shop", "catalog", "catalog 3 "),
        ("get namespaces", "shop", "shop Active "),
        ("get deployments -n shop", "web", "web 0/3 0 0 "),
        ("get events -n shop", "pod/toolbox", ""),
        ("get nodes", "rack-1", "rack-1 Unknown control-plane "),
    ] {
        let printed = row(command, name)?;
        ensure!(printed.starts_with(wanted), "`kubectl {command}` prints `{printed}`; wanted `{wanted}…`");
    }
    world.access.kube("delete node/rack-1")?;
    world.access.kube("delete event/toolbox.1 -n shop")?;
    Ok(format!("{} tables", checks.len()))
}

/// Checks label and field selectors with kubectl.
pub(crate) fn selectors(world: &mut World) -> Outcome<String> {
    let checks = [
        ("pods", "--selector", "app=toolbox", vec!["pod/psql", "pod/toolbox"]),
        ("pods", "--selector", "app!=toolbox,track", vec!["pod/canary"]),
        ("deployments", "--selector", "tier in (front,back)", vec!["deployment.apps/payment", "deployment.apps/web"]),
        ("services", "--selector", "!tier,app", vec!["service/postgres"]),
        ("pods", "--field-selector", "metadata.namespace=shop-data", vec!["pod/psql"]),
        ("pods", "--field-selector", "metadata.name=canary,spec.restartPolicy=Always", vec!["pod/canary"]),
        ("configmaps", "--field-selector", "metadata.name=catalog", vec!["configmap/catalog"]),
    ];
    for (resource, flag, selector, wanted) in &checks {
        let listed = world.access.kubectl(["get", resource, "-A", flag, selector, "-o", "name"]).text()?;
        // In the order of the keys: `shop-data/` sorts before `shop/`.
        let listed: Vec<_> = listed.lines().collect();
        ensure!(
            &listed == wanted,
            "`kubectl get {resource} -A {flag} '{selector}'` lists {listed:?}; wanted {wanted:?}"
        );
    }
    Ok(format!("{} selectors", checks.len()))
}

fn names(printed: &str) -> BTreeSet<String> {
    printed.lines().map(str::to_owned).collect()
}
