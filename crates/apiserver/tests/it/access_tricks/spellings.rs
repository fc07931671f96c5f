//! Tests alternative spellings of permitted requests, with which a client tries to exceed its permissions.

use super::*;

const PODS: &str = "/api/v1/namespaces/default/pods";

/// Creates a service account and a pod. Pods need a service account.
async fn create_pod(target: &Target) {
    target.create("/api/v1/namespaces/default/serviceaccounts", r#"{"metadata":{"name":"default"}}"#).await;
    let pod = r#"{"metadata":{"name":"p"},"spec":{"automountServiceAccountToken":false,
        "containers":[{"name":"c","image":"i"}]}}"#;
    target.create(PODS, pod).await;
}

#[tokio::test]
async fn every_spelling_of_a_watch_requires_the_verb_watch() {
    let target = Target::start().await;
    let rules = r#"{"verbs":["get","list"],"apiGroups":[""],"resources":["configmaps"]}"#;
    target.allow_eve(Scope::Default, rules, (Method::GET, MAPS)).await;
    for query in [
        "watch=true",
        "watch=1",
        "watch=t",
        "watch=TRUE",
        "watch=yes",
        "watch=2",
        "watch",
        "watch=",
        "watch=%74rue",
        "%77atch=true",
        "watch=true&watch=false",
        "watch=false&watch=true",
        "WATCH=true",
        "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
        "watch=true&fieldSelector=metadata.name%3Dmine",
        "watch=true;watch=false",
        "watch=false;watch=true",
        "limit=1&watch=true",
    ] {
        let (code, text) = target.get(Sender::Eve, &format!("{MAPS}?{query}"), &[]).await;
        let is_list = code == 200 && text.contains("\"ConfigMapList\"") && !text.contains("\"ADDED\"");
        assert!(code == 403 || is_list, "{query}: {code} {text}");
    }
    for path in [
        "/api/v1/watch/namespaces/default/configmaps",
        "/api/v1/watch/namespaces/default/configmaps/mine",
        "/api/v1/watch/namespaces/default/configmaps?watch=false",
        "/api/v1/w%61tch/namespaces/default/configmaps",
        "/api/v1/watch/configmaps",
    ] {
        assert_eq!(target.refused(Sender::Eve, Method::GET, path, &[]).await, 403, "{path}");
    }
    let (code, text) = target.get(Sender::Eve, &format!("{MAPS}/mine?watch=true"), &[]).await;
    assert!(code == 200 && text.contains("\"kind\":\"ConfigMap\""), "a GET by name is never a watch: {code} {text}");
}

#[tokio::test]
async fn permission_for_one_object_name_does_not_return_other_objects() {
    let target = Target::start().await;
    let (_, page) = target.get(Sender::Admin, &format!("{MAPS}?limit=1"), &[]).await;
    let page: listwatch_json::Value = serde_json::from_str(&page).unwrap();
    let token = page["metadata"]["continue"].as_str().expect("a token of another user");
    let name = "fieldSelector=metadata.name%3Dmine";
    for query in [
        format!("{name}&continue={token}"),
        format!("{name}&continue={token}&limit=500"),
        format!("{name};fieldSelector="),
        format!("{name}&fieldSelector="),
        format!("fieldSelector=&{name}"),
        format!("{name}&labelSelector=!x"),
        format!("{name}&limit=1"),
        format!("{name}&resourceVersion=0"),
        format!("{name}&watch=true&timeoutSeconds=1"),
        format!(
            "{name}&watch=true&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
        ),
        format!("fieldSelector=metadata.name%3Dother&{name}"),
        "%66ieldSelector=metadata.name%3Dmine".to_owned(),
        "fieldSelector=metadata.name%3D%3Dmine".to_owned(),
        "fieldSelector=metadata.name%3Dmine,metadata.name%3Dother".to_owned(),
        "fieldSelector=metadata.name%3Dmine%00".to_owned(),
        "fieldSelector=metadata.name%3Dmine%5C,metadata.name!%3Dx".to_owned(),
        "fieldSelector=%20metadata.name%3Dmine".to_owned(),
        "fieldSelector=metadata.name%20in%20(mine,other)".to_owned(),
        "fieldselector=metadata.name%3Dmine".to_owned(),
    ] {
        let (code, text) = target.get(Sender::Bob, &format!("{MAPS}?{query}"), &[]).await;
        let has_other = text.contains(SECRET_DATA) || (code == 200 && text.contains("\"other\""));
        assert!(!has_other, "{query}: {code} {text}");
    }
    for name in ["other", "Mine", "mine%20", "%6Dine%2F..%2Fother", "mine/../other", "mine;other", "*", "%2a"] {
        target.refused(Sender::Bob, Method::GET, &format!("{MAPS}/{name}"), &[]).await;
    }
}

