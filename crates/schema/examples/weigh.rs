//! `weigh FILE…`: prints the memory of compiled CustomResourceDefinition schemas in bytes, and the
//! errors of the schemas. Each file is one definition as JSON.
//!
//! `kubectl get crd -o json | jq -c '.items[]' | split -l 1 - crd-` creates such files.
#![allow(unsafe_code, reason = "an allocator that counts has to be one; it only passes on")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use listwatch_json::Value;
use listwatch_schema::{CheckContext, Interner, Requirements, Schema, check};

static OUT: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator with a count of the allocated bytes.
struct Counting;

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        OUT.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller fulfills the same requirements as for the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        OUT.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut total = (0, 0, 0);
    println!("{:>9} {:>9} {:>7} {:>10}  definition", "JSON", "in memory", "nodes", "check");
    for path in std::env::args().skip(1) {
        let text = std::fs::read_to_string(&path)?;
        let definition: Value = serde_json::from_str(&text)?;
        let name = definition["metadata"]["name"].as_str().unwrap_or(&path).to_owned();
        let versions: Vec<&Value> = definition["spec"]["versions"].as_array().into_iter().flatten().collect();
        let started = Instant::now();
        let mut errors = Vec::new();
        for version in &versions {
            let context = CheckContext {
                at: "spec.validation",
                status_subresource: version["subresources"].get("status").is_some(),
                unchanged: false,
                requirements: Requirements::ALL,
            };
            errors.extend(check(&version["schema"]["openAPIV3Schema"], context)?.errors);
        }
        let took = started.elapsed();
        let before = OUT.load(Ordering::Relaxed);
        let mut interner = Interner::default();
        let mut schemas = Vec::with_capacity(versions.len());
        for version in &versions {
            schemas.push(Schema::parse_shared(&version["schema"]["openAPIV3Schema"], &mut interner)?);
        }
        drop(interner);
        let bytes = OUT.load(Ordering::Relaxed) - before;
        let nodes: usize = schemas.iter().map(Schema::node_count).sum();
        println!("{:>9} {bytes:>9} {nodes:>7} {took:>10.1?}  {name}", text.len());
        for error in errors {
            println!("  {}: {}", error.field, error.message);
        }
        total = (total.0 + 1, total.1 + text.len(), total.2 + bytes);
    }
    let (count, json, bytes) = total;
    println!("{count} definitions, {} bytes of JSON and {} in memory each", json / count.max(1), bytes / count.max(1));
    Ok(())
}
