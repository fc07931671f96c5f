//! The subcommands of `listwatch storage`, and their output.

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use listwatch_storage::transfer::{
    self, CheckedExport, Comparison, Difference, ExportError, ExportFile, ExportRecords, ExportSummary, FileError,
    Finding, FormatError, ImportOptions, ImportSummary, Inspection, Records, RecordsError,
};
#[cfg(feature = "embedded")]
use listwatch_storage::{EmbeddedOptions, EmbeddedStorage, OpenError};
use listwatch_storage::{ReadError, Storage, StoreFault, StoreStats};
use serde_json::{Value, json};

use super::location::{Location, Opened, is_stdio, open_file, open_seekable};
use super::report::{ProgressLine, bytes, count, seconds};
use super::{Compact, Copy, Export, Failure, Import, ImportFlags, Output, Stats, Verify};

/// The exit code of `verify` after a finding.
const EXIT_FINDINGS: u8 = 3;

impl Export {
    pub(super) async fn run(self) -> Result<ExitCode, Failure> {
        let location = Location::of_flags(self.store);
        let stdout = is_stdio(&self.file);
        if stdout && std::io::stdout().is_terminal() {
            return Err("an export is no text for a terminal; name a file, or send it on with | or >".into());
        }
        if !stdout && !self.force && self.file.try_exists()? {
            return Err(exists(&self.file));
        }
        let began = Instant::now();
        let store = location.open().await?;
        let description = describe(&store, &location).await;
        let mut progress_line = ProgressLine::new();
        let mut progress = |progress| progress_line.step(progress);
        let written = if stdout {
            let mut out = std::io::BufWriter::new(std::io::stdout());
            transfer::export(store.source(), &description, &mut out, &mut progress).await
        } else {
            ExportFile::new(&self.file, self.force).write(store.source(), &description, &mut progress).await
        };
        drop(progress_line);
        store.close().await;
        let summary = written.map_err(|error| match error {
            ExportError::Io(error) if error.kind() == std::io::ErrorKind::AlreadyExists => exists(&self.file),
            ExportError::Io(error) if !stdout => format!("cannot write {}: {error}", self.file.display()).into(),
            other => Failure::from(other),
        })?;
        let result = format!("exported {} from {location} in {}", export_totals(&summary), seconds(began.elapsed()));
        if stdout {
            eprintln!("{result}")
        } else {
            println!("{result}, to {}", self.file.display())
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn exists(file: &std::path::Path) -> Failure {
    format!("{} is there already; choose another name, or replace it with --force", file.display()).into()
}

fn export_totals(summary: &ExportSummary) -> String {
    let ExportSummary { header, end } = summary;
    format!("{} objects ({}) at revision {}", count(end.records), bytes(end.bytes), header.revision)
}

/// The description of the source in an export's header.
async fn describe(store: &Opened, location: &Location) -> String {
    let engine = store.source().stats().await.map(|stats| stats.description);
    engine.map_or_else(|_| location.to_string(), |engine| format!("{location} ({engine})"))
}

impl Import {
    pub(super) async fn run(self) -> Result<ExitCode, Failure> {
        let location = Location::of_flags(self.store);
        let file = open_seekable(&self.file)?;
        let mut progress_line = ProgressLine::new();
        let name = if is_stdio(&self.file) { "standard input".to_owned() } else { self.file.display().to_string() };
        let mut export = CheckedExport::check(file, &mut |progress| progress_line.step(progress))
            .map_err(|error| format!("{name}: {error}"))?;
        drop(progress_line);
        bring(&mut export, &location, &self.import, &name).await
    }
}

impl Copy {
    pub(super) async fn run(self) -> Result<ExitCode, Failure> {
        let from = Location::of_text(&self.from, &self.etcd);
        let mut to_flags = self.etcd.clone();
        to_flags.etcd_prefix = self.to_etcd_prefix.unwrap_or(to_flags.etcd_prefix);
        let to = Location::of_text(&self.to, &to_flags);
        if let Location::File(path) = &to {
            let path = path.display();
            return Err(
                format!("{path} is a file; `listwatch storage export` writes files, copy goes to a store").into()
            );
        }
        let file = match &from {
            Location::File(path) => open_seekable(path)?,
            from => {
                // The temporary file is complete before the first object is written. The import can read it in the
                // order of revisions.
                let store = from.open().await?;
                let description = describe(&store, from).await;
                let mut out = std::io::BufWriter::new(transfer::spool(std::io::empty())?);
                let mut progress_line = ProgressLine::new();
                transfer::export(store.source(), &description, &mut out, &mut |progress| progress_line.step(progress))
                    .await?;
                drop(progress_line);
                store.close().await;
                out.into_inner().map_err(std::io::IntoInnerError::into_error)?
            }
        };
        let mut progress_line = ProgressLine::new();
        let checked = CheckedExport::check(file, &mut |progress| progress_line.step(progress));
        let mut export = checked.map_err(|error| format!("{from}: {error}"))?;
        drop(progress_line);
        bring(&mut export, &to, &self.import, &from.to_string()).await
    }
}

/// Imports a checked export into a store, and prints the result.
async fn bring(
    export: &mut CheckedExport<std::fs::File>,
    location: &Location,
    flags: &ImportFlags,
    from: &str,
) -> Result<ExitCode, Failure> {
    let began = Instant::now();
    let source = export.header().revision;
    let clock_at_least = listwatch_meta::Revision::new(flags.clock_at_least);
    #[cfg(feature = "embedded")]
    if let Location::Embedded(dir) = location {
        let path = crate::store::embedded_path(dir);
        if !EmbeddedStorage::exists(&path) {
            private_directory(dir)?;
            let mut progress_line = ProgressLine::new();
            let options = EmbeddedOptions::default();
            let summary = EmbeddedStorage::from_export(&path, options, export, clock_at_least, &mut |progress| {
                progress_line.step(progress)
            })?;
            drop(progress_line);
            let took = seconds(began.elapsed());
            println!("imported {} objects from {from} into {location} in {took}", count(summary.created));
            println!("the revision is {}, the source's is {source}; every object has kept its own", summary.revision);
            if summary.moved > 0 {
                let moved = count(summary.moved);
                println!("but {moved}, which shared one with another object and have a later one now");
            }
            return Ok(ExitCode::SUCCESS);
        }
    }
    let store = location.open().await?;
    let options = ImportOptions { if_exists: flags.if_exists.into(), clock_at_least, keep_clock: flags.keep_clock };
    let target: Arc<dyn Storage> = store.storage();
    let mut progress_line = ProgressLine::new();
    let done = transfer::import(&target, export, options, &mut |progress| progress_line.step(progress)).await;
    drop((progress_line, target));
    store.close().await;
    let ImportSummary { created, present, skipped, replaced, resumed, raised, revision, .. } = done?;
    let took = seconds(began.elapsed());
    println!("imported {} objects from {from} into {location} in {took}", count(created + replaced));
    for (number, what) in [
        (present, "were there already, with the same value"),
        (skipped, "were there with another value, which stayed"),
        (replaced, "of them took the location of another value"),
    ] {
        if number > 0 {
            println!("{} {what}", count(number));
        }
    }
    if resumed {
        println!("an interrupted import went on");
    }
    if flags.keep_clock {
        println!("the revision is {revision}; the source was at {source} (--keep-clock)");
    } else {
        let raised = if raised > 0 { format!(", raised by {} first", count(raised)) } else { String::new() };
        println!("the revision is {revision}{raised}; every object's is above the source's {source}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Creates a data directory as `serve` does: only its owner can read the keys and Secrets in it.
#[cfg(feature = "embedded")]
fn private_directory(dir: &std::path::Path) -> Result<(), Failure> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    let failed = |error| format!("cannot create the data directory {}: {error}", dir.display());
    Ok(builder.create(dir).map_err(failed)?)
}

impl Verify {
    pub(super) async fn run(self) -> Result<ExitCode, Failure> {
        let flags = self.store.etcd.clone();
        let location = match &self.location {
            Some(text) => Location::of_text(text, &flags),
            None => Location::of_flags(self.store),
        };
        let against = self.against.as_deref().map(|text| Location::of_text(text, &flags));
        let began = Instant::now();
        let mut report = VerifyReport::default();
        report.look_at(&location).await?;
        if let Some(against) = against
            && report.is_readable
        {
            report.compare(&location, &against).await?;
        }
        match self.output {
            Output::Text => report.print(&location, seconds(began.elapsed())),
            Output::Json => println!("{:#}", report.json(&location)),
        }
        Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FINDINGS) })
    }
}

/// The findings of `verify`.
#[derive(Default)]
struct VerifyReport {
    /// The number of problems.
    found: u64,
    /// Descriptions of the first problems.
    problems: Vec<String>,
    /// Notes that report no damage.
    notes: Vec<String>,
    /// The names of the parts that were checked.
    checked: Vec<String>,
    inspection: Inspection,
    comparison: Option<(Comparison, Location)>,
    is_readable: bool,
}

impl VerifyReport {
    fn problem(&mut self, what: String) {
        self.found += 1;
        self.problems.push(what);
    }

    async fn look_at(&mut self, location: &Location) -> Result<(), Failure> {
        let mut progress_line = ProgressLine::new();
        let mut progress = |progress| progress_line.step(progress);
        let inspected = match location {
            Location::File(path) => match ExportRecords::begin(open_file(path)?) {
                Ok(mut records) => {
                    let header = records.header().clone();
                    self.checked.push(format!("an export of {} at revision {}", header.source, header.revision));
                    transfer::inspect(&mut records, &mut progress).await
                }
                Err(error) => Err(error.into()),
            },
            location => match self.open(location).await? {
                None => return Ok(()),
                Some(store) => {
                    let inspected = match store.source().records().await {
                        Ok(mut records) => transfer::inspect(&mut *records, &mut progress).await,
                        Err(error) => Err(error.into()),
                    };
                    #[cfg(feature = "etcd3")]
                    if let Opened::Etcd(etcd) = &store {
                        let foreign = etcd.foreign_keys();
                        if foreign > 0 {
                            self.notes.push(format!(
                                "{} keys below the prefix are no object's location, and are passed over",
                                count(foreign)
                            ));
                        }
                    }
                    store.close().await;
                    inspected
                }
            },
        };
        match inspected {
            Ok(inspection) => {
                self.is_readable = true;
                self.found += inspection.findings;
                self.problems.extend(inspection.examples.iter().map(finding));
                let Inspection { total, protobuf, encrypted, shared_revisions, .. } = &inspection;
                self.checked.push(format!("{} objects, {}", count(total.objects), bytes(total.bytes)));
                for (number, what) in [
                    (protobuf, "are protobuf, as kube-apiserver stores built-in kinds"),
                    (encrypted, "are encrypted: a server needs the keys in its --encryption-provider-config"),
                    (shared_revisions, "share their revision with another one: somebody wrote them in one transaction"),
                ] {
                    if *number > 0 {
                        self.notes.push(format!("{} objects {what}", count(*number)));
                    }
                }
                self.inspection = inspection;
                Ok(())
            }
            Err(error) if is_damage(&error) => {
                self.problem(error.to_string());
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a store, and runs the checks that need the open store. Returns `None` if the store is too damaged to open.
    async fn open(&mut self, location: &Location) -> Result<Option<Opened>, Failure> {
        let store = match location.open().await {
            Ok(store) => store,
            #[cfg(feature = "embedded")]
            Err(error) if matches!(error.downcast_ref(), Some(OpenError::Corrupt { .. })) => {
                self.problem(error.to_string());
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        #[cfg(feature = "embedded")]
        if let Opened::Embedded(embedded) = &store {
            match embedded.verify().await {
                Ok(seen) => {
                    self.checked.push(format!(
                        "{} revisions on disk, {} to {}, {} of values, checksums and index",
                        count(seen.revisions),
                        seen.oldest,
                        seen.revision,
                        bytes(seen.value_bytes)
                    ));
                    self.found += seen.found;
                    self.problems.extend(seen.findings.iter().map(ToString::to_string));
                    if !seen.index_compared {
                        self.notes.push("history moved on meanwhile: the index was not compared with all of it".into());
                    }
                }
                Err(fault @ StoreFault::Corrupt(_)) => self.problem(fault.to_string()),
                Err(fault) => return Err(fault.into()),
            }
        }
        Ok(Some(store))
    }

    async fn compare(&mut self, first: &Location, second: &Location) -> Result<(), Failure> {
        let (one, other) = (ComparisonSide::of(first).await?, ComparisonSide::of(second).await?);
        let mut progress_line = ProgressLine::new();
        let compared = {
            let (mut one, mut other) = (one.records().await?, other.records().await?);
            transfer::compare(&mut *one, &mut *other, &mut |progress| progress_line.step(progress)).await
        };
        drop(progress_line);
        one.close().await;
        other.close().await;
        match compared {
            Ok(comparison) => {
                self.found += comparison.differences + comparison.out_of_order;
                for difference in &comparison.examples {
                    self.problems.push(match difference {
                        Difference::OnlyFirst(key) => format!("{key} is only in {first}"),
                        Difference::OnlySecond(key) => format!("{key} is only in {second}"),
                        Difference::Value(key) => format!("{key} has another value in {second}"),
                        Difference::Ttl(key) => format!("{key} removes itself in one of the two only"),
                    });
                }
                if comparison.out_of_order > 0 {
                    let number = count(comparison.out_of_order);
                    self.problems.push(format!("{number} objects were changed in another order in {second}"));
                }
                self.comparison = Some((comparison, second.clone()));
                Ok(())
            }
            Err(error) if is_damage(&error) => {
                self.problem(format!("{second}: {error}"));
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn is_clean(&self) -> bool {
        self.found == 0
    }

    fn print(&self, location: &Location, took: String) {
        self.checked.iter().for_each(|checked| println!("looked at {checked}"));
        if let Some((comparison, against)) = &self.comparison {
            let (same, same_revision) = (count(comparison.same), count(comparison.same_revision));
            println!("compared with {against}: {same} objects are the same, {same_revision} at the same revision");
        }
        self.notes.iter().for_each(|note| println!("note: {note}"));
        self.problems.iter().for_each(|problem| println!("WRONG: {problem}"));
        let unnamed = self.found.saturating_sub(self.problems.len() as u64);
        if unnamed > 0 {
            println!("WRONG: … and {} more", count(unnamed));
        }
        if self.is_clean() {
            println!("{location} is as it should be ({took})");
        } else {
            println!(
                "{location}: {} things are wrong ({took}); do not write to it, restore it from a backup",
                count(self.found)
            );
        }
    }

    fn json(&self, location: &Location) -> Value {
        let Inspection { total, with_ttl, protobuf, encrypted, shared_revisions, .. } = &self.inspection;
        let mut report = json!({
            "place": location.to_string(),
            "clean": self.is_clean(),
            "found": self.found,
            "problems": self.problems,
            "notes": self.notes,
            "checked": self.checked,
            "objects": total.objects,
            "bytes": total.bytes,
            "withTTL": with_ttl,
            "protobuf": protobuf,
            "encrypted": encrypted,
            "sharedRevisions": shared_revisions,
        });
        if let Some((comparison, against)) = &self.comparison {
            report["comparison"] = json!({
                "against": against.to_string(),
                "same": comparison.same,
                "sameRevision": comparison.same_revision,
                "differences": comparison.differences,
                "outOfOrder": comparison.out_of_order,
            });
        }
        report
    }
}

fn finding(finding: &Finding) -> String {
    match finding {
        Finding::Undecodable { key, what } => format!("{key} cannot be read as an object: {what}"),
        Finding::Misplaced { key, says } => format!("{key} holds an object that says it is {says:?}"),
        Finding::Revision { key } => format!("{key} has revisions that cannot be"),
    }
}

/// Whether the error reports damaged data, rather than a failed read.
fn is_damage(error: &RecordsError) -> bool {
    match error {
        RecordsError::File(FileError::Format(error)) => {
            matches!(error, FormatError::Torn { .. } | FormatError::Damaged { .. } | FormatError::Foreign { .. })
        }
        RecordsError::Store(ReadError::Fault(fault)) => matches!(fault, StoreFault::Corrupt(_)),
        _ => false,
    }
}

/// One side of a comparison. A store stays open during the comparison.
enum ComparisonSide {
    Store(Opened),
    File(std::path::PathBuf),
}

impl ComparisonSide {
    async fn of(location: &Location) -> Result<Self, Failure> {
        match location {
            Location::File(path) if is_stdio(path) => Err("standard input can be read once only; name a file".into()),
            Location::File(path) => Ok(ComparisonSide::File(path.clone())),
            location => location.open().await.map(ComparisonSide::Store),
        }
    }

    async fn records(&self) -> Result<Box<dyn Records + '_>, Failure> {
        match self {
            ComparisonSide::Store(store) => Ok(store.source().records().await?),
            ComparisonSide::File(path) => Ok(Box::new(ExportRecords::begin(open_file(path)?)?)),
        }
    }

    async fn close(self) {
        if let ComparisonSide::Store(store) = self {
            store.close().await;
        }
    }
}

impl Compact {
    pub(super) async fn run(self) -> Result<ExitCode, Failure> {
        let location = Location::of_flags(self.store);
        let store = location.open().await?;
        let before = store.source().stats().await?;
        let to = self.revision.map_or(before.revision, listwatch_meta::Revision::new);
        match store.source().compact(to).await {
            Ok(()) | Err(ReadError::Compacted { .. }) => {}
            Err(ReadError::Future { requested, current }) => {
                return Err(format!("revision {requested} has not happened yet, {location} is at {current}").into());
            }
            Err(error) => return Err(error.into()),
        }
        let room = reclaim(&store).await?;
        let after = store.source().stats().await?;
        store.close().await;
        let (from, to) = (before.oldest, after.oldest);
        let revisions = count(to.get().saturating_sub(from.get()));
        println!("forgot {revisions} revisions of {location}: it is held from {to} on, before from {from}");
        if let (Some(before), Some(after)) = (before.disk_bytes, after.disk_bytes) {
            println!("on disk {}, before {}{room}", bytes(after), bytes(before));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns free space to the file system, if this process can. The result is a note for the user about disk space.
async fn reclaim(store: &Opened) -> Result<&'static str, Failure> {
    match store {
        #[cfg(feature = "embedded")]
        Opened::Embedded(embedded) => match embedded.defragment().await {
            Ok(_) => Ok(""),
            Err(StoreFault::NoSpace(what)) => {
                eprintln!("listwatch: history is forgotten, but the file is as large as before: {what}");
                Ok("")
            }
            Err(fault) => Err(fault.into()),
        },
        #[cfg(feature = "etcd3")]
        Opened::Etcd(_) => {
            Ok("; what became free etcd uses again, `etcdctl defrag` gives it back to the disk, member by member")
        }
    }
}

impl Stats {
    pub(super) async fn run(self) -> Result<ExitCode, Failure> {
        let location = Location::of_flags(self.store);
        let store = location.open().await?;
        let stats = store.source().stats().await?;
        let inspection = if self.quick {
            None
        } else {
            let mut progress_line = ProgressLine::new();
            let mut records = store.source().records().await?;
            Some(transfer::inspect(&mut *records, &mut |progress| progress_line.step(progress)).await?)
        };
        let more = more_stats(&store)?;
        store.close().await;
        match self.output {
            Output::Text => print_stats(&location, &stats, &more, inspection.as_ref()),
            Output::Json => println!("{:#}", stats_json(&location, &stats, &more, inspection.as_ref())),
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A figure that only one type of store has: its names in JSON and in text, and the value in bytes or as a count.
struct Figure {
    json: &'static str,
    name: &'static str,
    value: u64,
    in_bytes: bool,
}

fn more_stats(store: &Opened) -> Result<Vec<Figure>, Failure> {
    match store {
        #[cfg(feature = "embedded")]
        Opened::Embedded(embedded) => {
            let stats = embedded.embedded_stats()?;
            let figure = |json, name, value: u64| Figure { json, name, value, in_bytes: true };
            let mut figures = vec![
                figure("liveBytes", "living", stats.live_bytes),
                figure("historyBytes", "history", stats.history_bytes),
            ];
            figures.extend(stats.other_bytes().map(|value| figure("otherBytes", "rest of file", value)));
            figures.extend(stats.free_bytes.map(|value| figure("freeBytes", "disk free", value)));
            Ok(figures)
        }
        #[cfg(feature = "etcd3")]
        Opened::Etcd(etcd) => {
            let value = etcd.foreign_keys();
            Ok(vec![Figure { json: "foreignKeys", name: "foreign keys", value, in_bytes: false }])
        }
    }
}

fn print_stats(location: &Location, stats: &StoreStats, more: &[Figure], inspection: Option<&Inspection>) {
    println!("{location}");
    println!("  engine        {}", stats.description);
    println!("  revision      {}", stats.revision);
    let history = stats.revision.get().saturating_sub(stats.oldest.get());
    println!("  held from     {} ({} revisions of history)", stats.oldest, count(history));
    if let Some(keys) = stats.keys {
        println!("  keys          {}", count(keys));
    }
    if let Some(disk) = stats.disk_bytes {
        println!("  on disk       {}", bytes(disk));
    }
    for Figure { name, value, in_bytes, .. } in more {
        println!("  {name:<13} {}", if *in_bytes { bytes(*value) } else { count(*value) });
    }
    let Some(inspection) = inspection else { return };
    println!("  with a TTL    {}", count(inspection.with_ttl));
    let width = inspection.resources.keys().map(String::len).max().unwrap_or(0).max("RESOURCE".len());
    println!("\n{:<width$}  {:>11}  {:>9}  {:>9}", "RESOURCE", "OBJECTS", "BYTES", "LARGEST");
    let all = ("total".to_owned(), inspection.total);
    for (resource, totals) in inspection.resources.clone().into_iter().chain([all]) {
        let (objects, weight, largest) = (count(totals.objects), bytes(totals.bytes), bytes(totals.largest));
        println!("{resource:<width$}  {objects:>11}  {weight:>9}  {largest:>9}");
    }
}

fn stats_json(location: &Location, stats: &StoreStats, more: &[Figure], inspection: Option<&Inspection>) -> Value {
    let mut stats_json = json!({
        "place": location.to_string(),
        "engine": stats.description,
        "revision": stats.revision.get(),
        "oldestRevision": stats.oldest.get(),
        "keys": stats.keys,
        "diskBytes": stats.disk_bytes,
    });
    for Figure { json, value, .. } in more {
        stats_json[*json] = (*value).into();
    }
    if let Some(inspection) = inspection {
        let resources = inspection.resources.iter().map(|(resource, totals)| {
            json!({
                "resource": resource,
                "objects": totals.objects,
                "bytes": totals.bytes,
                "largestBytes": totals.largest,
            })
        });
        stats_json["objects"] = inspection.total.objects.into();
        stats_json["bytes"] = inspection.total.bytes.into();
        stats_json["withTTL"] = inspection.with_ttl.into();
        stats_json["resources"] = resources.collect();
    }
    stats_json
}