#[tokio::test]
async fn every_spelling_of_a_subresource_requires_permission_for_the_subresource() {
    let target = Target::start().await;
    create_pod(&target).await;
    let rules = r#"{"verbs":["*"],"apiGroups":[""],"resources":["pods"]}"#;
    target.allow_eve(Scope::Default, rules, (Method::GET, PODS)).await;
    for path in [
        "p/log",
        "p/log/",
        "p//log",
        "p/%6cog",
        "p/LOG",
        "p%2flog",
        "p/log%2f",
        "p/log;a",
        "p/log/x",
        "p/./log",
        "p/status/../log",
        "p/status",
        "p/exec?command=id",
        "p/attach",
        "p/portforward?ports=1",
        "p/proxy",
        "p/proxy/",
        "p/proxy/x",
        "p:80/proxy",
        "https:p:443/proxy/a",
        "p/eviction",
        "p/binding",
        "p/ephemeralcontainers",
        "p/resize",
    ] {
        for method in [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            target.refused(Sender::Eve, method, &format!("{PODS}/{path}"), &[]).await;
        }
    }
    assert_eq!(target.get(Sender::Eve, &format!("{PODS}/p"), &[]).await.0, 200, "the pod is still there");
}

#[tokio::test]
async fn proxy_request_reaches_only_the_named_object() {
    let target = Target::start().await;
    create_pod(&target).await;
    let rules =
        r#"{"verbs":["get"],"apiGroups":[""],"resources":["pods/proxy","services/proxy"],"resourceNames":["p"]}"#;
    target.allow_eve(Scope::Default, rules, (Method::GET, &format!("{PODS}/p/proxy/"))).await;
    for path in [
        "../../../secrets/s",
        "../../../../../../../metrics",
        "%2e%2e/%2e%2e/%2e%2e/secrets/s",
        "..%2f..%2f..%2fsecrets/s",
        "..;/..;/..;/secrets/s",
        "/../../../secrets/s",
        "http://127.0.0.1/metrics",
        "@127.0.0.1/metrics",
    ] {
        let (code, text) = target.get(Sender::Eve, &format!("{PODS}/p/proxy/{path}"), &[]).await;
        assert!(code >= 300 && !text.contains(SECRET_DATA) && !text.contains("apiserver_"), "{path}: {code} {text}");
    }
    for path in [
        "pods/p:80/proxy",
        "pods/p%3A80/proxy",
        "pods/https:p:443/proxy",
        "pods/https:p:/proxy",
        "pods/P/proxy",
        "pods/q/proxy",
        "pods/p%2f..%2fq/proxy",
        "pods/127.0.0.1/proxy",
        "pods/p/..%2fq/proxy",
        "services/q/proxy",
        "services/p:80/proxy",
    ] {
        target.refused(Sender::Eve, Method::GET, &format!("/api/v1/namespaces/default/{path}"), &[]).await;
    }
    for path in ["/api/v1/nodes/p/proxy/", "/api/v1/proxy/nodes/p", "/api/v1/proxy/namespaces/default/pods/p"] {
        target.refused(Sender::Eve, Method::GET, path, &[]).await;
    }
    let post = target.refused(Sender::Eve, Method::POST, &format!("{PODS}/p/proxy/"), &[]).await;
    assert_eq!(post, 403, "the right to GET is no right to POST");
}

#[tokio::test]
async fn deletion_of_a_collection_requires_the_verb_deletecollection() {
    let target = Target::start().await;
    let rules = r#"{"verbs":["delete"],"apiGroups":[""],"resources":["configmaps"]}"#;
    target.allow_eve(Scope::Default, rules, (Method::DELETE, &format!("{MAPS}/absent"))).await;
    for path in [
        "",
        "/",
        "//",
        "?fieldSelector=metadata.name%3Dmine",
        "?labelSelector=",
        "?limit=1",
        "?name=mine",
        "?watch=true",
        "/%20",
        "/*",
        "/.",
        "/..",
        "/%2e",
        "/mine/",
        "/mine?dryRun=All&dryRun=",
    ] {
        let (code, _) = target.send(Sender::Eve, Method::DELETE, &format!("{MAPS}{path}"), &[], "").await;
        let is_of_mine = path.starts_with("/mine");
        assert!(is_of_mine || code >= 400, "{path}: {code}");
    }
    for path in ["/api/v1/configmaps", "/api/v1/watch/namespaces/default/configmaps"] {
        target.refused(Sender::Eve, Method::DELETE, path, &[]).await;
    }
    assert_eq!(target.get(Sender::Admin, &format!("{MAPS}/other"), &[]).await.0, 200, "it is still there");
}

