//! Export files: written atomically, read sequentially, and checked before use.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use listwatch_meta::Revision;

use super::export::{self, ExportError, ExportSummary};
use super::format::{self, Decoder, ExportEnd, ExportHeader, FormatError, Item};
use super::sort::{Sorted, Sorter};
use super::{
    PAGE_BYTES, PAGE_RECORDS_MAX, Phase, Progress, ProgressFn, Record, Records, RecordsError, Source, temporary,
};

/// Bytes read from a file at a time.
const CHUNK: usize = 256 << 10;

/// The error of reading an export file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// An I/O error of the operating system.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is not a complete export.
    #[error(transparent)]
    Format(#[from] FormatError),
}

/// A file to which an export is written. The file gets its name when it is complete and on stable
/// storage. Until then it is a `.NAME.….partial` file in the same directory, which is removed when
/// the export fails.
#[derive(Debug)]
pub struct ExportFile {
    path: PathBuf,
    replace: bool,
}

impl ExportFile {
    /// Creates an export file at this path. With `replace` it replaces an existing one.
    pub fn new(path: impl Into<PathBuf>, replace: bool) -> Self {
        ExportFile { path: path.into(), replace }
    }

    /// Exports the whole content of `source`. If compaction overtakes the export, it restarts up to
    /// [`EXPORT_ATTEMPTS_MAX`](super::EXPORT_ATTEMPTS_MAX) times.
    ///
    /// Only the owner can access the file (0600 on Unix), because it holds Secrets.
    ///
    /// # Errors
    /// [`ExportError`]; the file is then absent or unchanged.
    pub async fn write<S: Source + ?Sized>(
        &self,
        source: &S,
        description: &str,
        progress: &mut ProgressFn<'_>,
    ) -> Result<ExportSummary, ExportError> {
        let exists = io::Error::new(io::ErrorKind::AlreadyExists, "it is there already");
        if !self.replace && self.path.try_exists()? {
            return Err(exists.into());
        }
        let dir = self.path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let file = tempfile::Builder::new().prefix(&format!(".{name}.")).suffix(".partial").tempfile_in(dir)?;
        let mut out = BufWriter::with_capacity(CHUNK, file);
        let mut attempt = 1;
        let summary = loop {
            match export::export(source, description, &mut out, progress).await {
                Err(ExportError::Overtaken { revision }) if attempt < export::EXPORT_ATTEMPTS_MAX => {
                    tracing::warn!(%revision, attempt, "compaction overtook the export; the export starts again");
                    attempt += 1;
                    out.flush()?;
                    out.get_mut().as_file_mut().set_len(0)?;
                    out.rewind()?;
                }
                result => break result?,
            }
        };
        let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.as_file().sync_all()?;
        let named = if self.replace { file.persist(&self.path) } else { file.persist_noclobber(&self.path) };
        named.map_err(|error| error.error)?;
        // The name must be as durable as the file. Only Unix can sync a directory.
        #[cfg(unix)]
        File::open(dir)?.sync_all()?;
        Ok(summary)
    }
}

/// Copies a stream, such as standard input, to an unnamed temporary file, which can be checked and
/// read in another order. No other process can open the file, and the file is deleted when it is
/// closed.
///
/// # Errors
/// The error of the stream or of the temporary directory.
pub fn spool(mut input: impl Read) -> io::Result<File> {
    let mut file = tempfile::tempfile().map_err(temporary)?;
    io::copy(&mut input, &mut file)?;
    file.rewind()?;
    Ok(file)
}

/// Reads an export sequentially, in key order.
#[derive(Debug)]
pub struct ExportRecords<R> {
    input: R,
    decoder: Decoder,
    chunk: Vec<u8>,
    header: ExportHeader,
    end: Option<ExportEnd>,
}

