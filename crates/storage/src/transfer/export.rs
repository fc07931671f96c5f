//! Everything that a store holds at one moment, as one stream of bytes.

use std::io::{self, Write};
use std::time::SystemTime;

use listwatch_meta::Revision;

use super::format::{Encoder, ExportEnd, ExportHeader, FormatError};
use super::{Phase, Progress, ProgressFn, RecordsError, Source, is_scratch};
use crate::error::{ReadError, StoreFault};

/// An export into a file begins anew this often at most, when compaction overtakes it.
pub const EXPORT_ATTEMPTS_MAX: u32 = 5;

/// What was exported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportSummary {
    /// What stands at its beginning.
    pub header: ExportHeader,
    /// What stands at its end.
    pub end: ExportEnd,
}

/// Why an export failed.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreFault),
    /// The store forgot the revision that was being exported. What was written is torn: begin anew.
    #[error(
        "compaction overtook the export: revision {revision} is no longer held; try again, and if it comes to this \
         again, let the store keep more history meanwhile"
    )]
    Overtaken {
        /// The revision.
        revision: Revision,
    },
    /// The store holds something that no export can hold.
    #[error(transparent)]
    Format(FormatError),
    /// The file cannot be written.
    #[error("the export cannot be written: {0}")]
    Io(#[from] io::Error),
}

/// Writes everything that `source` holds now to `out`, as it is at one revision, whatever is written to
/// the store meanwhile. `description` says in the export where it comes from.
///
/// `out` is written to where the future is polled: hand in something that is quick or buffered. Memory:
/// one page of records ([`PAGE_BYTES`](super::PAGE_BYTES)).
///
/// # Errors
/// [`ExportError`]. What was written so far is then torn, and is refused when somebody reads it.
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

/// Now, to the millisecond that the file keeps.
fn now() -> SystemTime {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(u64::try_from(since.as_millis()).unwrap_or(0))
}

fn read_failed(error: RecordsError, at: Revision) -> ExportError {
    match error {
        RecordsError::Store(ReadError::Compacted { .. }) => ExportError::Overtaken { revision: at },
        RecordsError::Store(ReadError::Fault(fault)) => ExportError::Store(fault),
        // Its own clock, read a moment ago: only a store that was put back to an older state says so.
        RecordsError::Store(error @ ReadError::Future { .. }) => {
            ExportError::Store(StoreFault::Unavailable(error.to_string()))
        }
        RecordsError::File(error) => ExportError::Io(io::Error::other(error.to_string())),
    }
}