#[tokio::test]
async fn body_that_names_another_object_namespace_or_kind_is_rejected() {
    let target = Target::start().await;
    target.create("/api/v1/namespaces", r#"{"metadata":{"name":"theirs"}}"#).await;
    target.create("/api/v1/namespaces/default/serviceaccounts", r#"{"metadata":{"name":"b"}}"#).await;
    target.create("/api/v1/namespaces/default/serviceaccounts", r#"{"metadata":{"name":"a"}}"#).await;
    let rules = r#"{"verbs":["create","update","patch"],"apiGroups":[""],"resources":["configmaps"]},
        {"verbs":["create"],"apiGroups":[""],"resources":["serviceaccounts/token"],"resourceNames":["a"]}"#;
    target.allow_eve(Scope::Default, rules, (Method::POST, &format!("{MAPS}?dryRun=All"))).await;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let apply = "application/apply-patch+yaml";
    let merge = "application/merge-patch+json";
    let json = "application/json";
    for (method, path, content_type, body) in [
        (Method::POST, MAPS.to_owned(), json, r#"{"metadata":{"name":"x","namespace":"theirs"}}"#),
        (Method::POST, MAPS.to_owned(), json, r#"{"kind":"Secret","apiVersion":"v1","metadata":{"name":"x"}}"#),
        (Method::POST, MAPS.to_owned(), json, r#"{"kind":"List","apiVersion":"v1","items":[]}"#),
        (
            Method::POST,
            "/api/v1/namespaces/theirs/configmaps".to_owned(),
            json,
            r#"{"metadata":{"name":"x","namespace":"default"}}"#,
        ),
        (Method::POST, "/api/v1/configmaps".to_owned(), json, r#"{"metadata":{"name":"x","namespace":"default"}}"#),
        (Method::POST, format!("{MAPS}/other"), json, r#"{"metadata":{"name":"other"}}"#),
        (Method::PUT, format!("{MAPS}/mine"), json, r#"{"metadata":{"name":"other"},"data":{"k":"eve"}}"#),
        (Method::PUT, format!("{MAPS}/mine"), json, r#"{"metadata":{"name":"mine","namespace":"theirs"}}"#),
        (Method::PUT, MAPS.to_owned(), json, r#"{"metadata":{"name":"other"},"data":{"k":"eve"}}"#),
        (Method::PATCH, format!("{MAPS}/mine"), merge, r#"{"metadata":{"name":"other"},"data":{"k":"eve"}}"#),
        (Method::PATCH, format!("{MAPS}/mine"), merge, r#"{"metadata":{"namespace":"theirs"}}"#),
        (Method::PATCH, format!("{MAPS}/mine"), merge, r#"{"kind":"Secret"}"#),
        (
            Method::PATCH,
            format!("{MAPS}/mine?fieldManager=e"),
            apply,
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"other"}}"#,
        ),
        (
            Method::PATCH,
            format!("{MAPS}/mine?fieldManager=e"),
            apply,
            r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"mine"}}"#,
        ),
        (Method::POST, format!("{accounts}/a/token"), json, r#"{"metadata":{"name":"b"},"spec":{}}"#),
        (Method::POST, format!("{accounts}/a/token"), json, r#"{"metadata":{"namespace":"theirs"},"spec":{}}"#),
        (Method::POST, format!("{accounts}/b/token"), json, r#"{"metadata":{"name":"a"},"spec":{}}"#),
        (Method::POST, format!("{accounts}/a%2f..%2fb/token"), json, r#"{"spec":{}}"#),
        (Method::POST, format!("{accounts}/a/../b/token"), json, r#"{"spec":{}}"#),
    ] {
        let (code, text) =
            target.send(Sender::Eve, method.clone(), &path, &[("content-type", content_type)], body).await;
        assert!((400..500).contains(&code), "{method} {path} {body}: {code} {text}");
    }
    let (_, theirs) = target.get(Sender::Admin, "/api/v1/namespaces/theirs/configmaps", &[]).await;
    assert!(!theirs.contains("\"x\""), "{theirs}");
    let (_, other) = target.get(Sender::Admin, &format!("{MAPS}/other"), &[]).await;
    assert!(!other.contains("eve"), "{other}");
    let (code, text) =
        target.send(Sender::Eve, Method::POST, &format!("{accounts}/a/token"), &[], r#"{"spec":{}}"#).await;
    assert_eq!(code, 201, "the plain request is right: {text}");
}

#[tokio::test]
async fn permission_to_impersonate_one_user_does_not_allow_other_users_groups_or_extras() {
    let target = Target::start().await;
    let rules = r#"{"verbs":["impersonate"],"apiGroups":[""],"resources":["users"],"resourceNames":["bob"]},
        {"verbs":["list"],"apiGroups":[""],"resources":["nodes"]}"#;
    target.allow_eve(Scope::Cluster, rules, (Method::GET, "/api/v1/nodes")).await;
    let own = format!("{MAPS}/mine");
    let user = ("impersonate-user", "bob");
    assert_eq!(target.get(Sender::Eve, &own, &[user]).await.0, 200, "eve acts as bob");
    assert_eq!(target.get(Sender::Eve, "/api/v1/nodes", &[user]).await.0, 403, "bob has none of eve's rights");
    for headers in [
        &[user, ("impersonate-group", "system:masters")][..],
        &[user, ("impersonate-group", "")],
        &[user, ("impersonate-group", "system:authenticated")],
        &[user, ("impersonate-uid", "1")],
        &[user, ("impersonate-extra-scopes", "all")],
        &[user, ("impersonate-extra-", "all")],
        &[user, ("impersonate-extra-%2f", "all")],
        &[user, ("impersonate-extra-%zz", "all")],
        &[("impersonate-user", "Bob")],
        &[("impersonate-user", "bob,admin")],
        &[("impersonate-user", "bob admin")],
        &[("impersonate-user", "b%6fb")],
        &[("impersonate-user", "admin"), user],
        &[("impersonate-user", "*")],
        &[("impersonate-user", "system:admin")],
        &[("impersonate-user", "system:serviceaccount:default:bob")],
        &[("impersonate-user", "system:node:bob")],
        &[("impersonate-user", "system:anonymous")],
    ] {
        assert_eq!(target.refused(Sender::Eve, Method::GET, &own, headers).await, 403, "{headers:?}");
    }
    // A second name is not read, so that the request stays that of bob.
    let headers = [user, ("impersonate-user", "admin")];
    assert_eq!(target.refused(Sender::Eve, Method::GET, SECRET_PATH, &headers).await, 403);
}

#[tokio::test]
async fn role_in_one_namespace_does_not_allow_other_namespaces_scopes_groups_or_resources() {
    let target = Target::start().await;
    target.create("/api/v1/namespaces", r#"{"metadata":{"name":"theirs"}}"#).await;
    let rules = r#"{"verbs":["*"],"apiGroups":[""],"resources":["configmaps","events","namespaces"]}"#;
    target.allow_eve(Scope::Default, rules, (Method::GET, MAPS)).await;
    for path in [
        "/api/v1/configmaps",
        "/api/v1/configmaps/mine",
        "/api/v1/configmaps?fieldSelector=metadata.namespace%3Ddefault",
        "/api/v1/namespaces",
        "/api/v1/namespaces/theirs",
        "/api/v1/namespaces/theirs/configmaps",
        "/api/v1/namespaces/Default/configmaps",
        "/api/v1/namespaces/default%20/configmaps",
        "/api/v1/namespaces/default,theirs/configmaps",
        "/api/v1/namespaces/default/namespaces/theirs/configmaps",
        "/api/v1/namespaces/default/../theirs/configmaps",
        "/api/v1/namespaces/default%2f..%2ftheirs/configmaps",
        "/api/v1/namespaces/../configmaps",
        "/api/v1/namespaces/*/configmaps",
        "/api/v1/watch/namespaces/theirs/configmaps",
        "/apis/events.k8s.io/v1/namespaces/default/events",
        "/apis/apps/v1/namespaces/default/configmaps",
        "/apis//v1/namespaces/default/configmaps",
        "/apis/core/v1/namespaces/default/configmaps",
        "/api/v1/namespaces/default/configmap",
        "/api/v1/namespaces/default/ConfigMaps",
        "/api/v1/namespaces/default/configmaps.v1",
    ] {
        target.refused(Sender::Eve, Method::GET, path, &[]).await;
    }
    let own = target.get(Sender::Eve, "/api/v1/namespaces/%64efault/configmaps/%6dine", &[]).await;
    assert_eq!(own.0, 200, "an escape of a plain letter is that letter");
}

#[tokio::test]
async fn every_spelling_of_an_internal_path_requires_a_permission() {
    let target = Target::start().await;
    for path in [
        "/metrics",
        "/metrics/",
        "/metrics/slis",
        "/metrics/cadvisor",
        "/%6detrics",
        "//metrics",
        "/metrics;a",
        "/metrics%2f",
        "/metrics%00",
        "/./metrics",
        "/debug/pprof/",
        "/debug/pprof/heap",
        "/debug/flags/v",
        "/debug/api_priority_and_fairness/dump_queues",
        "/logs",
        "/logs/",
        "/configz",
        "/flagz",
        "/statusz",
        "/openid/v1/jwks",
        "/.well-known/openid-configuration",
        "/.well-known/../metrics",
        "/healthz%2f..%2fmetrics",
        "/livez/..%2f..%2fmetrics",
        "/version/..%2fmetrics",
    ] {
        for sender in [Sender::Bob, Sender::Nobody] {
            let (code, text) = target.get(sender, path, &[]).await;
            assert!((400..500).contains(&code), "{sender:?} {path}: {code}");
            assert!(!text.contains("apiserver_"), "{sender:?} {path}: {text}");
        }
    }
    for path in ["/", "/api", "/api/", "/api/v1", "/apis", "/apis/apps", "/apis/apps/v1", "/openapi/v2", "/openapi/v3"]
    {
        assert_eq!(target.refused(Sender::Nobody, Method::GET, path, &[]).await, 403, "{path}");
    }
}

#[tokio::test]
async fn unusual_or_very_long_request_targets_are_rejected() {
    let target = Target::start().await;
    let long = format!("/api/v1/namespaces/default/{}", "configmaps/../".repeat(4_000));
    let deep = "/a".repeat(30_000);
    let name = format!("{MAPS}/{}", "m".repeat(60_000));
    let query = format!("{SECRET_PATH}?{}", "a=b&".repeat(15_000));
    let slashes = format!("{}{SECRET_PATH}", "/".repeat(30_000));
    for uri in [
        "*",
        "localhost:443",
        "https://localhost/api/v1/namespaces/default/secrets/s",
        "http://admins@localhost/api/v1/namespaces/default/secrets/s",
        &format!("{SECRET_PATH}?x=/version"),
        &long,
        &deep,
        &name,
        &query,
        &slashes,
    ] {
        for method in [Method::GET, Method::OPTIONS, Method::CONNECT, Method::HEAD] {
            for sender in [Sender::Bob, Sender::Nobody] {
                target.refused(sender, method.clone(), uri, &[]).await;
            }
        }
    }
}

#[tokio::test]
async fn upgrade_to_an_unsupported_protocol_is_ignored() {
    let target = Target::start().await;
    for (connection, upgrade) in [
        ("Upgrade, HTTP2-Settings", "h2c"),
        ("Upgrade", "h2c"),
        ("Upgrade", "TLS/1.3"),
        ("Upgrade", "websocket, h2c"),
        ("upgrade", "HTTP/2.0"),
        ("keep-alive, Upgrade", "SPDY/3.1"),
    ] {
        let headers =
            [("connection", connection), ("upgrade", upgrade), ("http2-settings", "AAMAAABkAARAAAAAAAIAAAAA")];
        let code = target.refused(Sender::Bob, Method::GET, SECRET_PATH, &headers).await;
        assert_eq!(code, 403, "{upgrade}");
        let (code, text) = target.get(Sender::Bob, &format!("{MAPS}/mine"), &headers).await;
        assert!(code == 200 && text.contains("\"mine\""), "{upgrade}: {code} {text}");
    }
}

#[tokio::test]
async fn identity_headers_of_a_client_with_a_token_never_change_its_user() {
    let target = Target::start().await;
    let review = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    for headers in [
        &[("x-remote-user", "admin"), ("x-remote-group", "system:masters")][..],
        &[("x-remote-extra-a%2fb", "c"), ("x-remote-uid", "1")],
        &[("x-forwarded-user", "admin"), ("x-auth-request-user", "admin"), ("remote-user", "admin")],
        &[("x-webauth-user", "admin"), ("x-amzn-oidc-identity", "admin"), ("x-goog-authenticated-user-email", "admin")],
        &[("authorization", "Basic YWRtaW46YWRtaW4=")],
        &[("proxy-authorization", "Bearer admins"), ("cookie", "token=admins")],
    ] {
        let (code, text) = target.send(Sender::Bob, Method::POST, review, headers, "{}").await;
        let is_bob = code == 201 && text.contains("\"username\":\"bob\"");
        assert!(is_bob || code == 401 || code == 403, "{headers:?}: {code} {text}");
        assert!(!text.contains("masters") && !text.contains("\"admin\""), "{headers:?}: {code} {text}");
    }
}