impl<R: Read> ExportRecords<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// [`FileError`] if the input is not an export.
    pub fn begin(input: R) -> Result<Self, FileError> {
        let time = std::time::SystemTime::UNIX_EPOCH;
        let header = ExportHeader { source: String::new(), revision: Revision::ZERO, time };
        let mut records =
            ExportRecords { input, decoder: Decoder::default(), chunk: vec![0; CHUNK], header, end: None };
        match records.next_item()? {
            Item::Header(header) => Ok(ExportRecords { header, ..records }),
            // The decoder returns the header first, or fails.
            _ => Err(FormatError::Torn { at: records.decoder.offset() }.into()),
        }
    }

    /// The header of the export.
    pub fn header(&self) -> &ExportHeader {
        &self.header
    }

    /// The end of the export, once it was reached.
    pub fn end(&self) -> Option<ExportEnd> {
        self.end
    }

    /// The next record and its offset in the file; `None` at the end of a complete export.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn next_record(&mut self) -> Result<Option<(u64, Record)>, FileError> {
        if self.end.is_some() {
            return Ok(None);
        }
        match self.next_item()? {
            Item::Record { offset, record } => Ok(Some((offset, record))),
            Item::End(end) => {
                // No data may follow the end.
                self.decoder.poll_item()?;
                if self.fill()? {
                    self.decoder.poll_item()?;
                }
                self.decoder.handle_eof()?;
                self.end = Some(end);
                Ok(None)
            }
            Item::Header(_) => Err(FormatError::Torn { at: self.decoder.offset() }.into()),
        }
    }

    fn next_item(&mut self) -> Result<Item, FileError> {
        loop {
            if let Some(item) = self.decoder.poll_item()? {
                return Ok(item);
            }
            if !self.fill()? {
                self.decoder.handle_eof()?;
                return Err(FormatError::Torn { at: self.decoder.offset() }.into());
            }
        }
    }

    fn fill(&mut self) -> io::Result<bool> {
        let got = loop {
            match self.input.read(&mut self.chunk) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                got => break got?,
            }
        };
        self.decoder.handle_bytes(&self.chunk[..got]);
        Ok(got > 0)
    }
}

#[async_trait]
impl<R: Read + Send> Records for ExportRecords<R> {
    fn revision(&self) -> Revision {
        self.header.revision
    }

    fn count(&self) -> Option<u64> {
        None
    }

    async fn next_page(&mut self) -> Result<Vec<Record>, RecordsError> {
        let (mut page, mut bytes) = (Vec::new(), 0);
        while bytes < PAGE_BYTES && page.len() < PAGE_RECORDS_MAX {
            let Some((_, record)) = self.next_record()? else { break };
            bytes += record.weight();
            page.push(record);
        }
        Ok(page)
    }
}

/// A completely read and verified export, which can be read in the order in which its records were
/// last changed.
#[derive(Debug)]
pub struct CheckedExport<F> {
    file: F,
    header: ExportHeader,
    end: ExportEnd,
    content: u32,
    /// The revision and offset of each record.
    order: Sorted,
}

impl<F: Read + Seek> CheckedExport<F> {
    /// Reads and checks the whole file.
    ///
    /// # Errors
    /// [`FileError`]; an incomplete, damaged or foreign file is rejected here.
    pub fn check(mut file: F, progress: &mut ProgressFn<'_>) -> Result<Self, FileError> {
        file.rewind()?;
        let mut records = ExportRecords::begin(BufReader::with_capacity(CHUNK, &mut file))?;
        let mut order = Sorter::new();
        let mut content = crc32fast::Hasher::new();
        let mut done = 0;
        while let Some((offset, record)) = records.next_record()? {
            let entry = &record.entry;
            content.update(entry.key.as_str().as_bytes());
            content.update(&entry.modified.get().to_le_bytes());
            content.update(&entry.value);
            order.push((entry.modified.get(), offset))?;
            done += 1;
            progress(Progress { phase: Phase::Check, done, total: None });
        }
        let header = records.header().clone();
        let end = records.end().ok_or(FormatError::Torn { at: 0 })?;
        drop(records);
        Ok(CheckedExport { file, header, end, content: content.finalize(), order: order.finish()? })
    }

    /// The header of the export.
    pub fn header(&self) -> &ExportHeader {
        &self.header
    }

    /// The end of the export.
    pub fn end(&self) -> ExportEnd {
        self.end
    }

    /// An identifier of the content, equal for two exports of the same state.
    pub fn identity(&self) -> String {
        format!("{} records at revision {}, {:08x}", self.end.records, self.header.revision, self.content)
    }

    /// The next record in the order of the last changes; records of one transaction are in key
    /// order. `None` at the end.
    ///
    /// # Errors
    /// [`FileError`] if the file changed since it was checked, or is unreadable.
    pub fn next_record(&mut self) -> Result<Option<Record>, FileError> {
        let Some(next) = self.order.next() else { return Ok(None) };
        let (_, offset) = next?;
        let file = &mut self.file;
        let read = |at: u64, mut buffer: &mut [u8]| -> Result<usize, FileError> {
            file.seek(SeekFrom::Start(at))?;
            let mut got = 0;
            while !buffer.is_empty() {
                match file.read(buffer) {
                    Ok(0) => break,
                    Ok(count) => {
                        got += count;
                        buffer = &mut buffer[count..];
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(got)
        };
        Ok(Some(format::record_at(offset, read)?))
    }

    /// The number of records that [`CheckedExport::next_record`] has not returned yet.
    pub fn left(&self) -> u64 {
        self.order.left()
    }
}
