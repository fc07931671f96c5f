//! Where objects are: an embedded store, an etcd, a file; and how each is opened.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use listwatch_storage::Storage;
#[cfg(feature = "etcd3")]
use listwatch_storage::etcd3::{Etcd3, Etcd3Options};
use listwatch_storage::transfer::{self, Source};
#[cfg(feature = "embedded")]
use listwatch_storage::{EmbeddedOptions, EmbeddedStorage, OpenError};

use super::{EtcdFlags, Failure, StoreFlags};

/// A place by its name.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// A data directory.
    Embedded(PathBuf),
    /// Endpoints.
    Etcd(Vec<String>, EtcdFlags),
    /// A file; `-` is standard input or output.
    File(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Embedded(dir) => write!(f, "the embedded store in {}", dir.display()),
            Place::Etcd(servers, flags) => write!(f, "etcd at {}, below {}", servers.join(", "), flags.etcd_prefix),
            Place::File(path) if is_stdio(path) => f.write_str("standard input"),
            Place::File(path) => write!(f, "the file {}", path.display()),
        }
    }
}

pub(super) fn is_stdio(path: &Path) -> bool {
    path.as_os_str() == "-"
}

impl Place {
    /// The store that flags as those of `serve` name.
    pub(super) fn of_flags(flags: StoreFlags) -> Self {
        let servers: Vec<String> = flags.etcd_servers.into_iter().filter(|server| !server.is_empty()).collect();
        if servers.is_empty() { Place::Embedded(flags.data_dir) } else { Place::Etcd(servers, flags.etcd) }
    }

    /// `http://…`, a file that is there, or a data directory.
    pub(super) fn of_text(text: &str, etcd: &EtcdFlags) -> Self {
        if text.contains("://") {
            let servers = text.split(',').map(str::trim).filter(|server| !server.is_empty());
            return Place::Etcd(servers.map(str::to_owned).collect(), etcd.clone());
        }
        let path = PathBuf::from(text);
        if is_stdio(&path) || path.is_file() { Place::File(path) } else { Place::Embedded(path) }
    }

    /// Opens a store that is there.
    pub(super) async fn open(&self) -> Result<Opened, Failure> {
        match self {
            Place::Embedded(dir) => open_embedded(dir),
            Place::Etcd(servers, flags) => open_etcd(servers, flags).await,
            Place::File(path) => {
                Err(format!("{} is a file and no store; name a data directory or an etcd", path.display()).into())
            }
        }
    }
}

/// An open store.
pub(super) enum Opened {
    #[cfg(feature = "embedded")]
    Embedded(Arc<EmbeddedStorage>),
    #[cfg(feature = "etcd3")]
    Etcd(Arc<Etcd3>),
}

impl Opened {
    pub(super) fn source(&self) -> &dyn Source {
        match self {
            #[cfg(feature = "embedded")]
            Opened::Embedded(store) => &**store,
            #[cfg(feature = "etcd3")]
            Opened::Etcd(store) => &**store,
        }
    }

    pub(super) fn storage(&self) -> Arc<dyn Storage> {
        match self {
            #[cfg(feature = "embedded")]
            Opened::Embedded(store) => store.clone(),
            #[cfg(feature = "etcd3")]
            Opened::Etcd(store) => store.clone(),
        }
    }

    /// Waits until what was written is safe and the store is free for others.
    pub(super) async fn close(self) {
        match self {
            #[cfg(feature = "embedded")]
            Opened::Embedded(store) => store.close().await,
            #[cfg(feature = "etcd3")]
            Opened::Etcd(store) => store.close(),
        }
    }
}

/// Where the embedded store lies in a data directory.
#[cfg(feature = "embedded")]
pub(super) fn store_of(data_dir: &Path) -> PathBuf {
    data_dir.join("store")
}

#[cfg(feature = "embedded")]
fn open_embedded(data_dir: &Path) -> Result<Opened, Failure> {
    let path = store_of(data_dir);
    // Opening would make one.
    if !EmbeddedStorage::exists(&path) {
        return Err(format!(
            "there is no store in {}; name the data directory of a server with --data-dir, or an etcd with --etcd-servers",
            path.display()
        )
        .into());
    }
    match EmbeddedStorage::open(&path, EmbeddedOptions::default()) {
        Ok(store) => Ok(Opened::Embedded(store)),
        Err(error @ OpenError::Locked { .. }) => Err(format!(
            "{error}. An embedded store is open to one process: what it holds cannot be read while a server runs on it"
        )
        .into()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(feature = "embedded"))]
fn open_embedded(_data_dir: &Path) -> Result<Opened, Failure> {
    Err("this build has no embedded store; name an etcd, or build it with --features embedded".into())
}

#[cfg(feature = "etcd3")]
async fn open_etcd(servers: &[String], flags: &EtcdFlags) -> Result<Opened, Failure> {
    let mut options = Etcd3Options::new(servers.iter().cloned());
    options.prefix.clone_from(&flags.etcd_prefix);
    options.ca_file.clone_from(&flags.etcd_cafile);
    options.cert_file.clone_from(&flags.etcd_certfile);
    options.key_file.clone_from(&flags.etcd_keyfile);
    Ok(Opened::Etcd(Etcd3::connect(options).await?))
}

#[cfg(not(feature = "etcd3"))]
async fn open_etcd(_servers: &[String], _flags: &EtcdFlags) -> Result<Opened, Failure> {
    Err("this build has no etcd support; build it with --features etcd3".into())
}

/// Opens a file to read from the beginning to the end.
pub(super) fn open_file(path: &Path) -> Result<Box<dyn Read + Send>, Failure> {
    if is_stdio(path) {
        return Ok(Box::new(io::stdin()));
    }
    Ok(Box::new(named(path)?))
}

/// Opens a file to read in any order; standard input goes through a temporary file.
pub(super) fn open_seekable(path: &Path) -> Result<File, Failure> {
    if is_stdio(path) { Ok(transfer::spool(io::stdin().lock())?) } else { named(path) }
}

fn named(path: &Path) -> Result<File, Failure> {
    File::open(path).map_err(|error| format!("cannot read {}: {error}", path.display()).into())
}
