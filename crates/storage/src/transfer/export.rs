//! Exports the whole content of a store at one revision as a stream of bytes.

use std::io::{self, Write};
use std::time::SystemTime;

use listwatch_meta::Revision;

use super::format::{Encoder, ExportEnd, ExportHeader, FormatError};
use super::{Phase, Progress, ProgressFn, RecordsError, Source, is_scratch};
use crate::error::{ReadError, StoreFault};

/// The maximum number of attempts to export to a file when compaction overtakes the export.
pub const EXPORT_ATTEMPTS_MAX: u32 = 5;

/// The result of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportSummary {
    /// The header of the export.
    pub header: ExportHeader,
    /// The end of the export.
    pub end: ExportEnd,
}

/// The error of an export.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreFault),
    /// The store compacted the revision during the export. The output is incomplete: start again.
    #[error(
        "compaction overtook the export: revision {revision} is no longer held; try again, and if it comes to this \
         again, let the store keep more history meanwhile"
    )]
    Overtaken {
        /// The compacted revision.
        revision: Revision,
    },
    /// The store holds a record that the format does not support.
    #[error(transparent)]
    Format(FormatError),
    /// The output cannot be written.
    #[error("the export cannot be written: {0}")]
    Io(#[from] io::Error),
}

/// Writes the content of `source` at one revision to `out`, also during concurrent writes to the
/// store. `description` names the source within the export.
///
/// `out` is written on the polling task, so it should be fast or buffered. Memory: one page of
/// records ([`PAGE_BYTES`](super::PAGE_BYTES)).
///
/// # Errors
/// [`ExportError`]. The output is then incomplete, and readers reject it.
pub async fn export<S: Source + ?Sized>(
    source: &S,
    description: &str,
    out: &mut (impl Write + Send),
    progress: &mut ProgressFn<'_>,
) -> Result<ExportSummary, ExportError> {
    let mut records = source.records().await.map_err(|error| read_failed(error.into(), Revision::ZERO))?;
    let revision = records.revision();
    let header = ExportHeader { source: description.to_owned(), revision, time: now() };
    let total = records.count();
    let mut buffer = Vec::new();
    let mut encoder = Encoder::begin(&header, &mut buffer);
    let mut done = 0;
    loop {
        let page = records.next_page().await.map_err(|error| read_failed(error, revision))?;
        if page.is_empty() {
            break;
        }
        for record in page.iter().filter(|record| !is_scratch(&record.entry.key)) {
            encoder.record(record, &mut buffer).map_err(ExportError::Format)?;
            done += 1;
        }
        out.write_all(&buffer)?;
        buffer.clear();
        progress(Progress { phase: Phase::Read, done, total });
    }
    let end = encoder.end(&mut buffer);
    out.write_all(&buffer)?;
    out.flush()?;
    Ok(ExportSummary { header, end })
}

/// The current time in whole milliseconds, as in the format.
fn now() -> SystemTime {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(u64::try_from(since.as_millis()).unwrap_or(0))
}

fn read_failed(error: RecordsError, at: Revision) -> ExportError {
    match error {
        RecordsError::Store(ReadError::Compacted { .. }) => ExportError::Overtaken { revision: at },
        RecordsError::Store(ReadError::Fault(fault)) => ExportError::Store(fault),
        // The revision was read a moment ago, so only a store restored to an older state returns
        // this.
        RecordsError::Store(error @ ReadError::Future { .. }) => {
            ExportError::Store(StoreFault::Unavailable(error.to_string()))
        }
        RecordsError::File(error) => ExportError::Io(io::Error::other(error.to_string())),
    }
}
