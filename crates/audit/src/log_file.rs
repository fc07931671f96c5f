//! [`LogFile`]: appends lines to a file that is rotated by size, or to standard output.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::rotation::{COMPRESSED, RotationOptions, backup_name, cleanup};

/// The largest file if `file_bytes_max` is 0, in bytes.
const FILE_BYTES_DEFAULT: u64 = 100 << 20;

/// The destination of audit lines: a file or standard output. Writes block the calling thread.
#[derive(Debug)]
pub struct LogFile(Target);

#[derive(Debug)]
enum Target {
    StandardOutput,
    File(Rotated),
}

#[derive(Debug)]
struct Rotated {
    path: PathBuf,
    options: RotationOptions,
    /// The file, with its length in bytes.
    open: Option<(File, u64)>,
}

impl LogFile {
    /// Opens a file, and creates it with mode 0600 in directories of mode 0700 if it does not exist. `-` is standard
    /// output (`--audit-log-path`).
    ///
    /// # Errors
    /// The file cannot be opened for writing.
    pub fn open(path: &str, options: RotationOptions) -> io::Result<LogFile> {
        if path == "-" {
            return Ok(LogFile(Target::StandardOutput));
        }
        let mut file = Rotated { path: PathBuf::from(path), options, open: None };
        file.reopen()?;
        Ok(LogFile(Target::File(file)))
    }

    /// Appends lines, in one write where possible. The lines contain no line breaks.
    ///
    /// # Errors
    /// The file cannot be written or rotated. The next call retries.
    pub fn append(&mut self, lines: &[Vec<u8>], now: SystemTime) -> io::Result<()> {
        match &mut self.0 {
            Target::StandardOutput => {
                let mut out = io::stdout().lock();
                out.write_all(&joined(lines))?;
                out.flush()
            }
            Target::File(file) => file.append(lines, now),
        }
    }
}

fn joined(lines: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::with_capacity(lines.iter().map(|line| line.len() + 1).sum());
    for line in lines {
        out.extend_from_slice(line);
        out.push(b'\n');
    }
    out
}

impl Rotated {
    fn bytes_max(&self) -> u64 {
        if self.options.file_bytes_max == 0 { FILE_BYTES_DEFAULT } else { self.options.file_bytes_max }
    }

    fn directory(&self) -> &Path {
        self.path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }

    fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn reopen(&mut self) -> io::Result<()> {
        create_directory(self.directory())?;
        let mut options = OpenOptions::new();
        options.append(true).create(true);
        private(&mut options);
        let file = options.open(&self.path)?;
        let bytes = file.metadata()?.len();
        self.open = Some((file, bytes));
        Ok(())
    }

    fn append(&mut self, lines: &[Vec<u8>], now: SystemTime) -> io::Result<()> {
        let bytes_max = self.bytes_max();
        let mut rest = lines;
        while !rest.is_empty() {
            if self.open.is_none() {
                self.reopen()?;
            }
            let written = self.open.as_ref().map_or(0, |(_, bytes)| *bytes);
            let mut room = bytes_max.saturating_sub(written);
            let fits = |line: &&Vec<u8>| {
                let left = room.checked_sub(line.len() as u64 + 1);
                room = left.unwrap_or(0);
                left.is_some()
            };
            let count = rest.iter().take_while(fits).count();
            if count == 0 && written > 0 {
                self.rotate(now)?;
                continue;
            }
            // A line that is larger than the limit has a file of its own.
            let (now_written, later) = rest.split_at(count.max(1));
            let text = joined(now_written);
            let Some((file, bytes)) = &mut self.open else { continue };
            if let Err(error) = file.write_all(&text) {
                // The length is not known any more.
                self.open = None;
                return Err(error);
            }
            *bytes += text.len() as u64;
            rest = later;
        }
        Ok(())
    }

    fn rotate(&mut self, now: SystemTime) -> io::Result<()> {
        self.open = None;
        let name = self.name();
        fs::rename(&self.path, self.directory().join(backup_name(&name, now)))?;
        self.reopen()?;
        // Logging continues if an old file cannot be removed.
        let _ = self.clean(&name, now);
        Ok(())
    }

    fn clean(&self, name: &str, now: SystemTime) -> io::Result<()> {
        let directory = self.directory();
        let entries = fs::read_dir(directory)?.filter_map(Result::ok);
        let files: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        let found = cleanup(name, &files, &self.options, now);
        for file in found.remove {
            fs::remove_file(directory.join(file))?;
        }
        for file in found.compress {
            compress(&directory.join(file))?;
        }
        Ok(())
    }
}

/// Replaces a file by its compressed form.
fn compress(path: &Path) -> io::Result<()> {
    let mut target = path.as_os_str().to_owned();
    target.push(COMPRESSED);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    private(&mut options);
    let mut encoder = GzEncoder::new(options.open(&target)?, Compression::default());
    let copied = File::open(path).and_then(|mut plain| io::copy(&mut plain, &mut encoder));
    match copied.and_then(|_| encoder.finish()) {
        Ok(_) => fs::remove_file(path),
        Err(error) => {
            fs::remove_file(&target)?;
            Err(error)
        }
    }
}

#[cfg(unix)]
fn private(options: &mut OpenOptions) {
    use std::os::unix::fs::OpenOptionsExt as _;
    options.mode(0o600);
}

#[cfg(not(unix))]
fn private(_options: &mut OpenOptions) {}

fn create_directory(directory: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt as _;
        builder.mode(0o700);
    }
    builder.create(directory)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn options(file_bytes_max: u64, backups_max: usize, compress: bool) -> RotationOptions {
        RotationOptions { file_bytes_max, backups_max, compress, age_max: Duration::ZERO }
    }

    #[test]
    fn full_file_is_rotated_between_lines_and_old_ones_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/audit.log");
        let open = || LogFile::open(path.to_str().unwrap(), options(10, 2, false)).unwrap();
        let mut log = open();
        log.append(&[b"1234".to_vec(), b"5678".to_vec(), b"9".to_vec()], at(0)).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "9\n", "10 bytes are in the first file");
        // A new process appends to the file.
        let mut log = open();
        log.append(&[b"ab".to_vec()], at(1)).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "9\nab\n");
        log.append(&[vec![b'x'; 20]], at(2)).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap().len(), 21, "a long line is not lost");
        log.append(&[b"c".to_vec()], at(3)).unwrap();
        let found = names(path.parent().unwrap());
        assert_eq!(found, ["audit-2023-11-14T22-13-22.000.log", "audit-2023-11-14T22-13-23.000.log", "audit.log"]);
    }

    #[test]
    fn rotated_file_is_compressed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let mut log = LogFile::open(path.to_str().unwrap(), options(4, 0, true)).unwrap();
        log.append(&[b"abc".to_vec(), b"def".to_vec()], at(0)).unwrap();
        assert_eq!(names(directory.path()), ["audit-2023-11-14T22-13-20.000.log.gz", "audit.log"]);
        let file = File::open(directory.path().join("audit-2023-11-14T22-13-20.000.log.gz")).unwrap();
        let mut text = String::new();
        flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
        assert_eq!(text, "abc\n");
    }

    #[cfg(unix)]
    #[test]
    fn log_file_is_readable_by_its_owner_only() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        LogFile::open(path.to_str().unwrap(), RotationOptions::default()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(LogFile::open(directory.path().to_str().unwrap(), RotationOptions::default()).is_err());
    }
}
