//! Exports as files: written whole or not at all, read from the beginning to the end, checked
//! before use.

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

/// What is read of a file at a time, in bytes.
const CHUNK: usize = 256 << 10;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system refuses.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is no whole export.
    #[error(transparent)]
    Format(#[from] FormatError),
}

/// A file that an export is written to. It gets its name when it is whole and on stable storage;
/// until then there is `.NAME.….partial` beside it, which is removed when the export fails.
#[derive(Debug)]
pub struct ExportFile {
    path: PathBuf,
    replace: bool,
}

impl ExportFile {
    /// A file at this path. With `replace` it takes the place of one that is there.
    pub fn new(path: impl Into<PathBuf>, replace: bool) -> Self {
        ExportFile { path: path.into(), replace }
    }

    /// Writes an export of everything in `source`. When compaction overtakes it, it begins anew, up to
    /// [`EXPORT_ATTEMPTS_MAX`](super::EXPORT_ATTEMPTS_MAX) times.
    ///
    /// The file is its owner's alone (0600 on Unix): it holds Secrets as the store does.
    ///
    /// # Errors
    /// [`ExportError`]; the file is then not there, or is what it was before.
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
                    tracing::warn!(%revision, attempt, "compaction overtook the export; it begins anew");
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
        // The name must be as durable as what it names. Only Unix can sync a directory.
        #[cfg(unix)]
        File::open(dir)?.sync_all()?;
        Ok(summary)
    }
}

/// Copies a stream, such as standard input, into an unnamed temporary file, which can then be checked
/// and read in another order. The file is gone when it is closed, and nobody else can open it.
///
/// # Errors
/// The stream's, or that of the directory for temporary files.
pub fn spool(mut input: impl Read) -> io::Result<File> {
    let mut file = tempfile::tempfile().map_err(temporary)?;
    io::copy(&mut input, &mut file)?;
    file.rewind()?;
    Ok(file)
}

/// Reads an export from its beginning to its end, in the order of its keys.
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
    /// [`FileError`]; what is no export is noticed here.
    pub fn begin(input: R) -> Result<Self, FileError> {
        let time = std::time::SystemTime::UNIX_EPOCH;
        let header = ExportHeader { source: String::new(), revision: Revision::ZERO, time };
        let mut records =
            ExportRecords { input, decoder: Decoder::default(), chunk: vec![0; CHUNK], header, end: None };
        match records.next_item()? {
            Item::Header(header) => Ok(ExportRecords { header, ..records }),
            // The decoder begins with the header, or fails.
            _ => Err(FormatError::Torn { at: records.decoder.offset() }.into()),
        }
    }

    /// What the export says about itself.
    pub fn header(&self) -> &ExportHeader {
        &self.header
    }

    /// What stands at its end, when it was reached.
    pub fn end(&self) -> Option<ExportEnd> {
        self.end
    }

    /// The next record and its place in the file; `None` at the end of a whole export.
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
                // Nothing may follow, neither in what was read along with the end nor behind it.
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

/// An export that was read to its end and found whole, and can now be read in the order in which its
/// records were last changed.
#[derive(Debug)]
pub struct CheckedExport<F> {
    file: F,
    header: ExportHeader,
    end: ExportEnd,
    content: u32,
    /// Revision and place of each record.
    order: Sorted,
}

impl<F: Read + Seek> CheckedExport<F> {
    /// Reads everything and checks it.
    ///
    /// # Errors
    /// [`FileError`]: what is torn, damaged or foreign never gets further.
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

    /// What the export says about itself.
    pub fn header(&self) -> &ExportHeader {
        &self.header
    }

    /// What stands at its end.
    pub fn end(&self) -> ExportEnd {
        self.end
    }

    /// A name for what it holds: the same for two exports of the same state, whenever they were made.
    pub fn identity(&self) -> String {
        format!("{} records at revision {}, {:08x}", self.end.records, self.header.revision, self.content)
    }

    /// The next record in the order in which they were last changed; of those that one transaction
    /// changed, in the order of their keys. `None` at the end.
    ///
    /// # Errors
    /// [`FileError`]: the file changed since it was checked, or cannot be read.
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

    /// How many records [`CheckedExport::next_record`] has still to hand out.
    pub fn left(&self) -> u64 {
        self.order.left()
    }
}
