//! Names rotated log files, and selects those to remove or to compress (lumberjack v2, which kube-apiserver uses).
//!
//! `audit.log` becomes `audit-2026-01-31T23-59-59.000.log`, with the time of the rotation in UTC. A compressed file
//! also ends in `.gz`.

use std::time::{Duration, SystemTime};

use time::format_description::BorrowedFormatItem;
use time::macros::format_description;
use time::{OffsetDateTime, PrimitiveDateTime};

const TIME: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]-[minute]-[second].[subsecond digits:3]");

/// The suffix of a compressed file.
pub(crate) const COMPRESSED: &str = ".gz";

/// The limits of log files: size, number and age (`--audit-log-maxsize`, `-maxbackup`, `-maxage`, `-compress`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotationOptions {
    /// The largest file, in bytes; 0: 100 MiB, as in lumberjack.
    pub file_bytes_max: u64,
    /// The number of rotated files to keep; 0 keeps all.
    pub backups_max: usize,
    /// The time for which a rotated file is kept; zero keeps it forever.
    pub age_max: Duration,
    /// Whether rotated files are compressed.
    pub compress: bool,
}

impl Default for RotationOptions {
    /// The defaults of kube-apiserver 1.36.
    fn default() -> Self {
        RotationOptions {
            file_bytes_max: 100 << 20,
            backups_max: 100,
            age_max: Duration::from_secs(366 * 24 * 3600),
            compress: false,
        }
    }
}

/// The stem and the extension of a file name.
fn split(name: &str) -> (&str, &str) {
    name.rfind('.').map_or((name, ""), |at| name.split_at(at))
}

/// Returns the name for a file that is rotated at a time.
pub(crate) fn backup_name(name: &str, now: SystemTime) -> String {
    let (stem, extension) = split(name);
    let time = OffsetDateTime::from(now).format(TIME).unwrap_or_default();
    format!("{stem}-{time}{extension}")
}

/// The time in the name of a rotated file; `None` for other files.
fn rotated_at(name: &str, backup: &str) -> Option<SystemTime> {
    let (stem, extension) = split(name);
    let backup = backup.strip_suffix(COMPRESSED).unwrap_or(backup);
    let time = backup.strip_prefix(stem)?.strip_prefix('-')?.strip_suffix(extension)?;
    Some(PrimitiveDateTime::parse(time, TIME).ok()?.assume_utc().into())
}

/// The rotated files to remove and to compress.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Cleanup<'a> {
    pub(crate) remove: Vec<&'a str>,
    pub(crate) compress: Vec<&'a str>,
}

/// Selects the files of a directory to remove and to compress (`millRunOnce`).
pub(crate) fn cleanup<'a>(name: &str, files: &'a [String], options: &RotationOptions, now: SystemTime) -> Cleanup<'a> {
    let mut backups: Vec<(SystemTime, &str)> =
        files.iter().filter_map(|file| Some((rotated_at(name, file)?, file.as_str()))).collect();
    backups.sort_by(|one, other| other.cmp(one));
    let mut found = Cleanup::default();
    let mut kept = Vec::new();
    for (at, file) in backups {
        let plain = file.strip_suffix(COMPRESSED).unwrap_or(file);
        // A file and its compressed form are one backup.
        if !kept.contains(&plain) {
            kept.push(plain);
        }
        let is_surplus = options.backups_max > 0 && kept.len() > options.backups_max;
        let is_old = !options.age_max.is_zero() && now.duration_since(at).is_ok_and(|age| age > options.age_max);
        if is_surplus || is_old {
            found.remove.push(file);
        } else if options.compress && plain == file {
            found.compress.push(file);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
    }

    #[test]
    fn rotated_file_is_named_as_by_lumberjack() {
        assert_eq!(backup_name("audit.log", at(0)), "audit-2023-11-14T22-13-20.000.log");
        assert_eq!(backup_name("audit", at(0)), "audit-2023-11-14T22-13-20.000");
        for (name, found) in [
            ("audit-2023-11-14T22-13-20.000.log", true),
            ("audit-2023-11-14T22-13-20.000.log.gz", true),
            ("audit.log", false),
            ("audit-x.log", false),
            ("other-2023-11-14T22-13-20.000.log", false),
        ] {
            assert_eq!(rotated_at("audit.log", name), found.then_some(at(0)), "{name}");
        }
    }

    #[test]
    fn surplus_and_old_files_are_removed_and_others_compressed() {
        let name = |seconds| backup_name("a.log", at(seconds));
        let files = [name(0), name(10), format!("{}.gz", name(10)), name(20), name(30), "a.log".to_owned(), "b".into()];
        let clean = |backups_max, age, compress| {
            let options =
                RotationOptions { backups_max, age_max: Duration::from_secs(age), compress, file_bytes_max: 0 };
            let found = cleanup("a.log", &files, &options, at(31));
            let [remove, compress] = [found.remove, found.compress]
                .map(|files| files.iter().map(|file| files_index(&files, file)).collect::<Vec<usize>>());
            (remove, compress)
        };
        fn files_index(files: &[&str], file: &str) -> usize {
            files.iter().position(|found| *found == file).unwrap_or(usize::MAX)
        }
        let count = |(remove, compress): (Vec<usize>, Vec<usize>)| (remove.len(), compress.len());
        assert_eq!(count(clean(0, 0, false)), (0, 0));
        assert_eq!(count(clean(2, 0, false)), (3, 0), "both forms of one backup go together");
        assert_eq!(count(clean(3, 0, true)), (1, 3));
        assert_eq!(count(clean(0, 15, true)), (3, 2));
        let found = cleanup("a.log", &files, &RotationOptions { backups_max: 1, ..Default::default() }, at(31));
        assert!(!found.remove.contains(&name(30).as_str()), "the newest stays");
    }
}
