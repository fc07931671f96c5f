//! The subcommands of `listwatch storage`: what each does, in words.

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

use super::place::{Opened, Place, is_stdio, open_file, open_seekable};
use super::report::{Bar, bytes, count, seconds};
use super::{Compact, Copy, Export, Failure, Import, ImportFlags, Output, Stats, Verify};

/// `verify` found something.
const FOUND: u8 = 3;

impl Export {
    pub(super) async fn run(self) -> Result<ExitCode, Failure> {
        let place = Place::of_flags(self.store);
        let stdout = is_stdio(&self.file);
        if stdout && std::io::stdout().is_terminal() {
            return Err("an export is no text for a terminal; name a file, or send it on with | or >".into());
        }
        if !stdout && !self.force && self.file.try_exists()? {
            return Err(exists(&self.file));
        }
        let began = Instant::now();
        let store = place.open().await?;
        let description = describe(&store, &place).await;
        let mut bar = Bar::new();
        let mut progress = |progress| bar.step(progress);
        let written = if stdout {
            let mut out = std::io::BufWriter::new(std::io::stdout());
            transfer::export(store.source(), &description, &mut out, &mut progress).await
        } else {
            ExportFile::new(&self.file, self.force).write(store.source(), &description, &mut progress).await
        };
        drop(bar);
        store.close().await;
        let summary = written.map_err(|error| match error {
            ExportError::Io(error) if error.kind() == std::io::ErrorKind::AlreadyExists => exists(&self.file),
            ExportError::Io(error) if !stdout => format!("cannot write {}: {error}", self.file.display()).into(),
            other => Failure::from(other),
        })?;
        let told = format!("exported {} from {place} in {}", told(&summary), seconds(began.elapsed()));
        if stdout {
            eprintln!("{told}")
        } else {
            println!("{told}, to {}", self.file.display())
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn exists(file: &std::path::Path) -> Failure {
    format!("{} is there already; choose another name, or replace it with --force", file.display()).into()
}

fn told(summary: &ExportSummary) -> String {
    let ExportSummary { header, end } = summary;
    format!("{} objects ({}) at revision {}", count(end.records), bytes(end.bytes), header.revision)
}

/// What an export says about where it comes from.
async fn describe(store: &Opened, place: &Place) -> String {
    let engine = store.source().stats().await.map(|stats| stats.description);
    engine.map_or_else(|_| place.to_string(), |engine| format!("{place} ({engine})"))
}

impl Import {
    pub(super) async fn run(self) -> Result<ExitCode, Failure> {
        let place = Place::of_flags(self.store);
        let file = open_seekable(&self.file)?;
        let mut bar = Bar::new();
        let name = if is_stdio(&self.file) { "standard input".to_owned() } else { self.file.display().to_string() };
        let mut export = CheckedExport::check(file, &mut |progress| bar.step(progress))
            .map_err(|error| format!("{name}: {error}"))?;
        drop(bar);
        bring(&mut export, &place, &self.import, &name).await
    }
}

impl Copy {
    pub(super) async fn run(self) -> Result<ExitCode, Failure> {
        let from = Place::of_text(&self.from, &self.etcd);
        let mut to_flags = self.etcd.clone();
        to_flags.etcd_prefix = self.to_etcd_prefix.unwrap_or(to_flags.etcd_prefix);
        let to = Place::of_text(&self.to, &to_flags);
        if let Place::File(path) = &to {
            let path = path.display();
            return Err(
                format!("{path} is a file; `listwatch storage export` writes files, copy goes to a store").into()
            );
        }
        let file = match &from {
            Place::File(path) => open_seekable(path)?,
            from => {
                // Through a file that nobody else can see: then it is known to be whole before the
                // first object is written, and can be read in the order of its revisions.
                let store = from.open().await?;
                let description = describe(&store, from).await;
                let mut out = std::io::BufWriter::new(transfer::spool(std::io::empty())?);
                let mut bar = Bar::new();
                transfer::export(store.source(), &description, &mut out, &mut |progress| bar.step(progress)).await?;
                drop(bar);
                store.close().await;
                out.into_inner().map_err(std::io::IntoInnerError::into_error)?
            }
        };
        let mut bar = Bar::new();
        let checked = CheckedExport::check(file, &mut |progress| bar.step(progress));
        let mut export = checked.map_err(|error| format!("{from}: {error}"))?;
        drop(bar);
        bring(&mut export, &to, &self.import, &from.to_string()).await
    }
}

/// Imports a checked export into a store, and says what was done.
async fn bring(
    export: &mut CheckedExport<std::fs::File>,
    place: &Place,
    flags: &ImportFlags,
    from: &str,
) -> Result<ExitCode, Failure> {
    let began = Instant::now();
    let source = export.header().revision;
    let clock_at_least = listwatch_meta::Revision::new(flags.clock_at_least);
    #[cfg(feature = "embedded")]
    if let Place::Embedded(dir) = place {
        let path = super::place::store_of(dir);
        if !EmbeddedStorage::exists(&path) {
            private_directory(dir)?;
            let mut bar = Bar::new();
            let options = EmbeddedOptions::default();
            let summary = EmbeddedStorage::from_export(&path, options, export, clock_at_least, &mut |progress| {
                bar.step(progress)
            })?;
            drop(bar);
            let took = seconds(began.elapsed());
            println!("imported {} objects from {from} into {place} in {took}", count(summary.created));
            println!("the revision is {}, the source's is {source}; every object has kept its own", summary.revision);
            if summary.moved > 0 {
                let moved = count(summary.moved);
                println!("but {moved}, which shared one with another object and have a later one now");
            }
            return Ok(ExitCode::SUCCESS);
        }
    }
    let store = place.open().await?;
    let options = ImportOptions { if_exists: flags.if_exists.into(), clock_at_least, keep_clock: flags.keep_clock };
    let target: Arc<dyn Storage> = store.storage();
    let mut bar = Bar::new();
    let done = transfer::import(&target, export, options, &mut |progress| bar.step(progress)).await;
    drop((bar, target));
    store.close().await;
    let ImportSummary { created, present, skipped, replaced, resumed, raised, revision, .. } = done?;
    let took = seconds(began.elapsed());
    println!("imported {} objects from {from} into {place} in {took}", count(created + replaced));
    for (number, what) in [
        (present, "were there already, with the same value"),
        (skipped, "were there with another value, which stayed"),
        (replaced, "of them took the place of another value"),
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

/// What `serve` would do: it holds keys and Secrets.
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
        let place = match &self.place {
            Some(text) => Place::of_text(text, &flags),
            None => Place::of_flags(self.store),
        };
        let against = self.against.as_deref().map(|text| Place::of_text(text, &flags));
        let began = Instant::now();
        let mut verdict = Verdict::default();
        verdict.look_at(&place).await?;
        if let Some(against) = against
            && verdict.is_readable
        {
            verdict.compare(&place, &against).await?;
        }
        match self.output {
            Output::Text => verdict.print(&place, seconds(began.elapsed())),
            Output::Json => println!("{:#}", verdict.json(&place)),
        }
        Ok(if verdict.is_clean() { ExitCode::SUCCESS } else { ExitCode::from(FOUND) })
    }
}

/// What `verify` has seen.
#[derive(Default)]
struct Verdict {
    /// How many things are wrong.
    found: u64,
    /// Some of them, in words.
    problems: Vec<String>,
    /// What is worth knowing and no damage.
    notes: Vec<String>,
    /// What was looked at.
    checked: Vec<String>,
    inspection: Inspection,
    comparison: Option<(Comparison, Place)>,
    is_readable: bool,
}

impl Verdict {
    fn problem(&mut self, what: String) {
        self.found += 1;
        self.problems.push(what);
    }

    async fn look_at(&mut self, place: &Place) -> Result<(), Failure> {
        let mut bar = Bar::new();
        let mut progress = |progress| bar.step(progress);
        let inspected = match place {
            Place::File(path) => match ExportRecords::begin(open_file(path)?) {
                Ok(mut records) => {
                    let header = records.header().clone();
                    self.checked.push(format!("an export of {} at revision {}", header.source, header.revision));
                    transfer::inspect(&mut records, &mut progress).await
                }
                Err(error) => Err(error.into()),
            },
            place => match self.open(place).await? {
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
                                "{} keys below the prefix are no object's place, and are passed over",
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
                    (protobuf, "are protobuf, which listwatch does not read from a store"),
                    (encrypted, "are encrypted by a kube-apiserver, which listwatch does not read"),
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

    /// Opens a store, and looks at what only it can know of itself. `None` when it is too damaged.
    async fn open(&mut self, place: &Place) -> Result<Option<Opened>, Failure> {
        let store = match place.open().await {
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

    async fn compare(&mut self, first: &Place, second: &Place) -> Result<(), Failure> {
        let (one, other) = (Reading::of(first).await?, Reading::of(second).await?);
        let mut bar = Bar::new();
        let compared = {
            let (mut one, mut other) = (one.records().await?, other.records().await?);
            transfer::compare(&mut *one, &mut *other, &mut |progress| bar.step(progress)).await
        };
        drop(bar);
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

    fn print(&self, place: &Place, took: String) {
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
            println!("{place} is as it should be ({took})");
        } else {
            println!(
                "{place}: {} things are wrong ({took}); do not write to it, restore it from a backup",
                count(self.found)
            );
        }
    }

    fn json(&self, place: &Place) -> Value {
        let Inspection { total, with_ttl, protobuf, encrypted, shared_revisions, .. } = &self.inspection;
        let mut verdict = json!({
            "place": place.to_string(),
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
            verdict["comparison"] = json!({
                "against": against.to_string(),
                "same": comparison.same,
                "sameRevision": comparison.same_revision,
                "differences": comparison.differences,
                "outOfOrder": comparison.out_of_order,
            });
        }
        verdict
    }
}

fn finding(finding: &Finding) -> String {
    match finding {
        Finding::Undecodable { key, what } => format!("{key} cannot be read as an object: {what}"),
        Finding::Misplaced { key, says } => format!("{key} holds an object that says it is {says:?}"),
        Finding::Revision { key } => format!("{key} has revisions that cannot be"),
    }
}

/// Is it that what is stored is wrong, and not that it cannot be reached?
fn is_damage(error: &RecordsError) -> bool {
    match error {
        RecordsError::File(FileError::Format(error)) => {
            matches!(error, FormatError::Torn { .. } | FormatError::Damaged { .. } | FormatError::Foreign { .. })
        }
        RecordsError::Store(ReadError::Fault(fault)) => matches!(fault, StoreFault::Corrupt(_)),
        _ => false,
    }
}

/// A place to be compared: what has to stay open while it is read.
enum Reading {
    Store(Opened),
    File(std::path::PathBuf),
}

impl Reading {
    async fn of(place: &Place) -> Result<Self, Failure> {
        match place {
            Place::File(path) if is_stdio(path) => Err("standard input can be read once only; name a file".into()),
            Place::File(path) => Ok(Reading::File(path.clone())),
            place => place.open().await.map(Reading::Store),
        }
    }

    async fn records(&self) -> Result<Box<dyn Records + '_>, Failure> {
        match self {
            Reading::Store(store) => Ok(store.source().records().await?),
            Reading::File(path) => Ok(Box::new(ExportRecords::begin(open_file(path)?)?)),
        }
    }

    async fn close(self) {
        if let Reading::Store(store) = self {
            store.close().await;
        }
    }
}

impl Compact {
    pub(super) async fn run(self) -> Result<ExitCode, Failure> {
        let place = Place::of_flags(self.store);
        let store = place.open().await?;
        let before = store.source().stats().await?;
        let to = self.revision.map_or(before.revision, listwatch_meta::Revision::new);
        match store.source().compact(to).await {
            Ok(()) | Err(ReadError::Compacted { .. }) => {}
            Err(ReadError::Future { requested, current }) => {
                return Err(format!("revision {requested} has not happened yet, {place} is at {current}").into());
            }
            Err(error) => return Err(error.into()),
        }
        let room = reclaim(&store).await?;
        let after = store.source().stats().await?;
        store.close().await;
        let (from, to) = (before.oldest, after.oldest);
        let revisions = count(to.get().saturating_sub(from.get()));
        println!("forgot {revisions} revisions of {place}: it is held from {to} on, before from {from}");
        if let (Some(before), Some(after)) = (before.disk_bytes, after.disk_bytes) {
            println!("on disk {}, before {}{room}", bytes(after), bytes(before));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Gives room back to the disk where that is ours to do; what else to say about room.
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
        let place = Place::of_flags(self.store);
        let store = place.open().await?;
        let stats = store.source().stats().await?;
        let inspection = if self.quick {
            None
        } else {
            let mut bar = Bar::new();
            let mut records = store.source().records().await?;
            Some(transfer::inspect(&mut *records, &mut |progress| bar.step(progress)).await?)
        };
        let more = more_stats(&store)?;
        store.close().await;
        match self.output {
            Output::Text => print_stats(&place, &stats, &more, inspection.as_ref()),
            Output::Json => println!("{:#}", stats_json(&place, &stats, &more, inspection.as_ref())),
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A figure that only one kind of store has: its name in JSON, for people, and bytes or a count.
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

fn print_stats(place: &Place, stats: &StoreStats, more: &[Figure], inspection: Option<&Inspection>) {
    println!("{place}");
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

fn stats_json(place: &Place, stats: &StoreStats, more: &[Figure], inspection: Option<&Inspection>) -> Value {
    let mut told = json!({
        "place": place.to_string(),
        "engine": stats.description,
        "revision": stats.revision.get(),
        "oldestRevision": stats.oldest.get(),
        "keys": stats.keys,
        "diskBytes": stats.disk_bytes,
    });
    for Figure { json, value, .. } in more {
        told[*json] = (*value).into();
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
        told["objects"] = inspection.total.objects.into();
        told["bytes"] = inspection.total.bytes.into();
        told["withTTL"] = inspection.with_ttl.into();
        told["resources"] = resources.collect();
    }
    told
}
