//! `writes`: the server's cost of a create, an update, a patch and a server-side apply, from
//! request to response without a socket. Measures also the share of tracking field ownership.
//!
//! The store is in memory, so the store's cost is not included. Everything runs in this thread, so
//! `own_cpu` is the time per iteration.
#![allow(missing_docs, reason = "criterion's macros make functions without a doc")]

use std::hint::black_box;

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use http::Request;
use http_body_util::{BodyExt as _, Full};
use listwatch_apiserver::ApiServer;
use listwatch_apply::{Kind, Set, Typing, Writer};
use listwatch_benches::runtime;
use listwatch_json::{Value, json};
use time::OffsetDateTime;
use tower_service::Service as _;

const PATH: &str = "/apis/apps/v1/namespaces/default/deployments";

/// A Deployment of about 1 KiB as a client sends it.
fn deployment(name: &str, image: &str) -> Value {
    let container = |name: &str| {
        json!({
            "name": name, "image": image,
            "ports": [{"containerPort": 8080, "name": "http"}, {"containerPort": 9090, "name": "metrics"}],
            "env": [{"name": "MODE", "value": "production"}, {"name": "LEVEL", "value": "info"}, {"name": "REGION", "value": "north"}],
            "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        })
    };
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "shop", "tier": "front"}},
        "spec": {
            "replicas": 3, "selector": {"matchLabels": {"app": "shop"}},
            "template": {
                "metadata": {"labels": {"app": "shop", "tier": "front"}},
                "spec": {
                    "containers": [container("web"), container("sidecar")],
                    "volumes": [{"name": "data", "emptyDir": {}}],
                },
            },
        },
    })
}

/// The cost of field ownership alone: pure functions on trees.
fn ownership(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("writes");
    let typing = Typing::of_built_in("apps/v1", "Deployment").expect("a built-in kind");
    let kind = Kind::built_in("apps/v1", "Deployment", typing);
    let reset = Set::new();
    let by = |manager| Writer { manager, subresource: "", now: OffsetDateTime::UNIX_EPOCH, reset: &reset };
    let config = deployment("d", "shop:1");
    assert!((700..1_600).contains(&config.to_string().len()), "{} bytes", config.to_string().len());
    group.bench_function("account of a create", |bencher| {
        bencher.iter_batched_ref(
            || config.clone(),
            |new| kind.update(None, new, by("bench")),
            criterion::BatchSize::SmallInput,
        );
    });
    let live = kind.apply(None, &config, by("bench"), false).expect("nothing is in its way");
    let changed = deployment("d", "shop:2");
    group.bench_function("account of an update", |bencher| {
        let mut new = live.clone();
        new["spec"] = changed["spec"].clone();
        bencher.iter_batched_ref(
            || new.clone(),
            |new| kind.update(Some(&live), new, by("other")),
            criterion::BatchSize::SmallInput,
        );
    });
    group.bench_function("merge of an apply", |bencher| {
        bencher.iter(|| kind.apply(Some(&live), black_box(&changed), by("bench"), false).expect("no conflict"));
    });
    group.finish();
}

/// Complete requests to a server in this process.
fn requests(criterion: &mut Criterion) {
    let runtime = runtime();
    let server = runtime.block_on(ApiServer::builder().build()).expect("a server");
    let send = |method: &str, target: &str, media_type: &str, body: Bytes| {
        let mut service = server.service();
        let request = Request::builder()
            .method(method)
            .uri(target)
            .header("content-type", media_type)
            .header("user-agent", "bench/1")
            .body(Full::new(body))
            .expect("a request");
        runtime.block_on(async move {
            let response = service.call(request).await.expect("an answer");
            let code = response.status().as_u16();
            let body = response.into_body().collect().await.expect("a body").to_bytes();
            assert!(code < 300, "{code}: {}", String::from_utf8_lossy(&body));
            body
        })
    };
    let mut group = criterion.benchmark_group("writes");
    let mut turn = 0_u64;
    let mut next = move || {
        turn += 1;
        turn
    };
    group.bench_function("create", |bencher| {
        bencher.iter_batched(
            || Bytes::from(deployment(&format!("new-{}", next()), "shop:1").to_string()),
            |body| send("POST", PATH, "application/json", body),
            criterion::BatchSize::SmallInput,
        );
    });
    let apply = |turn: u64| {
        let body = Bytes::from(deployment("d", &format!("shop:{turn}")).to_string());
        send("PATCH", &format!("{PATH}/d?fieldManager=bench"), "application/apply-patch+yaml", body)
    };
    apply(0);
    group.bench_function("apply", |bencher| bencher.iter(|| apply(next())));
    group.bench_function("apply of what is there", |bencher| {
        apply(0);
        bencher.iter(|| apply(0));
    });
    group.bench_function("update", |bencher| {
        bencher.iter_batched(
            || Bytes::from(deployment("d", &format!("shop:{}", next())).to_string()),
            |body| send("PUT", &format!("{PATH}/d"), "application/json", body),
            criterion::BatchSize::SmallInput,
        );
    });
    let annotated: fn(u64) -> String = |turn| format!(r#"{{"metadata":{{"annotations":{{"turn":"{turn}"}}}}}}"#);
    let added: fn(u64) -> String =
        |turn| format!(r#"[{{"op":"add","path":"/metadata/annotations","value":{{"turn":"{turn}"}}}}]"#);
    let patches = [
        ("json", "application/json-patch+json", added),
        ("merge", "application/merge-patch+json", annotated),
        ("strategic", "application/strategic-merge-patch+json", annotated),
    ];
    for (what, media_type, body) in patches {
        group.bench_function(format!("{what} patch"), |bencher| {
            bencher.iter(|| {
                let body = body(next());
                send("PATCH", &format!("{PATH}/d"), media_type, Bytes::from(body))
            });
        });
    }
    group.finish();
}

criterion_group!(benches, ownership, requests);
criterion_main!(benches);
