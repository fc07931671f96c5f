//! The counts and limits of exports, comparisons and inspections, and the errors of their inputs.

use std::io::{Read, Seek, SeekFrom};
use std::time::SystemTime;

use listwatch_storage::transfer::{
    FINDINGS_MAX, FileError, Finding, PAGE_RECORDS_MAX, Phase, Progress, RESOURCES_MAX, Record, Records, RecordsError,
};

use super::*;

/// Records of one page.
struct Page {
    revision: u64,
    records: Vec<Record>,
}

#[async_trait]
impl Records for Page {
    fn revision(&self) -> Revision {
        Revision::new(self.revision)
    }
    fn count(&self) -> Option<u64> {
        Some(self.records.len() as u64)
    }
    async fn next_page(&mut self) -> Result<Vec<Record>, RecordsError> {
        Ok(std::mem::take(&mut self.records))
    }
}

fn record(path: &str, value: impl Into<Bytes>, created: u64, modified: u64) -> Record {
    let key = Key::from_path(path).expect("a legal key");
    let (created, modified) = (Revision::new(created), Revision::new(modified));
    Record { entry: KeyValue { key, value: value.into(), created, modified, stale: false }, ttl: None }
}

fn object(name: &str) -> Bytes {
    format!(r#"{{"metadata":{{"name":"{name}"}}}}"#).into()
}

// ------------------------------------------------------------------------------ comparisons

#[test]
fn comparison_counts_every_key_and_lists_the_first_differences() {
    run(async {
        let differences = FINDINGS_MAX as u64 + 5;
        let names = || (0..differences).map(|n| format!("/pods/n{n:03}"));
        let mut first: Vec<Record> = names().map(|name| record(&name, "1", 5, 5)).collect();
        let mut second: Vec<Record> = names().map(|name| record(&name, "2", 6, 6)).collect();
        // The same values, two of them at the same revision.
        for (name, at) in [("x", 7), ("y", 8), ("z", 9)] {
            first.push(record(&format!("/pods/{name}"), "", 7, at));
            second.push(record(&format!("/pods/{name}"), "", 7, if name == "z" { 10 } else { at }));
        }
        // The notes of an import are no part of a store.
        first.push(record("/zz", "", 7, 11));
        second.push(record("/zz", "", 7, 11));
        second.insert(0, record("/listwatch.transfer/import", "", 1, 1));
        let (mut first, mut second) = (Page { revision: 12, records: first }, Page { revision: 12, records: second });
        let mut reported = Vec::new();
        let mut progress = |progress: Progress| reported.push(progress);
        let compared = transfer::compare(&mut first, &mut second, &mut progress).await.unwrap();
        assert_eq!((compared.differences, compared.same, compared.same_revision), (differences, 4, 3));
        assert_eq!(compared.examples.len(), FINDINGS_MAX);
        assert!(!compared.is_equal());
        let total = Some(differences + 5);
        let expected: Vec<_> =
            (1..=differences + 4).map(|done| Progress { phase: Phase::Compare, done, total }).collect();
        assert_eq!(reported, expected, "each key is reported once");
    });
}

// ------------------------------------------------------------------------------ exports

#[test]
fn export_header_has_the_time_and_progress_counts_every_record() {
    run(async {
        let store = some_store(100).await;
        let scratch = Key::new("listwatch.transfer", None, "import").unwrap();
        let other = Key::new("listwatch.transfers", None, "import").unwrap();
        for key in [&scratch, &other] {
            store.create(key, "{}".into(), None).await.unwrap();
        }
        let objects = list(&*store).await.len() as u64 - 1;
        let before = SystemTime::now() - Duration::from_secs(1);
        let (mut file, mut reported) = (Vec::new(), Vec::new());
        let mut progress = |progress: Progress| reported.push(progress);
        let summary = transfer::export(&*store, "a test", &mut file, &mut progress).await.unwrap();
        let time = summary.header.time;
        assert!(time >= before && time <= SystemTime::now(), "{time:?} is not now");
        assert_eq!(summary.end.records, objects, "the notes of an import are not exported");
        assert_eq!(reported.iter().map(|progress| progress.done).collect::<Vec<_>>(), [objects]);

        let mut reported = Vec::new();
        let mut progress = |progress: Progress| reported.push(progress.done);
        let mut checked = CheckedExport::check(Cursor::new(file), &mut progress).unwrap();
        assert_eq!(reported, (1..=objects).collect::<Vec<_>>());
        for left in (0..objects).rev() {
            let record = checked.next_record().unwrap().expect("a record");
            assert_ne!(record.entry.key, scratch);
            assert_eq!(checked.left(), left);
        }
        assert_eq!(checked.next_record().unwrap(), None);
    });
}

#[test]
fn second_import_finds_every_record_present() {
    run(async {
        let (source, target) = (some_store(50).await, MemoryStorage::new());
        let file = exported(&*source).await;
        let objects = list(&*source).await.len() as u64;
        import(&target, &file, IfExists::Fail).await.unwrap();
        let mut reported = Vec::new();
        let mut progress = |progress: Progress| {
            if progress.phase == Phase::Write {
                reported.push((progress.done, progress.total));
            }
        };
        let options = ImportOptions { if_exists: IfExists::Skip, ..ImportOptions::default() };
        let done = transfer::import(&target, &mut checked(&file), options, &mut progress).await.unwrap();
        assert_eq!((done.present, done.created, done.skipped, done.replaced), (objects, 0, 0, 0));
        assert_eq!(reported, (1..=objects).map(|done| (done, Some(objects))).collect::<Vec<_>>());
    });
}

/// A page of records has at most 4 MiB, apart from its last record, and at most 2,048 records.
#[test]
fn pages_of_an_export_are_bounded_by_bytes_and_records() {
    run(async {
        let named = |n: usize| format!("/pods/n{n:05}");
        let half = vec![b'x'; transfer::PAGE_BYTES / 2 - named(0).len()];
        let small: Vec<Record> = (0..=PAGE_RECORDS_MAX).map(|n| record(&named(n), "", 1, 1)).collect();
        let large: Vec<Record> = (0..3).map(|n| record(&named(n), half.clone(), 1, 1)).collect();
        for (records, expected) in [(small, [PAGE_RECORDS_MAX, 1]), (large, [2, 1])] {
            let header = transfer::ExportHeader {
                source: String::new(),
                revision: Revision::new(9),
                time: SystemTime::UNIX_EPOCH,
            };
            let mut file = Vec::new();
            let mut encoder = transfer::Encoder::begin(&header, &mut file);
            records.iter().for_each(|record| encoder.record(record, &mut file).unwrap());
            encoder.end(&mut file);
            let mut records = ExportRecords::begin(&file[..]).unwrap();
            assert_eq!((records.header(), records.revision(), records.count()), (&header, Revision::new(9), None));
            let mut pages = Vec::new();
            loop {
                let page = records.next_page().await.unwrap();
                if page.is_empty() {
                    break;
                }
                pages.push(page.len());
            }
            assert_eq!(pages, expected);
        }
    });
}

#[test]
fn unfinished_export_file_is_created_in_the_target_directory() {
    run(async {
        let (store, dir) = (some_store(10).await, tempfile::tempdir().unwrap());
        let mut partial = Vec::new();
        let mut progress = |_| {
            let names = std::fs::read_dir(dir.path()).unwrap();
            partial.extend(names.map(|entry| entry.unwrap().file_name().into_string().unwrap()));
        };
        ExportFile::new(dir.path().join("backup"), false).write(&*store, "a test", &mut progress).await.unwrap();
        let [name] = &partial[..] else { panic!("one file in the directory: {partial:?}") };
        assert!(name.starts_with(".backup.") && name.ends_with(".partial"), "{name}");
    });
}

/// An input that fails once with this error, at this byte.
struct Interrupted {
    file: Cursor<Vec<u8>>,
    at: u64,
    error: Option<io::ErrorKind>,
}

impl Read for Interrupted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.file.position() >= self.at
            && let Some(error) = self.error.take()
        {
            return Err(error.into());
        }
        let length = buffer.len().min(100);
        self.file.read(&mut buffer[..length])
    }
}

