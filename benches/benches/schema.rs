//! `schema`: the cost of creating a definition, and of each write of an object: pruning,
//! defaulting, validation, and rules.
#![allow(missing_docs, reason = "criterion's macros make functions without a doc")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use listwatch_json::{Value, json};
use listwatch_schema::{CheckContext, Requirements, Schema, check};

/// A typical kind of an operator: a workload with containers, ports, resources and conditions.
fn schema(ruled: bool) -> Value {
    let text = json!({"type": "string", "maxLength": 253});
    let port = json!({
        "type": "object", "required": ["port"],
        "properties": {
            "port": {"type": "integer", "format": "int32", "minimum": 1, "maximum": 65535},
            "protocol": {"type": "string", "enum": ["TCP", "UDP"], "default": "TCP"},
            "name": {"type": "string", "maxLength": 15, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"},
        },
    });
    let container = json!({
        "type": "object", "required": ["name", "image"],
        "properties": {
            "name": text, "image": {"type": "string", "minLength": 1, "maxLength": 512},
            "args": {"type": "array", "maxItems": 32, "items": text},
            "env": {
                "type": "array", "maxItems": 64, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "required": ["name"], "properties": {"name": text, "value": {"type": "string", "maxLength": 1024}}},
            },
            "ports": {
                "type": "array", "maxItems": 16, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "protocol"],
                "items": port,
            },
            "resources": {
                "type": "object",
                "properties": {"limits": {"type": "object", "maxProperties": 8, "additionalProperties": {"x-kubernetes-int-or-string": true}}},
            },
        },
    });
    let mut schema = json!({
        "type": "object",
        "properties": {
            "spec": {
                "type": "object", "required": ["containers"],
                "properties": {
                    "replicas": {"type": "integer", "format": "int32", "minimum": 0, "maximum": 1000, "default": 1},
                    "paused": {"type": "boolean", "default": false},
                    "selector": {"type": "object", "maxProperties": 16, "additionalProperties": text},
                    "containers": {"type": "array", "maxItems": 8, "items": container},
                    "strategy": {
                        "type": "object", "default": {},
                        "properties": {"type": {"type": "string", "enum": ["Recreate", "Rolling"], "default": "Rolling"}},
                    },
                },
            },
            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        },
    });
    if ruled {
        schema["properties"]["spec"]["x-kubernetes-validations"] = json!([
            {"rule": "!self.paused || self.replicas == 0", "message": "what is paused has no replicas"},
            {"rule": "self.containers.all(c, c.name.matches('^[a-z-]+$'))", "message": "names are words"},
            {"rule": "self.replicas >= oldSelf.replicas - 10", "message": "not all at once"},
        ]);
    }
    schema
}

/// An object of about 1 KiB.
fn object() -> Value {
    let container = |name: &str| {
        json!({
            "name": name, "image": format!("registry.example.com/team/{name}:1.2.3"),
            "args": ["--listen=0.0.0.0:8080", "--verbose"],
            "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}, {"name": "C", "value": "3"}],
            "ports": [{"port": 8080, "name": "http"}, {"port": 9090, "name": "metrics", "protocol": "TCP"}],
            "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}},
        })
    };
    json!({
        "apiVersion": "example.com/v1", "kind": "Workload",
        "metadata": {"name": "shop", "namespace": "team-1", "labels": {"app": "shop"}},
        "spec": {
            "replicas": 3, "selector": {"app": "shop", "tier": "front"},
            "containers": [container("shop"), container("proxy"), container("log-shipper")],
        },
    })
}

fn definitions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("schema");
    for (name, ruled) in [("plain", false), ("ruled", true)] {
        let source = schema(ruled);
        let context = CheckContext {
            at: "spec.validation",
            status_subresource: true,
            unchanged: false,
            requirements: Requirements::ALL,
        };
        assert_eq!(check(&source, context).expect("a schema").errors, [], "the schema of this bench is good");
        group.bench_function(format!("check definition/{name}"), |bencher| {
            bencher.iter(|| check(black_box(&source), context));
        });
        group.bench_function(format!("compile/{name}"), |bencher| bencher.iter(|| Schema::parse(black_box(&source))));
    }
    group.finish();
}

fn objects(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("schema");
    for (name, ruled) in [("plain", false), ("ruled", true)] {
        let schema = Schema::parse(&schema(ruled)).expect("a schema");
        let mut stored = object();
        schema.default(&mut stored);
        assert_eq!(schema.prune(&mut stored), [""; 0], "the object of this bench is known");
        assert_eq!(schema.validate(&stored), [], "the object of this bench is valid");
        group.bench_function(format!("prune and default/{name}"), |bencher| {
            let prepare = |mut object: Value| {
                schema.prune_nulls(&mut object);
                schema.default(&mut object);
                let unknown = schema.prune(&mut object);
                (object, unknown)
            };
            bencher.iter_batched(object, prepare, BatchSize::SmallInput);
        });
        group
            .bench_function(format!("validate/{name}"), |bencher| bencher.iter(|| schema.validate(black_box(&stored))));
        let mut changed = stored.clone();
        changed["spec"]["replicas"] = json!(4);
        group.bench_function(format!("validate update/{name}"), |bencher| {
            bencher.iter(|| schema.validate_update(black_box(&changed), &stored));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(500));
    targets = definitions, objects
}
criterion_main!(benches);
