//! Inspects the objects of a store or export: totals, and values that do not match their keys.

use std::collections::BTreeMap;

use listwatch_meta::Key;
use listwatch_meta::scan::{self, PathSet, Span};

use super::sort::Sorter;
use super::{FileError, Phase, Progress, ProgressFn, Record, Records, RecordsError, is_scratch};

/// The largest number of listed findings. Further findings are only counted.
pub const FINDINGS_MAX: usize = 20;

/// The largest number of resources that are counted separately. Objects of further resources are
/// counted as `…`.
pub const RESOURCES_MAX: usize = 4_096;

/// The prefix of Kubernetes' protobuf values in etcd.
const PROTOBUF: &[u8] = b"k8s\0";
/// The prefix of values that Kubernetes encrypted.
const ENCRYPTED: &[u8] = b"k8s:enc:";

/// A problem of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The value is neither a JSON object nor one of Kubernetes' other encodings.
    Undecodable {
        /// The key.
        key: Key,
        /// The problem.
        what: String,
    },
    /// The object's metadata does not match its key.
    Misplaced {
        /// The key.
        key: Key,
        /// `namespace/name`, or `name`, from the object's metadata.
        says: String,
    },
    /// A revision is impossible: creation after the last change, or a change after the source's
    /// revision.
    Revision {
        /// The key.
        key: Key,
    },
}

/// The totals of a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceTotals {
    /// The number of objects.
    pub objects: u64,
    /// The total bytes of the objects' keys and values.
    pub bytes: u64,
    /// The size of the largest object in bytes.
    pub largest: u64,
}

/// The result of an inspection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    /// All objects.
    pub total: ResourceTotals,
    /// Totals by key prefix, such as `pods` or `apps/deployments`.
    pub resources: BTreeMap<String, ResourceTotals>,
    /// Objects with a time to live.
    pub with_ttl: u64,
    /// Objects in protobuf.
    pub protobuf: u64,
    /// Encrypted objects, which need the configuration with their keys.
    pub encrypted: u64,
    /// Objects that were last changed in the same transaction as another object. Neither listwatch
    /// nor kube-apiserver writes such objects.
    pub shared_revisions: u64,
    /// The number of findings.
    pub findings: u64,
    /// The first [`FINDINGS_MAX`] findings.
    pub examples: Vec<Finding>,
}

/// The paths of the values that identify an object.
struct Paths {
    paths: PathSet,
    metadata: usize,
    name: usize,
    namespace: usize,
}

impl Inspection {
    fn finds(&mut self, finding: Finding) {
        self.findings += 1;
        if self.examples.len() < FINDINGS_MAX {
            self.examples.push(finding);
        }
    }

    fn counts(&mut self, resource: &str, weight: u64) {
        let known = self.resources.contains_key(resource) || self.resources.len() < RESOURCES_MAX;
        let of_resource = self.resources.entry(if known { resource } else { "…" }.to_owned()).or_default();
        for totals in [of_resource, &mut self.total] {
            totals.objects += 1;
            totals.bytes += weight;
            totals.largest = totals.largest.max(weight);
        }
    }
}

/// Inspects all records of a store or export.
///
/// # Errors
/// [`RecordsError`] when the source cannot be read. Damage of an embedded store or file ends the
/// inspection with that error; a finding does not.
pub async fn inspect(records: &mut dyn Records, progress: &mut ProgressFn<'_>) -> Result<Inspection, RecordsError> {
    let io = |error| RecordsError::File(FileError::Io(error));
    let mut paths = PathSet::new();
    let metadata = paths.add(&["metadata"]);
    let (name, namespace) = (paths.add(&["metadata", "name"]), paths.add(&["metadata", "namespace"]));
    let paths = Paths { paths, metadata, name, namespace };
    let (clock, total) = (records.revision(), records.count());
    let mut found = Inspection::default();
    let mut revisions = Sorter::new();
    loop {
        let page = records.next_page().await?;
        if page.is_empty() {
            break;
        }
        for record in page.iter().filter(|record| !is_scratch(&record.entry.key)) {
            look(record, &paths, &mut found);
            let entry = &record.entry;
            if entry.created.is_zero() || entry.created > entry.modified || entry.modified > clock {
                found.finds(Finding::Revision { key: entry.key.clone() });
            }
            revisions.push((entry.modified.get(), 0)).map_err(io)?;
        }
        progress(Progress { phase: Phase::Read, done: found.total.objects, total });
    }
    let (mut last, mut alone) = (0, true);
    for revision in revisions.finish().map_err(io)? {
        let (revision, _) = revision.map_err(io)?;
        if revision == last {
            found.shared_revisions += 1 + u64::from(alone);
        }
        (alone, last) = (revision != last, revision);
    }
    Ok(found)
}

/// Inspects one object.
fn look(record: &Record, paths: &Paths, found: &mut Inspection) {
    let (key, value) = (&record.entry.key, &record.entry.value[..]);
    found.with_ttl += u64::from(record.ttl.is_some());
    let weight = record.weight() as u64;
    let path = key.as_str().trim_start_matches('/');
    // Without the object, the length of the resource's prefix is unknown.
    let first = path.split('/').next().unwrap_or(path);
    if value.starts_with(PROTOBUF) || value.starts_with(ENCRYPTED) {
        found.protobuf += u64::from(value.starts_with(PROTOBUF));
        found.encrypted += u64::from(value.starts_with(ENCRYPTED));
        return found.counts(first, weight);
    }
    let mut spans = vec![Span::default(); paths.paths.len()];
    if let Err(malformed) = scan::find(value, &paths.paths, &mut spans) {
        found.counts(first, weight);
        return found.finds(Finding::Undecodable { key: key.clone(), what: malformed.to_string() });
    }
    if spans[paths.metadata].is_absent() {
        found.counts(first, weight);
        return found.finds(Finding::Undecodable { key: key.clone(), what: "it has no metadata".to_owned() });
    }
    let text = |index: usize| {
        let span: Span = spans[index];
        let raw = if span.is_absent() { &[][..] } else { span.of(value) };
        String::from_utf8_lossy(raw.strip_prefix(b"\"").and_then(|raw| raw.strip_suffix(b"\"")).unwrap_or(raw))
            .into_owned()
    };
    let (name, namespace) = (text(paths.name), text(paths.namespace));
    let own = if namespace.is_empty() { name.clone() } else { format!("{namespace}/{name}") };
    match path.strip_suffix(own.as_str()).and_then(|rest| rest.strip_suffix('/')) {
        Some(resource) => found.counts(resource, weight),
        // Values with JSON escapes are not compared, because names of Kubernetes have none.
        None => {
            found.counts(first, weight);
            if !own.contains('\\') {
                found.finds(Finding::Misplaced { key: key.clone(), says: own });
            }
        }
    }
}