impl Seek for Interrupted {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

#[test]
fn interrupted_read_is_repeated_and_other_errors_fail() {
    let (file, objects) = run(async {
        let store = some_store(20).await;
        (exported(&*store).await, list(&*store).await.len())
    });
    for (kind, expected) in [(io::ErrorKind::Interrupted, true), (io::ErrorKind::TimedOut, false)] {
        let input = |error| Interrupted { file: Cursor::new(file.clone()), at: 200, error };
        // Sequentially.
        let mut records = ExportRecords::begin(input(Some(kind))).unwrap();
        let mut count = 0;
        let end = loop {
            match records.next_record() {
                Ok(Some(_)) => count += 1,
                end => break end,
            }
        };
        match end {
            Ok(_) => assert_eq!((count, expected), (objects, true)),
            Err(FileError::Io(error)) => assert_eq!((error.kind(), expected), (kind, false)),
            Err(other) => panic!("{other}"),
        }
        // In the order of the changes.
        let check = CheckedExport::check(input(Some(kind)), &mut |_| {});
        assert_eq!(check.is_ok(), expected, "the check of a file after {kind}");
        let shared = Arc::new(std::sync::Mutex::new(input(None)));
        let mut checked = CheckedExport::check(Shared(shared.clone()), &mut |_| {}).unwrap();
        {
            let mut input = shared.lock().unwrap();
            (input.at, input.error) = (0, Some(kind));
        }
        match checked.next_record() {
            Ok(record) => assert!(expected && record.is_some(), "{record:?}"),
            Err(FileError::Io(error)) => assert_eq!((error.kind(), expected), (kind, false)),
            Err(other) => panic!("{other}"),
        }
    }
}

/// An input that the test changes while it is read.
struct Shared(Arc<std::sync::Mutex<Interrupted>>);

impl Read for Shared {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.lock().unwrap().read(buffer)
    }
}

