//! `list`: the cost of a list from the request to the last body byte: of all objects, of one
//! namespace, by label, and paged. The figures are per byte of the body, for comparison with the
//! cost of HTTP.
#![allow(missing_docs, reason = "criterion's macros make functions without a doc")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use listwatch_benches::{NAMESPACES, filled, runtime};
use listwatch_cacher::{Cacher, Scope};
use listwatch_meta::{ListOptions, ResourceVersion};
use listwatch_wire::{ListBody, ListMeta, ListStyle};

/// Lists all pages with these options and returns the total size in bytes.
async fn read(cacher: &Cacher, scope: &Scope, options: &ListOptions) -> usize {
    let (mut options, mut bytes) = (options.clone(), 0);
    loop {
        let request = options.list(cacher.shape()).expect("valid options");
        let list = cacher.list(scope, &request).await.expect("a list");
        let meta = ListMeta {
            api_version: "v1".to_owned(),
            kind: "ConfigMapList".to_owned(),
            resource_version: list.revision.get().to_string(),
            continue_token: list.continue_token.clone().unwrap_or_default(),
            remaining_item_count: None,
            shard_selector: String::new(),
        };
        bytes += ListBody::new(&meta, ListStyle::Typed, list.items).map(|chunk| black_box(chunk).len()).sum::<usize>();
        match list.continue_token {
            Some(token) => {
                options = ListOptions { continue_token: token, resource_version: ResourceVersion::default(), ..options }
            }
            None => return bytes,
        }
    }
}

fn list(criterion: &mut Criterion) {
    let runtime = runtime();
    let cached = ListOptions { resource_version: ResourceVersion::new("0"), ..ListOptions::default() };
    let cases = [
        ("whole", Scope::All, cached.clone()),
        ("namespace", Scope::Namespace("team-1".to_owned()), cached.clone()),
        ("by label", Scope::All, ListOptions { label_selector: "tier=front".to_owned(), ..cached }),
        ("pages of 500", Scope::All, ListOptions { limit: 500, ..ListOptions::default() }),
    ];
    let mut group = criterion.benchmark_group("list");
    for objects in [1_000, 20_000] {
        let (_store, cacher) = runtime.block_on(filled(objects));
        for (name, scope, options) in &cases {
            let bytes = runtime.block_on(read(&cacher, scope, options));
            assert!(bytes > objects / NAMESPACES * 512, "{name} of {objects} objects has {bytes} bytes only");
            group.throughput(Throughput::Bytes(bytes as u64));
            group.bench_function(BenchmarkId::new(*name, objects), |bencher| {
                bencher.iter(|| runtime.block_on(read(&cacher, scope, options)));
            });
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(3));
    targets = list
}
criterion_main!(benches);