impl Seek for Shared {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.lock().unwrap().seek(to)
    }
}

// ------------------------------------------------------------------------------ inspections

async fn inspect(records: Vec<Record>) -> transfer::Inspection {
    transfer::inspect(&mut Page { revision: 100, records }, &mut |_| {}).await.unwrap()
}

#[test]
fn inspection_counts_every_finding_and_lists_the_first() {
    run(async {
        let count = FINDINGS_MAX + 5;
        let seen = inspect((0..count).map(|n| record(&format!("/pods/n{n:03}"), "{}", 1, 1)).collect()).await;
        assert_eq!((seen.findings, seen.examples.len()), (count as u64, FINDINGS_MAX));
    });
}

#[test]
fn inspection_finds_impossible_revisions() {
    run(async {
        for (created, modified, expected) in [
            (1, 1, false),
            (1, 100, false),
            (100, 100, false),
            (0, 1, true),
            (0, 0, true),
            (2, 1, true),
            (1, 101, true),
        ] {
            let seen = inspect(vec![record("/pods/a", object("a"), created, modified)]).await;
            let finding = Finding::Revision { key: Key::from_path("/pods/a").unwrap() };
            let expected = if expected { vec![finding] } else { Vec::new() };
            assert_eq!(seen.examples, expected, "created at {created}, changed at {modified}, store at 100");
        }
    });
}

#[test]
fn inspection_counts_objects_that_share_a_revision() {
    run(async {
        for (revisions, expected) in
            [(&[1, 2, 3][..], 0), (&[5, 5], 2), (&[5, 5, 5], 3), (&[5, 6, 5, 7, 6, 5], 5), (&[1, 2, 2, 3, 4, 4, 4], 5)]
        {
            let of = |(n, at): (usize, &u64)| record(&format!("/pods/n{n}"), object(&format!("n{n}")), 1, *at);
            let seen = inspect(revisions.iter().enumerate().map(of).collect()).await;
            assert_eq!(seen.shared_revisions, expected, "{revisions:?}");
        }
    });
}

#[test]
fn inspection_adds_up_the_bytes_of_keys_and_values() {
    run(async {
        let scratch = record("/listwatch.transfer/import", "{}", 1, 1);
        let (one, other) = (record("/pods/a", object("a"), 1, 1), record("/apps/deployments/bc", object("bc"), 1, 2));
        let bytes = [&one, &other].map(|record| (record.entry.key.as_str().len() + record.entry.value.len()) as u64);
        let seen = inspect(vec![scratch, one, other]).await;
        let totals = |objects, bytes, largest| transfer::ResourceTotals { objects, bytes, largest };
        assert_eq!(seen.total, totals(2, bytes[0] + bytes[1], bytes[1]));
        assert_eq!(seen.resources["pods"], totals(1, bytes[0], bytes[0]));
        assert_eq!(seen.resources["apps/deployments"], totals(1, bytes[1], bytes[1]));
        assert_eq!(seen.findings, 0, "{:?}", seen.examples);
    });
}

#[test]
fn inspection_counts_a_bounded_number_of_resources() {
    run(async {
        let count = RESOURCES_MAX + 3;
        let seen =
            inspect((0..count).map(|n| record(&format!("/r{n:05}/a"), object("a"), 1, 1 + n as u64 % 90)).collect());
        let seen = seen.await;
        assert_eq!(seen.resources.len(), RESOURCES_MAX + 1);
        assert_eq!((seen.resources["…"].objects, seen.total.objects), (3, count as u64));
    });
}
